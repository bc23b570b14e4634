/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of libclient/kvpool.h that kvrun calls, over one process's memory, with every answer
 * that a daemon may give at the caller's choice: what a real one gives only by chance or by force.
 * Published payloads are mapped without PROT_WRITE. Linked in the library's place.
 */
#ifndef TEST_KVRUN_FAKE_KVPOOL_H
#define TEST_KVRUN_FAKE_KVPOOL_H

#include <stdint.h>

struct fake_kvpool {
	/* what it does */
	int gone;        /* no daemon: as the header says, misses and -ESHUTDOWN */
	int die_after;   /* this many more reserves and commits, then `gone`; < 0: never */
	int no_room;     /* kvp_reserve: -EAGAIN */
	int no_lease;    /* matches carry no lease */
	int other_codec; /* payloads are not native: only kvp_get can read them */
	int coded; /* 1: payloads of whole blocks are in fp8, where kvp_payload_planes() says, */
	int no_planes;      /* which it does not; 2: they do not lie as they have to */
	int damaged;        /* and cannot be read: 1: no magic number, 2: an unknown version */
	int get_fails;      /* kvp_get: -ESTALE */
	uint32_t hidden;    /* blocks that "somebody else" has yet to publish: PENDING */
	uint32_t unmapped;  /* this many matches from now find nothing mapped yet */
	int device;         /* 1: device 1 works, others do not */
	int warm_result;    /* of kvp_warm */
	uint32_t on_device; /* blocks of a prefix that lie there at most, once asked for */
	int want_result;    /* of kvp_want */
	int report_result;  /* of kvp_report_token_attention; 0: it takes all */
	int wait_result;    /* of kvp_wait; 0 also publishes one of the hidden */
	/* what it saw */
	uint32_t matches, claims, grants; /* held now; all 0 when a sequence is over */
	uint32_t warms, asked;            /* tickets, blocks of the last one */
	uint32_t wants;                   /* with a limit of 7 ms each */
	uint32_t reports;                 /* of what was attended to */
	float least, most;                /* sums of their blocks */
	uint32_t waits, commits, partial_commits, spaces;
	char adapter[128]; /* of the space opened last */
};

extern struct fake_kvpool fake;

/* Forgets all blocks and settings. */
void fake_reset(void);

#endif
