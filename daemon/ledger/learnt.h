/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What quality windows have learnt outlives the daemon: between the ledger and the files of learnt_file.h
 * stands a thread of its own, of low priority, and nobody waits for it or for the disk.
 *
 * A space with a floor begins with what its codec allows and asks what is known of it; when the answer comes, and
 * its window has not decided anything meanwhile, it goes on from there. Only of checks does it learn how long its
 * sequences are: until the window's first decision it asks anew whenever that is another power of two. The ledger
 * hands over what a window has come to, once a second at most and for KVPD_LEARNT_JOBS spaces of a tenant at a time: after
 * each change, each twenty scores, when space or tenant go, and at the daemon's end. A job that the disk holds up holds
 * up later ones alone, and the daemon's end for some seconds; what is not written goes with the daemon.
 *
 * What was learnt with one calibration says nothing of another: the calibration is a part of who a space is, and a space
 * that has one begins as no neighbour.
 *
 * A space's window is one for all its layers, and so is what is turned by it. Rows of layers have that width, and
 * the mean of what checks found of that layer.
 *
 * Files go by the tenant's name. All of it is off without `state_dir`, and then costs nothing.
 */
#ifndef KVPD_LEARNT_H
#define KVPD_LEARNT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/config.h"
#include "daemon/ledger/learnt_file.h"

struct kvpd_ledger;
struct kvpd_learnt_answer;
struct kvpd_learnt_part;
struct kvpd_tenant;

#define KVPD_LEARNT_JOBS 8u

/* Of a tenant. */
struct kvpd_learner {
	uint64_t changed;        /* spaces with something to be handed over, a bit each */
	uint32_t saving, asking; /* jobs under way */
};

/* Of a space. */
struct kvpd_learnt_start {
	char id[KVPD_LEARNT_ID];
	uint32_t context; /* that was asked for last */
	uint32_t origin;  /* of the width that it began with: KVP_ORIGIN_* */
	uint32_t scores;  /* since something was handed over */
	bool asking;
};

/* Still privileged: the folder of the configuration, if there is one that will do. Else a warning. */
void kvpd_learnt_begin(struct kvpd_ledger *l, const struct kvpd_config *config);

/* A space was entered, and is live; it goes, and still is. */
void kvpd_learnt_enter(struct kvpd_tenant *t, uint32_t space);
void kvpd_learnt_leave(struct kvpd_tenant *t, uint32_t space);
/* Its window has another score, and perhaps another width. */
void kvpd_learnt_scored(struct kvpd_tenant *t, uint32_t space, bool changed);
/* A chore: hands over what has changed, a space at a time. */
bool kvpd_learnt_step(struct kvpd_tenant *t, uint64_t now);
/* All that there is to be handed over, at a tenant's end. */
void kvpd_learnt_flush(struct kvpd_tenant *t);
/*
 * At the daemon's end, when its sessions have ended: the same of all tenants, and waits until it is written, for
 * l->store_ns at most. False: the disk has not answered, what is lost is in the log, and the store's thread may still be
 * at it (kvpd_worker_stop_within()).
 */
#define KVPD_LEARNT_END_NS UINT64_C(10000000000)
bool kvpd_learnt_end(struct kvpd_ledger *l);

/* ---- what administrators ask of the files: one question at a time, see learnt_admin.c */

struct kvpd_learnt_question {
	uint64_t number; /* of the last one */
	bool running;
	int status;
	char why[KVPD_LEARNT_WHY];
	bool import;
	struct kvpd_learnt_answer *answer;
	uint32_t imported;
	/* What is to be imported, as far as it has come, and for whom; "": all has come. */
	struct kvpd_learnt_part *parts;
	uint32_t n_parts, rows;
	char tenant[KVPD_LEARNT_NAME];
};

void kvpd_learnt_question_fini(struct kvpd_learnt_question *q);

#endif
