/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classes of hazard: what is known of a group of blocks when it arises, and by which what is learnt
 * of blocks is kept apart. A class is of a kind, which tells what its two coordinates mean:
 *
 *	kind     major                                            minor
 *	FRESH    turn of the conversation, 3: later ones, too     new blocks of the request, log2
 *	SEEN     the same of blocks that were used before         the same
 *	OFTEN    mean time between uses, log2 of requests         new blocks of the request, 0 or 1
 *	PARTIAL  -                                                -
 *	SHARED   chains that the block belongs to, log2 - 1       -
 *	COLD     how sure it is that this is a scan               new blocks of the request, log2
 *
 * PARTIAL is the last block of a prompt until it comes back. Groups, ghosts and counters hold a
 * class as its code, one byte.
 */
#ifndef KVP_POLICY_EVICT_HAZARD_CLASS_H
#define KVP_POLICY_EVICT_HAZARD_CLASS_H

#include <stdint.h>

enum hazard_kind { FRESH, SEEN, OFTEN, PARTIAL, SHARED, COLD, KINDS };

/* Kinds that a class is drawn towards while there are few data of its own. */
enum hazard_family { FAMILY_FRESH, FAMILY_SEEN, FAMILY_PARTIAL, FAMILY_SHARED, FAMILIES };

#define TURNS    4u
#define SIZES    8u  /* octaves of new blocks */
#define GAPS     16u /* octaves of the mean time between uses */
#define BRANCHES 4u  /* 2, 4, 8, 16 chains and more */
#define COLDS    3u
#define CLASSES  (2u * TURNS * SIZES + 2u * GAPS + 1u + BRANCHES + COLDS * SIZES)

struct hazard_class {
	enum hazard_kind kind;
	uint32_t major;
	uint32_t minor;
};

/* The codes of a kind begin at `first`. */
static const struct hazard_kind_codes {
	uint8_t first, majors, minors, family;
} hazard_codes[KINDS] = {
	[FRESH] = { 0, TURNS, SIZES, FAMILY_FRESH },
	[SEEN] = { TURNS * SIZES, TURNS, SIZES, FAMILY_SEEN },
	[OFTEN] = { 2u * TURNS * SIZES, GAPS, 2, FAMILY_SEEN },
	[PARTIAL] = { 2u * TURNS * SIZES + 2u * GAPS, 1, 1, FAMILY_PARTIAL },
	[SHARED] = { 2u * TURNS * SIZES + 2u * GAPS + 1u, BRANCHES, 1, FAMILY_SHARED },
	[COLD] = { CLASSES - COLDS * SIZES, COLDS, SIZES, FAMILY_FRESH },
};

/* Coordinates beyond the last are taken as the last. */
static inline uint8_t hazard_encode(struct hazard_class c)
{
	const struct hazard_kind_codes *k = &hazard_codes[c.kind];
	uint32_t major = c.major < k->majors ? c.major : k->majors - 1u;
	uint32_t minor = c.minor < k->minors ? c.minor : k->minors - 1u;

	return (uint8_t)(k->first + major * k->minors + minor);
}

/* `code` is less than CLASSES. */
static inline struct hazard_class hazard_decode(uint8_t code)
{
	enum hazard_kind kind = KINDS - 1;

	while (code < hazard_codes[kind].first)
		kind--;
	uint32_t place = code - hazard_codes[kind].first, minors = hazard_codes[kind].minors;
	return (struct hazard_class){ kind, place / minors, place % minors };
}

static inline enum hazard_family hazard_family(struct hazard_class c)
{
	return (enum hazard_family)hazard_codes[c.kind].family;
}

#endif
