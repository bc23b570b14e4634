/* SPDX-License-Identifier: Apache-2.0 */
/* Figures as administrators read them, in JSON: docs/figures.md lists the members. */
#ifndef KVPD_CONTROL_FIGURES_H
#define KVPD_CONTROL_FIGURES_H

#include <jansson.h>

#include "daemon/control/rates.h"

/* Is that a verb which figures answer? *ret_what: what of them has to be read for it. */
bool kvpd_figures_verb(const char *verb, uint32_t *ret_what);
/* The answer to such a verb, a new reference; NULL: no memory. Any thread. */
json_t *kvpd_figures_json(
	const struct kvpd_figures *f, const struct kvpd_rates *rates, const char *verb);

#endif
