/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tip of the chain that a session is writing. A new block is the least used one there is, so
 * without this a long put would take its own blocks for the next ones. As no parent is evicted
 * before its child, sparing the tip spares all of the chain, as a lease does; but nobody reads here,
 * and deletion and moves are not held up.
 */
#ifndef KVPD_TIP_H
#define KVPD_TIP_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_session;
struct kvpd_tenant;

/* The session has committed a block: the chain up to it is what it writes now. */
void kvpd_tip_set(struct kvpd_session *s, uint32_t block, uint64_t now);
/* It writes nothing any more. */
void kvpd_tip_clear(struct kvpd_session *s);
/* A chore, once a second: a session that has been silent writes nothing. */
bool kvpd_tip_step(struct kvpd_tenant *t, uint64_t now);
/*
 * Blocks without a lease are EVICTING and about to go for room: a session whose tip is one of them has what stays
 * above it as its tip. What it wrote meanwhile is no reason to take the rest of its chain before that of others.
 */
void kvpd_tip_up(struct kvpd_tenant *t);
/* Is the block the tip of some session's chain? */
bool kvpd_tip_any(const struct kvpd_tenant *t, uint32_t block);
/*
 * Is it this session's, which is writing right now? Then it is not taken even if there is nothing
 * else: not for long, because the session may as well want to begin another chain, which it does
 * not say before it has the room. s may be NULL.
 */
bool kvpd_tip_now(const struct kvpd_session *s, uint32_t block, uint64_t now);

#endif
