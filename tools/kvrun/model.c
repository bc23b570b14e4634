/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a model: safetensors with a config.json, or a llama2.c file; all weights in one arena. */
#include "tools/kvrun/kvr_model.h"
#include "tools/kvrun/kvr_file.h"
#include "tools/kvrun/kvr_safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define STAGE_BYTES (256u << 10) /* a multiple of every element size */

/* A weight file read once from front to back and hashed on the way. */
struct source {
	const char *path;
	int fd;
	uint64_t bytes;
	XXH3_state_t *hash;
	uint8_t *stage;
};

static int source_open(const char *path, struct kvr_error *err, struct source *s)
{
	s->path = path;
	s->hash = XXH3_createState();
	s->stage = malloc(STAGE_BYTES);
	if (!s->hash || !s->stage)
		return kvr_fail(err, -ENOMEM, "%s: no memory", path);
	XXH3_128bits_reset(s->hash);
	return kvr_file_open(path, err, &s->fd, &s->bytes);
}

static void source_close(struct source *s)
{
	if (s->fd >= 0)
		close(s->fd);
	XXH3_freeState(s->hash);
	free(s->stage);
}

static int source_read(struct source *s, void *buf, size_t bytes, struct kvr_error *err)
{
	int r = kvr_file_read(s->fd, s->path, buf, bytes, err);

	if (r == 0)
		XXH3_128bits_update(s->hash, buf, bytes);
	return r;
}

/* `dst` NULL: the elements are only hashed. */
static int source_read_weights(
	struct source *s, enum kvr_dtype dtype, uint64_t count, float *dst, struct kvr_error *err)
{
	size_t size = kvr_dtype_bytes(dtype);

	while (count > 0) {
		uint64_t n = count < STAGE_BYTES / size ? count : STAGE_BYTES / size;
		int r = source_read(s, s->stage, n * size, err);

		if (r < 0)
			return r;
		if (dst) {
			kvr_widen(dtype, s->stage, n, dst);
			dst += n;
		}
		count -= n;
	}
	return 0;
}

static void source_digest(const struct source *s, struct kvr_model *m)
{
	XXH128_hash_t h = XXH3_128bits_digest(s->hash);

	m->digest_lo = h.low64;
	m->digest_hi = h.high64;
}

/* Hands out the next `count` floats of the arena, or only counts them while there is none. */
static float *carve(float *arena, uint64_t *at, uint64_t count)
{
	float *p = arena ? arena + *at : NULL;

	*at += (count + 15) & ~UINT64_C(15); /* keeps every matrix on a cache line */
	return p;
}

static uint64_t place(struct kvr_model *m, float *arena)
{
	const struct kvr_config *c = &m->config;
	uint64_t q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;
	uint64_t h = c->hidden, at = 0;

	m->embedding = carve(arena, &at, c->vocab * h);
	m->norm_final = carve(arena, &at, h);
	m->classifier = c->tied ? m->embedding : carve(arena, &at, c->vocab * h);
	for (uint32_t i = 0; i < c->layers; i++) {
		struct kvr_layer *l = &m->layer[i];

		l->norm_attn = carve(arena, &at, h);
		l->wq = carve(arena, &at, q * h);
		l->wk = carve(arena, &at, kv * h);
		l->wv = carve(arena, &at, kv * h);
		l->wo = carve(arena, &at, h * q);
		l->norm_ffn = carve(arena, &at, h);
		l->w_gate = carve(arena, &at, c->ffn * h);
		l->w_up = carve(arena, &at, c->ffn * h);
		l->w_down = carve(arena, &at, h * c->ffn);
	}
	return at;
}

/*
 * Called only once the file is known to hold all the weights: what a hostile configuration can make
 * us allocate is then bounded by the size of the file.
 */
static int alloc_weights(struct kvr_model *m)
{
	void *arena;

	m->layer = calloc(m->config.layers, sizeof(*m->layer));
	if (!m->layer)
		return -ENOMEM;
	if (posix_memalign(&arena, 64, place(m, NULL) * sizeof(float)) != 0)
		return -ENOMEM;
	m->arena = arena;
	place(m, m->arena);
	return 0;
}

/* The tensors of the Hugging Face layout; layer -1 stands for those outside the layers. */
struct want {
	const char *suffix;
	int layer;
	uint64_t rows; /* 0: a vector */
	uint64_t cols;
	float *dst;
};

#define WANTS_PER_LAYER 9
#define WANTS_OUTSIDE   3

static uint32_t list_wants(const struct kvr_model *m, struct want *w)
{
	static const struct kvr_layer unplaced;
	const struct kvr_config *c = &m->config;
	uint64_t q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;
	uint64_t h = c->hidden, f = c->ffn;
	uint32_t n = 0;

	w[n++] = (struct want){ "model.embed_tokens.weight", -1, c->vocab, h, m->embedding };
	w[n++] = (struct want){ "model.norm.weight", -1, 0, h, m->norm_final };
	if (!c->tied)
		w[n++] = (struct want){ "lm_head.weight", -1, c->vocab, h, m->classifier };
	for (int i = 0; i < (int)c->layers; i++) {
		const struct kvr_layer *l = m->layer ? &m->layer[i] : &unplaced;

		w[n++] = (struct want){ "input_layernorm.weight", i, 0, h, l->norm_attn };
		w[n++] = (struct want){ "self_attn.q_proj.weight", i, q, h, l->wq };
		w[n++] = (struct want){ "self_attn.k_proj.weight", i, kv, h, l->wk };
		w[n++] = (struct want){ "self_attn.v_proj.weight", i, kv, h, l->wv };
		w[n++] = (struct want){ "self_attn.o_proj.weight", i, h, q, l->wo };
		w[n++] = (struct want){ "post_attention_layernorm.weight", i, 0, h, l->norm_ffn };
		w[n++] = (struct want){ "mlp.gate_proj.weight", i, f, h, l->w_gate };
		w[n++] = (struct want){ "mlp.up_proj.weight", i, f, h, l->w_up };
		w[n++] = (struct want){ "mlp.down_proj.weight", i, h, f, l->w_down };
	}
	return n;
}

static void want_name(const struct want *w, char name[static 96])
{
	if (w->layer < 0)
		snprintf(name, 96, "%s", w->suffix);
	else
		snprintf(name, 96, "model.layers.%d.%s", w->layer, w->suffix);
}

static int weight_dtype(enum kvr_st_dtype st, enum kvr_dtype *ret_dtype)
{
	if (st == KVR_ST_F32)
		*ret_dtype = KVR_F32;
	else if (st == KVR_ST_F16)
		*ret_dtype = KVR_F16;
	else if (st == KVR_ST_BF16)
		*ret_dtype = KVR_BF16;
	else
		return -ENOTSUP;
	return 0;
}

static int check_want(const struct want *w, const char *name, const struct kvr_st_tensor *t,
	struct kvr_error *err)
{
	enum kvr_dtype dtype;
	int fits;

	if (!t)
		return kvr_fail(err, -EINVAL,
			"tensor \"%s\" is missing: file and config.json are not of one model",
			name);
	if (weight_dtype(t->dtype, &dtype) < 0)
		return kvr_fail(err, -ENOTSUP,
			"tensor \"%s\" is %s; only F32, F16 and BF16 are supported", name,
			kvr_st_dtype_name(t->dtype));
	fits = w->rows ? t->n_dims == 2 && t->dims[0] == w->rows && t->dims[1] == w->cols
		       : t->n_dims == 1 && t->dims[0] == w->cols;
	if (!fits && w->rows)
		return kvr_fail(err, -EINVAL,
			"tensor \"%s\" must have the shape [%" PRIu64 ", %" PRIu64
			"] by config.json",
			name, w->rows, w->cols);
	if (!fits)
		return kvr_fail(err, -EINVAL,
			"tensor \"%s\" must have the shape [%" PRIu64 "] by config.json", name,
			w->cols);
	return 0;
}

/* Tensors that older files carry although they are derived or duplicates. */
static int ignorable(const char *name, int tied)
{
	static const char inv_freq[] = ".rotary_emb.inv_freq";
	size_t n = strlen(name), m = sizeof(inv_freq) - 1;

	return (n > m && strcmp(name + n - m, inv_freq) == 0) ||
	       (tied && strcmp(name, "lm_head.weight") == 0);
}

/* Pairs tensors with their destinations, both ways: each wanted one is there, no other is. */
static int match_tensors(struct kvr_model *m, struct kvr_st *st, struct kvr_error *err)
{
	struct want *w;
	char name[96];
	uint32_t n;
	int r = 0;

	w = calloc(WANTS_OUTSIDE + WANTS_PER_LAYER * (size_t)m->config.layers, sizeof(*w));
	if (!w)
		return -ENOMEM;
	n = list_wants(m, w);
	for (uint32_t i = 0; i < n && r == 0; i++) {
		want_name(&w[i], name);
		r = check_want(&w[i], name, kvr_st_find(st, name), err);
	}
	if (r == 0)
		r = alloc_weights(m);
	if (r == 0)
		n = list_wants(m, w); /* again, now with destinations */
	for (uint32_t i = 0; i < n && r == 0; i++) {
		want_name(&w[i], name);
		kvr_st_find(st, name)->dst = w[i].dst;
	}
	for (size_t i = 0; i < st->n_tensors && r == 0; i++)
		if (!st->tensors[i].dst && !ignorable(st->tensors[i].name, m->config.tied))
			r = kvr_fail(err, -ENOTSUP,
				"tensor \"%s\" is not part of a Llama model without biases; "
				"leaving it out would give other results than the model's",
				st->tensors[i].name);
	free(w);
	return r;
}

static int read_st_header(struct source *s, struct kvr_error *err, struct kvr_st *ret_st)
{
	uint8_t prefix[8];
	size_t bytes;
	char *json;
	int r;

	if (s->bytes < sizeof(prefix))
		return kvr_fail(err, -EINVAL, "only %" PRIu64 " bytes: it is truncated", s->bytes);
	r = source_read(s, prefix, sizeof(prefix), err);
	if (r == 0)
		r = kvr_st_header_length(prefix, s->bytes, err, &bytes);
	if (r < 0)
		return r;
	json = malloc(bytes);
	if (!json)
		return -ENOMEM;
	r = source_read(s, json, bytes, err);
	if (r == 0)
		r = kvr_st_parse(json, bytes, s->bytes, err, ret_st);
	free(json);
	return r;
}

static int load_safetensors(struct kvr_model *m, struct source *s, struct kvr_error *err)
{
	struct kvr_st st;
	int r = read_st_header(s, err, &st);

	if (r < 0)
		return r;
	r = match_tensors(m, &st, err);
	for (size_t i = 0; i < st.n_tensors && r == 0; i++) {
		struct kvr_st_tensor *t = &st.tensors[i];
		enum kvr_dtype dtype;

		if (weight_dtype(t->dtype, &dtype) < 0)
			r = kvr_fail(err, -ENOTSUP, "tensor \"%s\" is %s", t->name,
				kvr_st_dtype_name(t->dtype));
		else
			r = source_read_weights(s, dtype,
				(t->end - t->begin) / kvr_dtype_bytes(dtype), t->dst, err);
	}
	kvr_st_done(&st);
	return r;
}

/* Puts the file's name in front of a message that a parser left without one. */
static int name_file(struct kvr_error *err, int code, const char *path)
{
	struct kvr_error inner = *err;

	if (strncmp(inner.text, path, strlen(path)) == 0)
		return code;
	return kvr_fail(
		err, code, "%s: %.400s", path, inner.text[0] ? inner.text : strerror(-code));
}

static int open_hf(const char *dir, struct kvr_error *err, struct kvr_model *m)
{
	char config_path[4096], weights_path[4096], *json;
	struct source s = { .fd = -1 };
	size_t bytes;
	int r;

	if (snprintf(weights_path, sizeof(weights_path), "%s/model.safetensors", dir) >=
		(int)sizeof(weights_path))
		return kvr_fail(err, -ENAMETOOLONG, "the path of the model is too long");
	snprintf(config_path, sizeof(config_path), "%s/config.json", dir);
	r = kvr_file_load(config_path, KVR_CONFIG_MAX_BYTES, err, &json, &bytes);
	if (r < 0)
		return r;
	r = kvr_config_parse(json, bytes, err, &m->config);
	if (r < 0) {
		free(json);
		return name_file(err, r, config_path);
	}
	r = source_open(weights_path, err, &s);
	if (r == 0) {
		/* theta, epsilon and the like change keys and values just as weights do */
		XXH3_128bits_update(s.hash, json, bytes);
		r = load_safetensors(m, &s, err);
	}
	if (r == 0)
		source_digest(&s, m);
	source_close(&s);
	free(json);
	return r < 0 ? name_file(err, r, weights_path) : 0;
}

static int32_t load_i32le(const uint8_t *p)
{
	return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
			 (uint32_t)p[3] << 24);
}

static int parse_v0_header(const uint8_t raw[28], struct kvr_error *err, struct kvr_config *c)
{
	int32_t v[7];

	for (int i = 0; i < 7; i++)
		v[i] = load_i32le(raw + 4 * i);
	*c = (struct kvr_config){
		.norm_eps = 1e-5f,
		.rope_theta = 10000,
		.rope_pairs = KVR_ROPE_NEIGHBOURS,
		.tied = v[5] > 0,
		.bos = 1,
		.eos = { 1, 2 }, /* these models end a story with the next one's BOS */
		.n_eos = 2,
		.dtype = KVR_F32,
	};
	if (v[5] < 0 && v[5] != INT32_MIN)
		v[5] = -v[5];
	for (int i = 0; i < 7; i++)
		if (v[i] <= 0)
			return kvr_fail(err, -EINVAL,
				"not a llama2.c \"v0\" model (for the Hugging Face layout name the "
				"directory that holds config.json)");
	c->hidden = (uint32_t)v[0];
	c->ffn = (uint32_t)v[1];
	c->layers = (uint32_t)v[2];
	c->heads = (uint32_t)v[3];
	c->kv_heads = (uint32_t)v[4];
	c->vocab = (uint32_t)v[5];
	c->context = (uint32_t)v[6];
	if (c->hidden % c->heads)
		return kvr_fail(err, -EINVAL, "the hidden size %u is no multiple of %u heads",
			c->hidden, c->heads);
	c->head_dim = c->hidden / c->heads;
	return kvr_config_check(c, err);
}

/* Number of fp32 in the file behind its header, frequency tables included. */
static uint64_t v0_floats(const struct kvr_config *c)
{
	uint64_t h = c->hidden, kv = (uint64_t)c->kv_heads * c->head_dim, v = c->vocab;
	uint64_t layer = 2 * h + 2 * h * h + 2 * kv * h + 3 * (uint64_t)c->ffn * h;

	return v * h + c->layers * layer + h + (uint64_t)c->context * c->head_dim +
	       (c->tied ? 0 : v * h);
}

static int load_v0(struct kvr_model *m, struct source *s, struct kvr_error *err)
{
	const struct kvr_config *c = &m->config;
	uint64_t h = c->hidden, kv = (uint64_t)c->kv_heads * c->head_dim, f = c->ffn;
	const struct {
		size_t member;
		uint64_t count;
	} order[] = {
		{ offsetof(struct kvr_layer, norm_attn), h },
		{ offsetof(struct kvr_layer, wq), h * h },
		{ offsetof(struct kvr_layer, wk), kv * h },
		{ offsetof(struct kvr_layer, wv), kv * h },
		{ offsetof(struct kvr_layer, wo), h * h },
		{ offsetof(struct kvr_layer, norm_ffn), h },
		{ offsetof(struct kvr_layer, w_gate), f * h },
		{ offsetof(struct kvr_layer, w_down), h * f },
		{ offsetof(struct kvr_layer, w_up), f * h },
	};
	int r = source_read_weights(s, KVR_F32, c->vocab * h, m->embedding, err);

	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		for (uint32_t l = 0; l < c->layers && r == 0; l++) {
			float *dst;

			memcpy(&dst, (char *)&m->layer[l] + order[i].member, sizeof(dst));
			r = source_read_weights(s, KVR_F32, order[i].count, dst, err);
		}
	}
	if (r == 0)
		r = source_read_weights(s, KVR_F32, h, m->norm_final, err);
	if (r == 0) /* two tables of context * head_dim / 2: derived from theta, not needed */
		r = source_read_weights(s, KVR_F32, (uint64_t)c->context * c->head_dim, NULL, err);
	if (r == 0 && !c->tied)
		r = source_read_weights(s, KVR_F32, c->vocab * h, m->classifier, err);
	return r;
}

static int open_v0(const char *path, struct kvr_error *err, struct kvr_model *m)
{
	struct source s = { .fd = -1 };
	uint8_t raw[28];
	uint64_t want;
	int r = source_open(path, err, &s);

	if (r == 0 && s.bytes < sizeof(raw))
		r = kvr_fail(err, -EINVAL, "only %" PRIu64 " bytes: not a model", s.bytes);
	if (r == 0)
		r = source_read(&s, raw, sizeof(raw), err);
	if (r == 0)
		r = parse_v0_header(raw, err, &m->config);
	if (r == 0) {
		want = sizeof(raw) + 4 * v0_floats(&m->config);
		if (s.bytes != want)
			r = kvr_fail(err, -EINVAL,
				"%" PRIu64 " bytes where the header asks for %" PRIu64
				": it is truncated or not a llama2.c \"v0\" model",
				s.bytes, want);
	}
	if (r == 0)
		r = alloc_weights(m);
	if (r == 0)
		r = load_v0(m, &s, err);
	if (r == 0)
		source_digest(&s, m);
	source_close(&s);
	return r < 0 ? name_file(err, r, path) : 0;
}

static char *last_component(const char *path)
{
	size_t n = strlen(path), from;

	while (n > 1 && path[n - 1] == '/')
		n--;
	for (from = n; from > 0 && path[from - 1] != '/'; from--)
		;
	return strndup(path + from, n - from);
}

int kvr_model_open(const char *path, struct kvr_error *err, struct kvr_model **ret_model)
{
	struct kvr_error unused;
	struct kvr_model *m;
	struct stat st;
	int r;

	if (!err)
		err = &unused;
	err->text[0] = '\0';
	if (stat(path, &st) < 0) {
		r = -errno;
		return kvr_fail(err, r, "%s: %s", path, strerror(-r));
	}
	m = calloc(1, sizeof(*m));
	if (!m)
		return kvr_fail(err, -ENOMEM, "%s: no memory", path);
	m->name = last_component(path);
	if (!m->name)
		r = kvr_fail(err, -ENOMEM, "%s: no memory", path);
	else
		r = S_ISDIR(st.st_mode) ? open_hf(path, err, m) : open_v0(path, err, m);
	if (r < 0) {
		kvr_model_free(m);
		return r;
	}
	*ret_model = m;
	return 0;
}

struct kvr_model *kvr_model_free(struct kvr_model *model)
{
	if (model) {
		free(model->arena);
		free(model->layer);
		free(model->name);
		free(model);
	}
	return NULL;
}
