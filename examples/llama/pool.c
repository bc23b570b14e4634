/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the cache between state blobs and blocks of the pool. */
#include "pool.h"

#include "blob.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

/* llama.cpp decodes a few tokens slower than many, one by one: half a block of them after each hit. */
#define BLOCK_TOKENS 32u
#define PROBE        3u /* tokens that are decoded to see a state */

struct kvl_pool {
	struct llama_context *ctx;
	struct kvp_client *client;
	struct kvp_space *space;
	struct llb_shape shape;
	uint32_t block_tokens, timeout_ms;
	/* Elements are plain numbers, all layers are alike: the library knows the layout. */
	int plain;
	/* Kept from one prompt to the next: new memory costs more than what is copied into it. */
	uint8_t *blob;
	size_t blob_room;
	uint32_t *cells;
	size_t cells_room;
};

static void say(char why[KVL_WHY], const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, KVL_WHY, format, args);
	va_end(args);
}

/* At least so many bytes; what was in it may be gone. */
static int room(void *at, size_t *have, size_t bytes)
{
	void **p = at;

	if (bytes <= *have)
		return 0;
	free(*p);
	*p = malloc(bytes);
	*have = *p ? bytes : 0;
	return *p ? 0 : -ENOMEM;
}

/* Bytes of the sequence's state, read into pool->blob. */
static int64_t read_state(struct kvl_pool *pool, llama_seq_id seq)
{
	size_t bytes = llama_state_seq_get_size(pool->ctx, seq);
	int r = room(&pool->blob, &pool->blob_room, bytes);

	if (r < 0)
		return r;
	if (bytes == 0 || llama_state_seq_get_data(pool->ctx, pool->blob, bytes, seq) != bytes)
		return -EPROTO;
	return (int64_t)bytes;
}

/* ---- which model ------------------------------------------------------------------------------ */

/* What the context keeps cannot be taken apart by tokens, or not by this program. */
static int refuse(struct llama_context *ctx, const struct llama_model *model, char why[KVL_WHY])
{
	if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model))
		say(why, "the model has recurrent states, which belong to no token");
	else if (llama_model_has_encoder(model))
		say(why, "the model has an encoder");
	else if (llama_model_n_swa(model) > 0)
		say(why, "the model has sliding windows: states lack what has slid out");
	else if (llama_n_ctx(ctx) < PROBE || !llama_get_memory(ctx))
		say(why, "the context has no cache");
	else
		return 0;
	return -EOPNOTSUPP;
}

static int probe(struct kvl_pool *pool, char why[KVL_WHY])
{
	llama_token ids[PROBE] = { 0 };
	int64_t bytes;
	int r = -EPROTO;

	if (llama_decode(pool->ctx, llama_batch_get_one(ids, PROBE)) != 0) {
		say(why, "three tokens could not be decoded");
		return -EOPNOTSUPP;
	}
	bytes = read_state(pool, 0);
	if (bytes > 0)
		r = llb_learn(&pool->shape, pool->blob, (size_t)bytes, PROBE);
	llama_memory_clear(llama_get_memory(pool->ctx), true);
	if (r < 0)
		say(why, "this llama.cpp writes states in another form: is flash attention on, "
			 "and kv_unified set?");
	return r;
}

/*
 * What the weights and the way keys are rotated are named by: all metadata of the model, the file's size
 * and time, and what the context changes of it.
 */
static int digest(const struct llama_model *model, const struct llama_context_params *p,
	const char *file, uint8_t ret_digest[32])
{
	const double numbers[] = { p->rope_scaling_type, p->rope_freq_base, p->rope_freq_scale,
		p->yarn_ext_factor, p->yarn_attn_factor, p->yarn_beta_fast, p->yarn_beta_slow,
		p->yarn_orig_ctx, (double)llama_model_n_params(model),
		(double)llama_model_size(model) };
	XXH3_state_t *state = XXH3_createState();
	char text[1024];
	struct stat st;

	if (!state)
		return -ENOMEM;
	for (unsigned half = 0; half < 2; half++) {
		XXH128_canonical_t out;

		XXH3_128bits_reset_withSeed(state, half);
		XXH3_128bits_update(state, numbers, sizeof(numbers));
		for (int i = 0; i < llama_model_meta_count(model); i++) {
			if (llama_model_meta_key_by_index(model, i, text, sizeof(text)) >= 0)
				XXH3_128bits_update(state, text, strlen(text) + 1);
			if (llama_model_meta_val_str_by_index(model, i, text, sizeof(text)) >= 0)
				XXH3_128bits_update(state, text, strlen(text) + 1);
		}
		if (file && stat(file, &st) == 0) {
			int64_t of_file[] = { st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec };

			XXH3_128bits_update(state, of_file, sizeof(of_file));
		}
		XXH128_canonicalFromHash(&out, XXH3_128bits_digest(state));
		memcpy(ret_digest + 16 * half, &out, 16);
	}
	XXH3_freeState(state);
	return 0;
}

/* KVP_DTYPE_* and bytes of an element of a type that the library has; 0: it has not. */
static uint32_t dtype_of(int32_t type, uint32_t *ret_bytes)
{
	*ret_bytes = type == GGML_TYPE_F32 ? 4 : 2;
	switch (type) {
	case GGML_TYPE_F32:
		return KVP_DTYPE_F32;
	case GGML_TYPE_F16:
		return KVP_DTYPE_F16;
	case GGML_TYPE_BF16:
		return KVP_DTYPE_BF16;
	default:
		return 0;
	}
}

/*
 * Whether the library can be told what lies in a block, which it must be for codecs: one plain type,
 * layers and heads alike, and one of the two ways of rotation. Fills the layers then.
 */
static int describe(const struct llb_shape *shape, const struct llama_model *model,
	struct kvp_space_desc *desc, struct kvp_layer *layers)
{
	const struct llb_layer *first = &shape->layers[0];
	enum llama_rope_type rope = llama_model_rope_type(model);
	int32_t heads = llama_model_n_head_kv(model);
	uint32_t element, dtype = dtype_of(first->k_type, &element);

	if (!dtype || heads <= 0 || (rope != LLAMA_ROPE_TYPE_NORM && rope != LLAMA_ROPE_TYPE_NEOX))
		return 0;
	for (uint32_t i = 0; i < shape->n_layers; i++) {
		const struct llb_layer *l = &shape->layers[i];

		if (l->k_type != first->k_type || l->k_row != first->k_row ||
			l->v_row != first->v_row || (l->v_row && l->v_type != l->k_type) ||
			l->k_row % ((uint32_t)heads * element) != 0 ||
			l->v_row % ((uint32_t)heads * element) != 0)
			return 0;
		layers[i] = (struct kvp_layer){ .index = i,
			.kv_heads = (uint32_t)heads,
			.k_dim = (uint32_t)(l->k_row / element / (uint32_t)heads),
			.v_dim = (uint32_t)(l->v_row / element / (uint32_t)heads) };
	}
	desc->dtype = dtype;
	desc->layout = KVP_LAYOUT_LCND;
	desc->layers = layers;
	desc->n_layers = shape->n_layers;
	desc->rope_pairing =
		rope == LLAMA_ROPE_TYPE_NORM ? KVP_ROPE_INTERLEAVED : KVP_ROPE_HALF_SPLIT;
	desc->rope_dim = layers[0].k_dim;
	return 1;
}

/* A layout of llama.cpp's own: rows of quantised numbers with their scales, [layer][K,V][token]. */
static void describe_opaque(
	const struct llb_shape *shape, struct kvp_space_desc *desc, char name[128])
{
	XXH64_hash_t rows = XXH3_64bits(shape->layers, shape->n_layers * sizeof(shape->layers[0]));

	snprintf(name, 128, "llama.cpp state %d, K %s, V %s, %u layers, rows %016llx",
		LLAMA_STATE_SEQ_VERSION, ggml_type_name((enum ggml_type)shape->layers[0].k_type),
		ggml_type_name((enum ggml_type)shape->layers[0].v_type), shape->n_layers,
		(unsigned long long)rows);
	desc->layout = KVP_LAYOUT_OPAQUE;
	desc->layout_name = name;
	desc->block_bytes = shape->token_bytes * desc->block_tokens;
}

static int open_space(struct kvl_pool *pool, const struct llama_model *model,
	const struct llama_context_params *params, const struct kvl_opts *o)
{
	const char *slash = o->model_file ? strrchr(o->model_file, '/') : NULL;
	const char *name = slash ? slash + 1 : o->model_file;
	struct kvp_layer layers[LLB_LAYERS_MAX];
	struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.model = o->name ? o->name : name,
		.adapter = o->adapter,
		.tokenizer = "llama.cpp",
		.block_tokens = o->block_tokens ? o->block_tokens : BLOCK_TOKENS,
	};
	char layout[128];
	int r = digest(model, params, o->model_file, desc.weights_digest);

	if (r < 0)
		return r;
	pool->plain = describe(&pool->shape, model, &desc, layers);
	if (!pool->plain)
		describe_opaque(&pool->shape, &desc, layout);
	pool->block_tokens = desc.block_tokens;
	return kvp_space_open(pool->client, &desc, pool->timeout_ms, &pool->space);
}

int kvl_open(struct llama_context *ctx, const struct llama_context_params *params,
	const struct kvl_opts *opts, char why[KVL_WHY], struct kvl_pool **ret_pool)
{
	const struct llama_model *model = llama_get_model(ctx);
	struct kvl_pool *pool = calloc(1, sizeof(*pool));
	char error[KVP_ERROR_TEXT] = "";
	struct kvp_open_opts open = { .size = sizeof(open),
		.socket = opts->socket,
		.name = "llama.cpp",
		.default_timeout_ms = opts->timeout_ms ? opts->timeout_ms : 200,
		.flags = KVP_OPEN_LAZY,
		.error = error,
		.error_bytes = sizeof(error) };
	int r;

	if (!pool)
		return -ENOMEM;
	pool->ctx = ctx;
	pool->timeout_ms = open.default_timeout_ms;
	r = refuse(ctx, model, why);
	if (!r)
		r = probe(pool, why);
	if (!r) {
		r = kvp_open(&open, &pool->client);
		if (!r)
			r = open_space(pool, model, params, opts);
		if (r < 0)
			say(why, "%s", error[0] ? error : strerror(-r));
	}
	if (r < 0)
		kvl_close(pool);
	else
		*ret_pool = pool;
	return r;
}

struct kvl_pool *kvl_close(struct kvl_pool *pool)
{
	if (!pool)
		return NULL;
	kvp_space_close(pool->space);
	kvp_close(pool->client);
	free(pool->blob);
	free(pool->cells);
	free(pool);
	return NULL;
}

int kvl_flush(struct kvl_pool *pool, uint32_t timeout_ms)
{
	return kvp_flush(pool->client, timeout_ms);
}

/* ---- out of the pool -------------------------------------------------------------------------- */

/* Keys and values of tokens from the blob's cell `from` on, as one head: rows are whole. */
static struct kvp_view view_of(struct kvl_pool *pool, uint32_t n_cells, uint32_t from,
	struct kvp_view_plane planes[LLB_LAYERS_MAX], uint32_t heads)
{
	for (uint32_t i = 0; i < pool->shape.n_layers; i++) {
		const struct llb_layer *l = &pool->shape.layers[i];

		planes[i] = (struct kvp_view_plane){
			.k = pool->blob + llb_keys_at(&pool->shape, n_cells, i) + from * l->k_row,
			.k_token_stride = l->k_row,
			.k_head_stride = l->k_row / heads,
			.k_page_stride = l->k_row,
		};
		if (!l->v_row)
			continue;
		planes[i].v =
			pool->blob + llb_values_at(&pool->shape, n_cells, i) + from * l->v_row;
		planes[i].v_token_stride = planes[i].v_page_stride = l->v_row;
		planes[i].v_head_stride = l->v_row / heads;
	}
	return (struct kvp_view){ .size = sizeof(struct kvp_view), .planes = planes };
}

static uint32_t heads_of(const struct kvl_pool *pool)
{
	return (uint32_t)llama_model_n_head_kv(llama_get_model(pool->ctx));
}

/*
 * One block of a layout of our own, to or from the blob's rows; rows that lie one after another are one
 * copy. cell_of: where each of the block's tokens lies.
 */
static void copy_block(struct kvl_pool *pool, uint32_t n_cells, const uint32_t *cell_of,
	const uint8_t *from, uint8_t *to)
{
	const uint32_t t = pool->block_tokens;

	for (uint32_t part = 0; part < 2 * pool->shape.n_layers; part++) {
		const struct llb_layer *l = &pool->shape.layers[part / 2];
		size_t row = part % 2 ? l->v_row : l->k_row;
		size_t at = part % 2 ? llb_values_at(&pool->shape, n_cells, part / 2)
				     : llb_keys_at(&pool->shape, n_cells, part / 2);

		for (uint32_t i = 0, run; row && i < t; i += run) {
			uint8_t *rows = pool->blob + at + cell_of[i] * row;

			for (run = 1; i + run < t && cell_of[i + run] == cell_of[i] + run; run++)
				;
			if (from)
				memcpy(rows, from + i * row, run * row);
			else
				memcpy(to + i * row, rows, run * row);
		}
		if (from)
			from += t * row;
		else
			to += t * row;
	}
}

/* Rows of the first `blocks` blocks, into a blob of as many tokens. Returns how many came. */
static int64_t get_opaque(struct kvl_pool *pool, struct kvp_prefix *prefix, uint32_t blocks)
{
	const uint32_t t = pool->block_tokens;
	const void **addrs = calloc(blocks, sizeof(*addrs));
	int n;

	if (!addrs)
		return -ENOMEM;
	n = room(&pool->cells, &pool->cells_room, (size_t)blocks * t * sizeof(*pool->cells));
	if (n == 0)
		n = kvp_payloads(prefix, 0, blocks, addrs);
	/* Fewer than there are: where rows begin depends on how many cells the blob has. */
	for (uint32_t i = 0; n > 0 && i < (uint32_t)n * t; i++)
		pool->cells[i] = i;
	for (int i = 0; i < n; i++)
		copy_block(pool, (uint32_t)n * t, pool->cells + (size_t)i * t, addrs[i], NULL);
	free(addrs);
	return n;
}

static int64_t get_plain(struct kvl_pool *pool, struct kvp_prefix *prefix, uint32_t blocks)
{
	struct kvp_view_plane planes[LLB_LAYERS_MAX];
	uint32_t tokens = blocks * pool->block_tokens;
	struct kvp_view view = view_of(pool, tokens, 0, planes, heads_of(pool));
	int64_t n = kvp_get(prefix, 0, tokens, &view, 0);

	/* A part of what was promised would lie where a smaller blob does not have it. */
	return n == tokens ? blocks : n < 0 ? n : 0;
}

static int64_t match(struct kvl_pool *pool, const llama_token *tokens, uint32_t n, uint32_t flags,
	struct kvp_prefix **ret_prefix)
{
	struct kvp_match_opts opts = { .size = sizeof(opts), .flags = flags | KVP_MATCH_NO_TAIL };
	struct kvp_ids ids = { .ids = tokens, .n = n, .type = KVP_IDS_I32 };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	int r = kvp_match_ids(pool->space, &ids, &opts, ret_prefix);

	if (r < 0)
		return r;
	kvp_match_info(*ret_prefix, &info);
	return info.n_tokens / pool->block_tokens;
}

int64_t kvl_restore(struct kvl_pool *pool, llama_seq_id seq, const llama_token *tokens, uint32_t n)
{
	struct kvp_prefix *prefix = NULL;
	int64_t blocks = n ? match(pool, tokens, n - 1, 0, &prefix) : 0;
	size_t bytes;
	int r;

	llama_memory_seq_rm(llama_get_memory(pool->ctx), seq, -1, -1);
	if (blocks <= 0) {
		kvp_release(prefix);
		return blocks;
	}
	bytes = llb_bytes(&pool->shape, (uint32_t)blocks * pool->block_tokens);
	r = room(&pool->blob, &pool->blob_room, bytes);
	if (r < 0) {
		kvp_release(prefix);
		return r;
	}
	blocks = pool->plain ? get_plain(pool, prefix, (uint32_t)blocks)
			     : get_opaque(pool, prefix, (uint32_t)blocks);
	kvp_release(prefix);
	if (blocks <= 0)
		return blocks == -ENOMEM ? blocks : 0; /* moved, or not leased: a miss */
	n = (uint32_t)blocks * pool->block_tokens;
	bytes = llb_bytes(&pool->shape, n);
	llb_write_frame(&pool->shape, pool->blob, n);
	if (llama_state_seq_set_data(pool->ctx, pool->blob, bytes, seq) != bytes) {
		llama_memory_seq_rm(llama_get_memory(pool->ctx), seq, -1, -1);
		return 0; /* the cache has no place for it */
	}
	return n;
}

/* ---- into the pool ---------------------------------------------------------------------------- */

/* Blocks [first, end) of the blob, after what the prefix has. Returns the end of what was handed over. */
static uint32_t put_opaque(struct kvl_pool *pool, struct kvp_prefix *prefix,
	const llama_token *tokens, uint32_t n_cells, uint32_t first, uint32_t end)
{
	const uint32_t t = pool->block_tokens;
	struct kvp_grant *grants[KVP_CLIENT_GRANTS];
	struct kvp_ref last;

	if (kvp_match_ref(prefix, first, &last) < 0)
		return first;
	while (first < end) {
		uint32_t ask = end - first < KVP_CLIENT_GRANTS ? end - first : KVP_CLIENT_GRANTS;
		int done, got = kvp_reserve_run(pool->space, ask, pool->timeout_ms, NULL, grants);

		if (got <= 0)
			break;
		for (int i = 0; i < got; i++)
			copy_block(pool, n_cells, pool->cells + (size_t)(first + (uint32_t)i) * t,
				NULL, kvp_grant_addr(grants[i]));
		done = kvp_commit_run(grants, (uint32_t)got, last,
			(const uint32_t *)tokens + (size_t)first * t, (size_t)got * t, NULL,
			KVP_COMMIT_RELEASE, &last);
		for (int i = done > 0 ? done : 0; i < got; i++)
			kvp_grant_release(grants[i]);
		first += done > 0 ? (uint32_t)done : 0;
		if (done < got)
			break;
	}
	return first;
}

static uint32_t put_plain(struct kvl_pool *pool, const llama_token *tokens, uint32_t n_cells,
	uint32_t first, uint32_t end)
{
	const uint32_t t = pool->block_tokens, from = first * t;
	struct kvp_put_opts opts = { .size = sizeof(opts), .timeout_ms = pool->timeout_ms };
	struct kvp_ids ids = { .ids = tokens, .n = (size_t)end * t, .type = KVP_IDS_I32 };
	struct kvp_view_plane planes[LLB_LAYERS_MAX];
	struct kvp_view view = view_of(pool, n_cells, 0, planes, heads_of(pool));
	int64_t n;

	/* Cells in any order: a page of one token each. */
	view.page_tokens = 1;
	view.pool_pages = n_cells;
	view.pages = (struct kvp_ids){
		.ids = pool->cells + from, .n = (size_t)end * t - from, .type = KVP_IDS_U32
	};
	if (pool->cells[end * t - 1] - pool->cells[from] == end * t - 1 - from) {
		uint32_t i = from + 1;

		while (i < end * t && pool->cells[i] == pool->cells[i - 1] + 1)
			i++;
		if (i == end * t)
			view = view_of(pool, n_cells, pool->cells[from], planes, heads_of(pool));
	}
	n = kvp_put_ids(pool->space, &ids, from, &view, &opts, NULL);
	return first + (n > 0 ? (uint32_t)n / t : 0);
}

int64_t kvl_store(struct kvl_pool *pool, llama_seq_id seq, const llama_token *tokens, uint32_t n)
{
	const uint32_t t = pool->block_tokens, end = n / t;
	struct kvp_prefix *prefix = NULL;
	int64_t first = match(pool, tokens, end * t, KVP_MATCH_NO_TOUCH, &prefix);
	struct kvp_space_props props = { .size = sizeof(props) };
	int64_t bytes, cells;
	int r;

	if (first < 0 || first >= end) {
		kvp_release(prefix);
		return first < 0 ? first : (int64_t)end * t;
	}
	if (kvp_space_info(pool->space, &props) < 0 || !props.attached) {
		kvp_release(prefix);
		return 0; /* nobody to hand it to: the state is not even read */
	}
	bytes = read_state(pool, seq);
	r = room(&pool->cells, &pool->cells_room, (size_t)end * t * sizeof(*pool->cells));
	cells = bytes < 0 ? bytes
		: r < 0   ? r
			  : llb_read_frame(
				    &pool->shape, pool->blob, (size_t)bytes, pool->cells, end * t);
	if (cells > 0)
		first = pool->plain ? put_plain(pool, tokens, (uint32_t)cells, (uint32_t)first, end)
				    : put_opaque(pool, prefix, tokens, (uint32_t)cells,
					      (uint32_t)first, end);
	kvp_release(prefix);
	if (cells == -ENOENT)
		return -EINVAL;
	return cells < 0 ? cells : first * t;
}
