/* SPDX-License-Identifier: Apache-2.0 */
/* kvrun as a provider: it computes blocks that other processes want, for as long as nobody stops it. */
#ifndef KVR_SERVE_H
#define KVR_SERVE_H

#include "tools/kvrun/kvr_kv.h"
#include "tools/kvrun/kvr_model.h"
#include "tools/kvrun/kvr_seq.h"

#include <stdint.h>

struct serve_opts {
	int idle;      /* as KVP_SERVE_IDLE */
	uint32_t rate; /* tokens a second; 0: any */
	int json; /* a JSON object for each demand on standard output, else a line on standard error */
};

/*
 * Measures the model, offers what it takes to the daemon of `pool` (from kvr_kv_pool_new()), and computes
 * demands with `seq`, whose blocks end up there, until SIGINT or SIGTERM: 0. A daemon that is not there is
 * waited for. -ENOMEM, -EIO (standard output), errors of kvr_seq_prompt() and kvp_serve_remat().
 */
int serve_others(const struct kvr_model *model, struct kvr_kv *pool, struct kvr_seq *seq,
	const struct serve_opts *opts);

#endif
