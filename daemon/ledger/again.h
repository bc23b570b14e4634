/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes from a device for others' sake and comes back soon: of each tenant and device a table of the last that
 * went, by key, eight bytes each.
 *
 * Soon is before as many others have gone as there is room for: a device of twice the size would have held it. What has
 * come back soon twice is spared when the policy names it, once after each time that it came or was used: to the policy it
 * counts as used then, and so it stays for about as long as that one would have held it. An eighth of what there is room
 * for is spared like that at most, and whoever finds nothing else takes it (room.h). By the order of use that finds .0002 to
 * .0045 more of what is read on a device; half of the room found .02 less of conversations, many of which are over when they
 * have come back twice.
 *
 * Policies that remember what has gone by themselves (kvp_evict_memory.ghosts), the default one among them, keep what
 * comes back as they see fit, and for them it is brief: each time that something is back soon, from the second on, it is
 * spared as often as it is named while a quarter of the room goes for others, but a thirty-second of the room at most in
 * any such time. That costs nothing; an eighth, and until it is named for the first time, cost .005 of what is read of
 * conversations (docs/policies.md).
 *
 * The table forgets: what went longest ago first, of the eight that share a cache line. It knows 29 bits of a key
 * besides the line, and what it takes for another block is counted, or stays a little longer, and no more.
 */
#ifndef KVPD_AGAIN_H
#define KVPD_AGAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_types.h"

struct kvpd_again;

/* For a device that holds so many blocks; `brief`: as above. NULL: no memory. kvpd_again_free() takes NULL. */
struct kvpd_again *kvpd_again_new(uint32_t blocks, bool brief);
void kvpd_again_free(struct kvpd_again *a);
uint64_t kvpd_again_bytes(uint32_t blocks);

/* It went for others. */
void kvpd_again_left(struct kvpd_again *a, struct kvp_key key);
/* It went otherwise: nothing is known of it any more. */
void kvpd_again_forget(struct kvpd_again *a, struct kvp_key key);
/* It comes, where there is room for so many blocks. True: it is back soon. */
bool kvpd_again_came(struct kvpd_again *a, struct kvp_key key, uint32_t room);
/* It lies there, and was used. */
void kvpd_again_used(struct kvpd_again *a, struct kvp_key key, uint32_t room);
/* It lies there: is it to be spared? */
bool kvpd_again_kept(const struct kvpd_again *a, struct kvp_key key);
/* Likewise, and the policy has named it: no more, until it is used again, unless it is brief. */
bool kvpd_again_spare(struct kvpd_again *a, struct kvp_key key);

#endif
