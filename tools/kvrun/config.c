/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and bounds a model's config.json; members that would change the arithmetic are refused. */
#include "tools/kvrun/kvr_config.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

static int bounded(
	const char *name, uint64_t value, uint64_t min, uint64_t max, struct kvr_error *err)
{
	if (value >= min && value <= max)
		return 0;
	return kvr_fail(err, -EINVAL, "%s is %llu, must be %llu..%llu", name,
		(unsigned long long)value, (unsigned long long)min, (unsigned long long)max);
}

int kvr_config_check(const struct kvr_config *c, struct kvr_error *err)
{
	int r;

	if ((r = bounded("the number of layers", c->layers, 1, KVR_MAX_LAYERS, err)) < 0 ||
		(r = bounded("the hidden size", c->hidden, 1, KVR_MAX_HIDDEN, err)) < 0 ||
		(r = bounded("the feed-forward size", c->ffn, 1, KVR_MAX_FFN, err)) < 0 ||
		(r = bounded("the number of query heads", c->heads, 1, KVR_MAX_HEADS, err)) < 0 ||
		(r = bounded("the number of KV heads", c->kv_heads, 1, c->heads, err)) < 0 ||
		(r = bounded("the head dimension", c->head_dim, 2, KVR_MAX_HEAD_DIM, err)) < 0 ||
		(r = bounded("the vocabulary size", c->vocab, 2, KVR_MAX_VOCAB, err)) < 0 ||
		(r = bounded("the context", c->context, 1, KVR_MAX_CONTEXT, err)) < 0 ||
		(r = bounded("the BOS token", c->bos, 0, c->vocab - 1, err)) < 0)
		return r;
	for (uint32_t i = 0; i < c->n_eos; i++)
		if ((r = bounded("the EOS token", c->eos[i], 0, c->vocab - 1, err)) < 0)
			return r;
	if (c->heads % c->kv_heads)
		return kvr_fail(err, -EINVAL, "%u query heads are no multiple of %u KV heads",
			c->heads, c->kv_heads);
	if (c->head_dim % 2)
		return kvr_fail(err, -EINVAL, "the head dimension %u is odd", c->head_dim);
	if (!(c->norm_eps > 0 && c->norm_eps < 1))
		return kvr_fail(err, -EINVAL, "the norm's epsilon must lie between 0 and 1");
	if (!(c->rope_theta >= 1 && c->rope_theta <= 1e12))
		return kvr_fail(err, -EINVAL, "rope_theta must lie between 1 and 1e12");
	return 0;
}

/* An absent or null member takes `fallback`; KVR_REQUIRED says that there is none. */
#define KVR_REQUIRED INT64_C(-1)

static int get_u32(const json_t *root, const char *name, int64_t fallback, struct kvr_error *err,
	uint32_t *ret_value)
{
	const json_t *v = json_object_get(root, name);
	json_int_t n = fallback;

	if (v && !json_is_null(v)) {
		if (!json_is_integer(v))
			return kvr_fail(err, -EINVAL, "\"%s\" must be an integer", name);
		n = json_integer_value(v);
	} else if (fallback == KVR_REQUIRED) {
		return kvr_fail(err, -EINVAL, "\"%s\" is missing", name);
	}
	if (n < 0 || n > UINT32_MAX)
		return kvr_fail(err, -EINVAL, "\"%s\" is %lld, out of range", name, (long long)n);
	*ret_value = (uint32_t)n;
	return 0;
}

static int get_double(const json_t *root, const char *name, double fallback, struct kvr_error *err,
	double *ret_value)
{
	const json_t *v = json_object_get(root, name);

	if (v && !json_is_null(v) && !json_is_number(v))
		return kvr_fail(err, -EINVAL, "\"%s\" must be a number", name);
	*ret_value = json_is_number(v) ? json_number_value(v) : fallback;
	return 0;
}

static int get_bool(
	const json_t *root, const char *name, int fallback, struct kvr_error *err, int *ret_value)
{
	const json_t *v = json_object_get(root, name);

	if (v && !json_is_null(v) && !json_is_boolean(v))
		return kvr_fail(err, -EINVAL, "\"%s\" must be true or false", name);
	*ret_value = json_is_boolean(v) ? json_is_true(v) : fallback;
	return 0;
}

static int is_string(const json_t *v, const char *want)
{
	return json_is_string(v) && strcmp(json_string_value(v), want) == 0;
}

static const char *string_or(const json_t *v, const char *fallback)
{
	return json_is_string(v) ? json_string_value(v) : fallback;
}

static int check_architecture(const json_t *root, struct kvr_error *err)
{
	const json_t *names = json_object_get(root, "architectures");
	const json_t *type = json_object_get(root, "model_type");
	const json_t *act = json_object_get(root, "hidden_act");
	const json_t *name = json_is_array(names) ? json_array_get(names, 0) : NULL;

	if (!is_string(name, "LlamaForCausalLM") || (type && !is_string(type, "llama")))
		return kvr_fail(err, -ENOTSUP,
			"the architecture is \"%.64s\" (model_type \"%.64s\"); kvrun runs "
			"LlamaForCausalLM only",
			string_or(name, "(none)"), string_or(type, "(none)"));
	if (act && !is_string(act, "silu"))
		return kvr_fail(err, -ENOTSUP, "\"hidden_act\" must be \"silu\"");
	return 0;
}

/* Refuses members that would silently give other numbers than the model's own. */
static int check_unsupported(const json_t *root, struct kvr_error *err)
{
	static const char *const must_be_absent[] = { "quantization_config", "sliding_window" };
	static const char *const must_be_false[] = { "attention_bias", "mlp_bias" };
	double rotary = 1;
	int on, r;

	for (size_t i = 0; i < 2; i++) {
		const json_t *v = json_object_get(root, must_be_absent[i]);

		if (v && !json_is_null(v))
			return kvr_fail(
				err, -ENOTSUP, "\"%s\" is not supported", must_be_absent[i]);
		r = get_bool(root, must_be_false[i], 0, err, &on);
		if (r < 0)
			return r;
		if (on)
			return kvr_fail(
				err, -ENOTSUP, "\"%s\": true is not supported", must_be_false[i]);
	}
	r = get_double(root, "partial_rotary_factor", 1, err, &rotary);
	if (r < 0)
		return r;
	if (rotary < 1 || rotary > 1)
		return kvr_fail(err, -ENOTSUP, "\"partial_rotary_factor\" must be 1");
	return 0;
}

/* theta stands at the top in older files and in "rope_parameters" in newer ones. */
static int parse_rope(const json_t *root, struct kvr_error *err, struct kvr_config *c)
{
	static const char *const objects[] = { "rope_scaling", "rope_parameters" };
	int r = get_double(root, "rope_theta", 10000.0, err, &c->rope_theta);

	for (size_t i = 0; r == 0 && i < 2; i++) {
		const json_t *o = json_object_get(root, objects[i]);
		const json_t *type = json_object_get(o, "rope_type");

		if (!o || json_is_null(o))
			continue;
		if (!json_is_object(o))
			return kvr_fail(err, -EINVAL, "\"%s\" must be an object", objects[i]);
		if (!type)
			type = json_object_get(o, "type");
		if (!is_string(type, "default"))
			return kvr_fail(err, -ENOTSUP,
				"\"%s\" asks for RoPE scaling \"%.32s\"; only \"default\" is "
				"supported",
				objects[i], string_or(type, "(unnamed)"));
		r = get_double(o, "rope_theta", c->rope_theta, err, &c->rope_theta);
	}
	return r;
}

static int parse_eos(const json_t *root, struct kvr_error *err, struct kvr_config *c)
{
	const json_t *eos = json_object_get(root, "eos_token_id");
	size_t n = json_is_array(eos) ? json_array_size(eos) : 1;

	if (!eos || json_is_null(eos))
		return 0;
	if (n > KVR_MAX_EOS)
		return kvr_fail(err, -EINVAL, "more than %u EOS tokens", KVR_MAX_EOS);
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_is_array(eos) ? json_array_get(eos, i) : eos;
		json_int_t id = json_integer_value(v);

		if (!json_is_integer(v) || id < 0 || id > UINT32_MAX)
			return kvr_fail(err, -EINVAL, "\"eos_token_id\" must hold token ids");
		c->eos[c->n_eos++] = (uint32_t)id;
	}
	return 0;
}

static int parse_dtype(const json_t *root, struct kvr_error *err, enum kvr_dtype *ret_dtype)
{
	const json_t *v = json_object_get(root, "torch_dtype");

	if (!v)
		v = json_object_get(root, "dtype");
	if (!v || json_is_null(v) || is_string(v, "float32"))
		*ret_dtype = KVR_F32;
	else if (is_string(v, "float16"))
		*ret_dtype = KVR_F16;
	else if (is_string(v, "bfloat16"))
		*ret_dtype = KVR_BF16;
	else
		return kvr_fail(
			err, -ENOTSUP, "\"torch_dtype\" must be float32, float16 or bfloat16");
	return 0;
}

static int parse_object(const json_t *root, struct kvr_error *err, struct kvr_config *c)
{
	double eps = 0;
	int r;

	if ((r = check_architecture(root, err)) < 0 || (r = check_unsupported(root, err)) < 0 ||
		(r = get_u32(root, "num_hidden_layers", KVR_REQUIRED, err, &c->layers)) < 0 ||
		(r = get_u32(root, "hidden_size", KVR_REQUIRED, err, &c->hidden)) < 0 ||
		(r = get_u32(root, "intermediate_size", KVR_REQUIRED, err, &c->ffn)) < 0 ||
		(r = get_u32(root, "num_attention_heads", KVR_REQUIRED, err, &c->heads)) < 0 ||
		(r = get_u32(root, "num_key_value_heads", c->heads, err, &c->kv_heads)) < 0 ||
		(r = get_u32(root, "head_dim", c->heads ? c->hidden / c->heads : 0, err,
			 &c->head_dim)) < 0 ||
		(r = get_u32(root, "vocab_size", KVR_REQUIRED, err, &c->vocab)) < 0 ||
		(r = get_u32(root, "max_position_embeddings", KVR_REQUIRED, err, &c->context)) <
			0 ||
		(r = get_u32(root, "bos_token_id", 1, err, &c->bos)) < 0 ||
		(r = get_double(root, "rms_norm_eps", 1e-6, err, &eps)) < 0 ||
		(r = get_bool(root, "tie_word_embeddings", 0, err, &c->tied)) < 0 ||
		(r = parse_rope(root, err, c)) < 0 || (r = parse_eos(root, err, c)) < 0 ||
		(r = parse_dtype(root, err, &c->dtype)) < 0)
		return r;
	c->norm_eps = (float)eps;
	return kvr_config_check(c, err);
}

int kvr_config_parse(
	const char *json, size_t bytes, struct kvr_error *err, struct kvr_config *ret_config)
{
	struct kvr_config c = { .rope_pairs = KVR_ROPE_HALF_SPLIT };
	json_error_t jerr;
	json_t *root;
	int r;

	if (bytes > KVR_CONFIG_MAX_BYTES)
		return kvr_fail(
			err, -EINVAL, "larger than %u bytes", (unsigned)KVR_CONFIG_MAX_BYTES);
	root = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &jerr);
	if (!root)
		return kvr_fail(err, -EINVAL, "not valid JSON: line %d column %d: %s", jerr.line,
			jerr.column, jerr.text);
	if (json_is_object(root))
		r = parse_object(root, err, &c);
	else
		r = kvr_fail(err, -EINVAL, "not a JSON object");
	json_decref(root);
	if (r == 0)
		*ret_config = c;
	return r;
}
