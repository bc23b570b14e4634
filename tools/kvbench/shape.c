/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of KV caches: well-known ones by name, others from a model's config.json. */
#include "tools/kvbench/shape.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/kvp_codec.h"

#define MAX_LAYERS 4096u

static const struct shape known[] = {
	{ "llama-2-7b", 32, 32, 128, 128, KVP_DTYPE_F16 },
	{ "llama-2-13b", 40, 40, 128, 128, KVP_DTYPE_F16 },
	{ "llama-2-70b", 80, 8, 128, 128, KVP_DTYPE_F16 },
	{ "llama-3.1-8b", 32, 8, 128, 128, KVP_DTYPE_BF16 },
	{ "llama-3.1-70b", 80, 8, 128, 128, KVP_DTYPE_BF16 },
	{ "llama-3.1-405b", 126, 8, 128, 128, KVP_DTYPE_BF16 },
	{ "llama-3.2-1b", 16, 8, 64, 64, KVP_DTYPE_BF16 },
	{ "llama-3.2-3b", 28, 8, 128, 128, KVP_DTYPE_BF16 },
	{ "mistral-7b", 32, 8, 128, 128, KVP_DTYPE_BF16 },
	{ "mixtral-8x7b", 32, 8, 128, 128, KVP_DTYPE_BF16 },
	{ "qwen2.5-7b", 28, 4, 128, 128, KVP_DTYPE_BF16 },
	{ "qwen2.5-14b", 48, 8, 128, 128, KVP_DTYPE_BF16 },
	{ "qwen2.5-32b", 64, 8, 128, 128, KVP_DTYPE_BF16 },
	{ "qwen2.5-72b", 80, 8, 128, 128, KVP_DTYPE_BF16 },
	{ "qwen3-8b", 36, 8, 128, 128, KVP_DTYPE_BF16 },
	{ "qwen3-32b", 64, 8, 128, 128, KVP_DTYPE_BF16 },
	{ "deepseek-v3", 61, 1, 576, 0, KVP_DTYPE_BF16 },
};
#define N_KNOWN (sizeof(known) / sizeof(known[0]))

const char *shape_name(size_t i)
{
	return i < N_KNOWN ? known[i].name : NULL;
}

/* The first of these members that is a number; 0: none is. */
static uint32_t number(const json_t *config, const char *a, const char *b, const char *c)
{
	const char *const names[] = { a, b, c };

	for (size_t i = 0; i < 3 && names[i]; i++) {
		json_int_t n = json_integer_value(json_object_get(config, names[i]));

		if (n > 0)
			return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
	}
	return 0;
}

static uint32_t dtype_of(const json_t *config)
{
	static const struct {
		const char *name;
		uint32_t dtype;
	} types[] = {
		{ "float32", KVP_DTYPE_F32 },
		{ "float16", KVP_DTYPE_F16 },
		{ "bfloat16", KVP_DTYPE_BF16 },
	};
	const char *text = json_string_value(json_object_get(config, "torch_dtype"));

	if (!text)
		text = json_string_value(json_object_get(config, "dtype"));
	for (size_t i = 0; text && i < sizeof(types) / sizeof(types[0]); i++)
		if (!strcmp(text, types[i].name))
			return types[i].dtype;
	return KVP_DTYPE_F16;
}

/* Layers with a state of constant size have no keys and values. */
static uint32_t layers_of(const json_t *config)
{
	uint32_t n = number(config, "num_hidden_layers", "n_layer", "num_layers");
	const json_t *types = json_object_get(config, "layer_types"), *type;
	uint32_t without = 0;
	size_t i;

	json_array_foreach(types, i, type) {
		const char *text = json_string_value(type);

		without += text && (!strcmp(text, "linear_attention") || !strcmp(text, "mamba") ||
					   !strcmp(text, "recurrent"));
	}
	return without < n ? n - without : 0;
}

static int understand(const json_t *config, struct shape *s)
{
	uint32_t q_heads = number(config, "num_attention_heads", "n_head", "num_heads");
	uint32_t latent = number(config, "kv_lora_rank", NULL, NULL);
	uint32_t width = number(config, "hidden_size", "n_embd", "d_model");

	s->layers = layers_of(config);
	s->heads = number(config, "num_key_value_heads", "num_kv_heads", NULL);
	s->heads = s->heads ? s->heads : q_heads;
	s->k_dim = number(config, "head_dim", NULL, NULL);
	if (!s->k_dim && q_heads)
		s->k_dim = width / q_heads;
	s->v_dim = s->k_dim;
	s->dtype = dtype_of(config);
	if (latent) {
		uint32_t rope = number(config, "qk_rope_head_dim", NULL, NULL);

		s->heads = 1;
		s->k_dim = rope <= UINT32_MAX - latent ? latent + rope : 0;
		s->v_dim = 0;
	}
	return s->layers && s->layers <= MAX_LAYERS && s->heads &&
			       s->heads <= KVP_PLANE_HEADS_MAX && s->k_dim >= KVP_PLANE_DIM_MIN &&
			       s->k_dim <= KVP_PLANE_DIM_MAX
		       ? 0
		       : -EINVAL;
}

static int from_file(const char *path, char *error, size_t bytes, struct shape *ret)
{
	json_error_t at;
	json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &at), *text;
	struct shape s = { .name = "" };
	int r;

	if (!root) {
		if (at.line < 0) /* jansson's words have the path */
			snprintf(error, bytes, "%s", at.text);
		else
			snprintf(error, bytes, "%.200s: line %d: %s", path, at.line, at.text);
		return -EINVAL;
	}
	/* Models that see or hear too have their language model's members in one of their own. */
	text = json_object_get(root, "text_config");
	r = understand(json_is_object(text) ? text : root, &s);
	snprintf(s.name, sizeof(s.name), "%.127s", path);
	json_decref(root);
	if (r < 0)
		snprintf(error, bytes,
			"%.200s: num_hidden_layers, num_attention_heads, hidden_size and the like "
			"are "
			"missing, or too large",
			path);
	else
		*ret = s;
	return r;
}

int shape_find(const char *what, char *ret_error, size_t error_bytes, struct shape *ret_shape)
{
	char path[4096];
	struct stat st;
	size_t used;

	for (size_t i = 0; i < N_KNOWN; i++)
		if (!strcmp(what, known[i].name)) {
			*ret_shape = known[i];
			return 0;
		}
	if (stat(what, &st) < 0) {
		used = (size_t)snprintf(ret_error, error_bytes,
			"'%.200s' is no file, no folder, and none of:", what);
		for (size_t i = 0; i < N_KNOWN && used < error_bytes; i++)
			used += (size_t)snprintf(
				ret_error + used, error_bytes - used, " %s", known[i].name);
		return -ENOENT;
	}
	snprintf(path, sizeof(path), S_ISDIR(st.st_mode) ? "%.4000s/config.json" : "%.4000s", what);
	return from_file(path, ret_error, error_bytes, ret_shape);
}
