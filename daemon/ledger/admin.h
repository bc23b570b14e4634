/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of administrators, a portion at a time. A verb's step() runs on the ledger thread, ends
 * within a slice, and is called again as long as it returns -EINPROGRESS; others are served between.
 * What it needs memory for is prepared, and what it found is written out, on the control thread.
 *
 * So what is walked over changes meanwhile: the control thread serves others, too. A step finds
 * everything anew by its id, and a tenant by its number, since its id may be another's by now:
 * one that ended is left out from there on, and so is the one that has its place.
 */
#ifndef KVPD_ADMIN_H
#define KVPD_ADMIN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/config.h"
#include "daemon/ledger/find.h"
#include "shm/kvp_types.h"

struct kvpd_ledger;
struct kvpd_tenant;

#define KVPD_ADMIN_STRIDE 32u /* of blocks and the like: between two looks at the clock */

/* A part of an answer that may be long: what was found, to be written out row by row. */
struct kvpd_rows {
	const char *name; /* of the list; NULL: there is none */
	uint32_t n;
	json_t *(*row)(const void *found, uint32_t row);
	void *found; /* freed with the request */
};

struct kvpd_request {
	json_t *json;
	json_t *answer;
	const char *only; /* tenant; NULL: all */
	/* on the ledger thread */
	struct kvpd_ledger *l;
	bool begun;
	uint64_t until_ns; /* of this portion */
	uint32_t tenant;   /* where the walk is, from 1, */
	uint64_t number;   /* which tenant it found there, as kvpd_request_tenant() last did, */
	uint32_t seen;     /* at which place that was, */
	uint32_t at;       /* and at which of its blocks the walk is */
	struct kvpd_find find;
	void *own;                    /* the verb's; finish() frees it, */
	struct kvpd_rows rows;        /* or makes it a part of the answer */
	bool walked;                  /* no more steps on the ledger thread */
	const struct kvpd_verb *verb; /* NULL: none, or it is finished */
};

struct kvpd_verb {
	const char *name;
	bool absent; /* the tenant that is named need not be there */
	/* Optional; before every step. -EINPROGRESS: there is more to do before it; others end it. */
	int (*prepare)(struct kvpd_request *q);
	int (*step)(struct kvpd_request *q);
	/* Optional; after the last step, on the control thread, and again while -EINPROGRESS. */
	int (*arrange)(struct kvpd_request *q);
	/*
	 * Optional; after the last step, with the result so far; returns what stands. Or after any
	 * step with -ECANCELED, when nobody wants the answer any more.
	 */
	int (*finish)(struct kvpd_request *q, int result);
};

extern const struct kvpd_verb kvpd_verb_blocks, kvpd_verb_inspect, kvpd_verb_pin, kvpd_verb_unpin,
	kvpd_verb_evict, kvpd_verb_drain, kvpd_verb_check, kvpd_verb_space_set,
	kvpd_verb_device_drain, kvpd_verb_device_detach, kvpd_verb_device_attach,
	kvpd_verb_device_left, kvpd_verb_what_if, kvpd_verb_thresholds, kvpd_verb_thresholds_import;

/* The error in words; returns it. */
__attribute__((format(printf, 3, 4))) int kvpd_request_fail(
	struct kvpd_request *q, int error, const char *format, ...);
const char *kvpd_request_text(const struct kvpd_request *q, const char *name);
bool kvpd_request_flag(const struct kvpd_request *q, const char *name);
uint64_t kvpd_request_int(const struct kvpd_request *q, const char *name, uint64_t otherwise);

/* In a step: the tenant that the walk is at; NULL: it has passed the last. */
struct kvpd_tenant *kvpd_request_tenant(struct kvpd_request *q);
/* In a step: is the portion over? */
bool kvpd_request_over(const struct kvpd_request *q);

#endif
