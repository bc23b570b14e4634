/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model in memory: its configuration and its weights, widened to fp32. Read-only once loaded;
 * any number of threads may use one model.
 */
#ifndef KVR_MODEL_H
#define KVR_MODEL_H

#include "tools/kvrun/kvr_config.h"
#include "tools/kvrun/kvr_error.h"

#include <stdint.h>

/* Matrices are row-major [out][in], 64-byte aligned, owned by the model. */
struct kvr_layer {
	float *norm_attn; /* [hidden] */
	float *wq;        /* [heads * head_dim][hidden] */
	float *wk;        /* [kv_heads * head_dim][hidden] */
	float *wv;        /* [kv_heads * head_dim][hidden] */
	float *wo;        /* [hidden][heads * head_dim] */
	float *norm_ffn;  /* [hidden] */
	float *w_gate;    /* [ffn][hidden] */
	float *w_up;      /* [ffn][hidden] */
	float *w_down;    /* [hidden][ffn] */
};

struct kvr_model {
	struct kvr_config config;
	char *name;         /* last component of the path */
	uint64_t digest_lo; /* XXH3-128 over the weight file: tells checkpoints apart */
	uint64_t digest_hi;
	float *embedding;  /* [vocab][hidden] */
	float *norm_final; /* [hidden] */
	float *classifier; /* [vocab][hidden]; the embedding itself when tied */
	struct kvr_layer *layer;
	float *arena; /* holds all of the above */
};

/*
 * Loads what `path` names: a directory with config.json and model.safetensors (Llama in the
 * Hugging Face layout, fp32, fp16 or bf16), or a file in the llama2.c "v0" layout. Every value of
 * either is checked before it is used. Errors carry a message that begins with the file's name:
 * -ENOENT and other errnos of open and read, -EINVAL (damaged), -ENOTSUP (a model of another
 * kind), -ENOMEM.
 */
int kvr_model_open(const char *path, struct kvr_error *err, struct kvr_model **ret_model);

/* Accepts NULL; returns NULL. */
struct kvr_model *kvr_model_free(struct kvr_model *model);

#endif
