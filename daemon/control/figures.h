/* SPDX-License-Identifier: Apache-2.0 */
/* Figures as administrators read them, in JSON: docs/figures.md lists the members. */
#ifndef KVPD_CONTROL_FIGURES_H
#define KVPD_CONTROL_FIGURES_H

#include <jansson.h>

#include "daemon/control/rates.h"

/* Is that a verb which figures answer? *ret_what: what of them has to be read for it. */
bool kvpd_figures_verb(const char *verb, uint32_t *ret_what);
/*
 * The answer to such a verb is an object; or, if it has rows, one whose only member, called like the
 * verb, is the list of them. -1: no rows.
 */
int64_t kvpd_figures_rows(const struct kvpd_figures *f, const char *verb);
/* The object, or a row; a new reference; NULL: no memory. Any thread. */
json_t *kvpd_figures_json(const struct kvpd_figures *f, const struct kvpd_rates *rates,
	const char *verb, uint32_t row);

#endif
