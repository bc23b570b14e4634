/* SPDX-License-Identifier: Apache-2.0 */
/* Growth inside a tenant's share: how much each session and the vault may have, and what goes. */
#ifndef KVPD_GROW_H
#define KVPD_GROW_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_class;
struct kvpd_extent;
struct kvpd_place;
struct kvpd_session;
struct kvpd_tenant;

/* Could a block of this size be stored if the tenant held nothing else? */
bool kvpd_slot_fits(const struct kvpd_tenant *t, uint64_t slot_bytes);
/* A vault slot outside of `except`, flagged TARGET; has the vault grown when few are left. */
bool kvpd_vault_take(struct kvpd_tenant *t, struct kvpd_class *c, const struct kvpd_extent *except,
	uint64_t now, struct kvpd_place *ret_place);
/* Another class is giving an extent to this one: there is soon room for one, and nothing has to go for it. */
bool kvpd_vault_awaited(const struct kvpd_tenant *t, const struct kvpd_class *c, uint64_t now);
/*
 * Class c is nearly full and the tenant has no room for another extent: has one with larger slots emptied,
 * of `from` if it can be, and never the last one of its class. True: one is being emptied for it now.
 */
bool kvpd_vault_trade(struct kvpd_tenant *t, struct kvpd_class *c, const struct kvpd_class *from);
/*
 * Bytes of slots that should be free before a session asks for them, by what it wrote at once lately: memory
 * that is made only then is what it would wait for.
 */
uint64_t kvpd_arena_ahead(const struct kvpd_session *s, const struct kvpd_class *c);
/*
 * Begins to make more arena of a class for a session, or to make room for that; repeat until there is. `ahead`:
 * of what is free alone, since nothing has to go for what nobody asked for yet.
 */
void kvpd_arena_grow(struct kvpd_session *s, struct kvpd_class *c, uint64_t now, bool ahead);
/*
 * Has something emptied and given back, one extent at a time: of the session that has more than its
 * part, else of the vault. Arenas of `spared` stay, and unless there is nothing else the vault of
 * class `c`. Either may be NULL.
 */
void kvpd_reclaim(
	struct kvpd_tenant *t, const struct kvpd_session *spared, const struct kvpd_class *c);
/*
 * The session's arenas measure so many bytes more, or it began or ceased to wait for slots: counts
 * the sessions among which what arenas may take is divided.
 */
void kvpd_arena_count(struct kvpd_session *s, int64_t bytes);
/* Likewise for an extent that has an owner, in any medium: the owner got it, or is about to lose it. */
void kvpd_arena_counts(const struct kvpd_extent *x, bool more);
/* Has an extent on a device emptied and given back, closed ones first; arenas of `spared` (or NULL) stay. */
void kvpd_reclaim_there(
	struct kvpd_tenant *t, const struct kvpd_session *spared, uint32_t medium, uint64_t now);

#endif
