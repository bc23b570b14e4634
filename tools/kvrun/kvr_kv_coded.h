/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store whose sealed blocks are attended in a codec; the block being written is native.
 *
 * KVR_SHADOW: beside each sealed block of another store, shared or private, lies a copy in the
 * codec. It costs memory and saves bandwidth; a block that the codec cannot hold, or a copy that
 * cannot be read, is attended natively instead.
 * KVR_PRIMARY: the copy is all there is. One block of native memory serves the whole sequence; a
 * block that the codec cannot hold stays native.
 *
 * What later tokens become depends on what the codec made of earlier ones. Engines may share native
 * blocks of a shadowed store only if they run the same codec: tell the shared store its name
 * (struct kvr_pool_opts).
 */
#ifndef KVR_KV_CODED_H
#define KVR_KV_CODED_H

#include "tools/kvrun/kvr_config.h"
#include "tools/kvrun/kvr_error.h"
#include "tools/kvrun/kvr_kv.h"

enum kvr_coded_mode {
	KVR_SHADOW,
	KVR_PRIMARY,
};

struct kvr_coded_opts {
	uint32_t codec[2]; /* of K, of V */
	enum kvr_coded_mode mode;
	int tiles; /* attend by tiles or bytes (KVP_CPU_TILES, KVP_CPU_BYTES): less exactly */
};

struct kvr_coded_report {
	uint32_t blocks; /* of the last sequence that are in the codec */
	uint64_t bytes;  /* of their payloads */
	/* Of native blocks, shared ones too, and of the one that is kept for later. */
	uint64_t native_bytes;
	uint64_t errors; /* since the store was made; see struct kvr_coding */
};

/*
 * `native` is the store to shadow, owned by the new one from then on; NULL if the mode is primary.
 * `geom` is its geometry. -EINVAL: a codec cannot hold blocks of this model, or needs what kvrun
 * does not give it (a calibration, widths); ret_error says which. -ENOMEM.
 */
int kvr_kv_coded_new(const struct kvr_config *config, const struct kvr_geom *geom,
	const struct kvr_coded_opts *opts, struct kvr_kv *native, struct kvr_error *ret_error,
	struct kvr_kv **ret_kv);

/* `kv` must come from kvr_kv_coded_new(). Valid also after the sequence has ended. */
void kvr_kv_coded_report(struct kvr_kv *kv, struct kvr_coded_report *ret_report);

#endif
