/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a replayed block's payload says: bytes that follow from the block's key alone, so that whoever
 * writes it and whoever finds it need not know of each other, and any mix-up shows.
 *
 * In an exact space these are words of a hash. In a space with a floor they are numbers, nearly normal ones
 * of 16 bits, because codecs are for numbers and the daemon judges what they lose by normal ones. A block that
 * was coded since is right if each of its planes is what the codec itself makes of those numbers, bit for
 * bit, and if kvp_get() gives what the codec decodes that to. So a block that was coded in two steps counts as
 * wrong; a daemon that codes for want of room alone takes one.
 *
 * One layer with one key and one value head of `dim` channels, KVP_LAYOUT_LCND. One thread at a time.
 */
#ifndef KVREPLAY_CONTENT_H
#define KVREPLAY_CONTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/kvpool.h"

struct content;

/* numbers: of a space with a floor. -ENOMEM. */
int content_new(uint32_t block_tokens, uint32_t dim, bool numbers, struct content **ret_content);
struct content *content_free(struct content *c); /* NULL */

/* The payload of the block with this key: out has room for 4 * dim * block_tokens bytes. */
void content_write(const struct content *c, struct kvp_digest key, void *out);
/* Is that what lies at `have`, so many bytes? */
bool content_is(struct content *c, struct kvp_digest key, const void *have, uint64_t bytes);
/* Is coded block i of a leased prefix what it has to be, as it lies and as it is read? */
bool content_is_coded(
	struct content *c, struct kvp_digest key, const struct kvp_prefix *m, uint32_t i);

#endif
