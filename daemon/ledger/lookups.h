/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What clients count in their pages: lookups, and for each space the tokens asked for and matched.
 * They are figures of theirs and may be anything: what is believed of them never goes back, and is
 * never more than can have been done since the session began. Sums end at INT64_MAX. The ledger's
 * thread.
 */
#ifndef KVPD_LOOKUPS_H
#define KVPD_LOOKUPS_H

#include <stdint.h>

#include "daemon/figures.h"

struct kvpd_session;

/* Tokens of one session in one space, since it opened that. */
struct kvpd_use {
	uint64_t from_asked, from_matched; /* what the page said then */
	uint64_t asked, matched;           /* as last believed; they are in the space's sums */
};

/* The session opens the space, which it did not have: what the page says so far was of another. */
void kvpd_use_begin(struct kvpd_session *s, uint32_t space);
/* Takes what it has counted there since the last time into its sums, its tenant's and the space's. */
void kvpd_use_take(struct kvpd_session *s, uint32_t space);
/*
 * The same of all its spaces, and its lookups. Only what is new goes into the sums, so that each
 * thing is counted once, whenever sessions come and go.
 */
void kvpd_session_lookups(struct kvpd_session *s);

#endif
