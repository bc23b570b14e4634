/* SPDX-License-Identifier: Apache-2.0 */
/* Single blocks that are to go: evicted by key, deleted by a client, forgotten with their space. */
#ifndef KVPD_DELETE_H
#define KVPD_DELETE_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_tenant;

#define KVPD_DOOMED 4096u /* deletions that wait, of one tenant */

/* A deletion that waits until nothing protects the block. */
struct kvpd_doomed {
	uint32_t block;
	uint32_t birth;
	uint64_t until_ns;
};

/*
 * Takes the payload of a LIVE block and, with `forget` and if it has no children, the rest too; or
 * forgets a RECIPE. -EBUSY: something protects it. -ENOTEMPTY: it has children that stay.
 */
int kvpd_block_drop(struct kvpd_tenant *t, uint32_t block, bool forget, uint64_t now);
/*
 * Forgets a block without children and then what is above it, as far as nothing protects it and
 * nothing else hangs on it, at most KVPD_PROOF blocks. Does nothing to a block that has children or
 * is free. Returns the block with which to go on, or KVP_BLOCK_NONE.
 */
uint32_t kvpd_chain_drop(struct kvpd_tenant *t, uint32_t block, uint64_t now);
/* Has a block forgotten once nothing protects it. -EAGAIN: too many wait already. */
int kvpd_doom(struct kvpd_tenant *t, uint32_t block, uint64_t now);
/* A chore, once a second: tries the deletions that wait. */
bool kvpd_doomed_step(struct kvpd_tenant *t, uint64_t now);

#endif
