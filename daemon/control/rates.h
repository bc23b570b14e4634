/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates: what was counted between two looks at the ledger's figures, KVPD_RATES_NS apart. All who
 * ask within that time are told the same. A tenant or space that was made in between is counted
 * from its beginning, one that took over the name or number of another is not compared with it, and
 * what has ended has no rates.
 */
#ifndef KVPD_RATES_H
#define KVPD_RATES_H

#include <jansson.h>

#include "daemon/control/payer.h"
#include "daemon/control/source.h"
#include "daemon/figures.h"

#define KVPD_RATES_NS UINT64_C(5000000000)

struct kvpd_rates {
	struct kvpd_figures older, newer; /* taken_ns 0: not taken yet */
	uint64_t next_ns;
	/* A look, while it is under way: its steps have turns of their own. */
	struct kvpd_source source;
	struct kvpd_payer payer;
	struct kvpd_figures_walk *walk;
	struct kvpd_ledger *ledger;
};

void kvpd_rates_init(struct kvpd_rates *r, struct kvpd_turns *row);
/*
 * Begins to look, if it is time to, and returns when to call again. A look that fails for want of
 * memory is left out: the interval is longer then.
 */
uint64_t kvpd_rates_turn(struct kvpd_rates *r, struct kvpd_ledger *ledger, uint64_t now);
/* Takes figures, with their spaces, as the newer ones; they belong to the rates from now on. */
void kvpd_rates_take(struct kvpd_rates *r, const struct kvpd_figures *figures);
void kvpd_rates_fini(struct kvpd_rates *r);

/*
 * The `rates` of an answer, a new reference; JSON null while there are none: before the second
 * look, or what is asked for did not exist at the last one. docs/figures.md names the members.
 */
/* f: of its tenants, all together. */
json_t *kvpd_rates_of_all(const struct kvpd_rates *r, const struct kvpd_figures *f);
json_t *kvpd_rates_of_tenant(const struct kvpd_rates *r, const struct kvpd_tenant_figures *t);
/* tenant: the one it is of. */
json_t *kvpd_rates_of_space(const struct kvpd_rates *r, const struct kvpd_tenant_figures *tenant,
	const struct kvpd_space_figures *s);

#endif
