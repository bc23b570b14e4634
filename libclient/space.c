/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spaces: what a caller says of its model in the canonical form that is compared, opening and closing
 * it at the daemon, and what follows from it (sizes, keys).
 */
#include "libclient/coded.h"
#include "libclient/match.h"
#include "libclient/ring.h"
#include "shm/kvp_seg.h"

#include <stdlib.h>
#include <string.h>

/* A prefill chunk is about this long: enough rows for a matrix product. */
#define CHUNK_TOKENS 256u

static int copy_name(char dst[KVP_SPACE_NAME], const char *src)
{
	size_t n = src ? strnlen(src, KVP_SPACE_NAME) : 0;

	if (n == KVP_SPACE_NAME)
		return -EINVAL;
	if (n)
		memcpy(dst, src, n);
	return 0;
}

static uint64_t double_bits(double d)
{
	uint64_t bits;

	memcpy(&bits, &d, sizeof(bits));
	return d == 0 ? 0 : bits; /* minus zero is zero */
}

static int canon_layers(const struct kvp_space_desc *d, struct kvp_space_canon *canon)
{
	if (!d->layers || !d->n_layers || d->n_layers > KVP_MAX_LAYERS)
		return -EINVAL;
	for (uint32_t i = 0; i < d->n_layers; i++) {
		const struct kvp_layer *l = &d->layers[i];

		if (l->index > UINT16_MAX || !l->kv_heads || l->kv_heads > UINT16_MAX ||
			l->first_head > UINT16_MAX || !l->k_dim || l->k_dim > UINT16_MAX ||
			l->v_dim > UINT16_MAX || (i && l->index <= d->layers[i - 1].index))
			return -EINVAL;
		canon->layers[i] = (struct kvp_shm_layer){
			.index = (uint16_t)l->index,
			.kv_heads = (uint16_t)l->kv_heads,
			.first_head = (uint16_t)l->first_head,
			.k_dim = (uint16_t)l->k_dim,
			.v_dim = (uint16_t)l->v_dim,
		};
	}
	return 0;
}

/* A layout that is the engine's own affair, and blocks that are perhaps named by keys. */
static int canon_opaque(const struct kvp_space_desc *d, struct kvp_space_canon *canon)
{
	if (!d->block_bytes || d->block_bytes > UINT32_MAX || !d->layout_name || !*d->layout_name ||
		copy_name(canon->opaque_layout, d->layout_name) < 0 || d->dtype || d->n_layers ||
		d->rope_pairing || d->rope_dim || d->rope_scaling || d->rope_theta != 0)
		return -EINVAL;
	for (uint32_t i = 0; i < 4; i++)
		if (d->rope_params[i] != 0)
			return -EINVAL;
	canon->opaque_bytes = d->block_bytes;
	canon->key_bytes = d->key_bytes;
	if (!d->key_bytes)
		return 0;
	if (d->block_tokens || d->key_bytes % sizeof(kvp_token) ||
		d->key_bytes < KVP_KEY_BYTES_MIN || d->key_bytes > KVP_KEY_BYTES_MAX)
		return -EINVAL;
	canon->block_tokens = d->key_bytes / (uint32_t)sizeof(kvp_token);
	return 0;
}

static int canon_plain(const struct kvp_space_desc *d, struct kvp_space_canon *canon)
{
	if (d->dtype < KVP_DTYPE_F32 || d->dtype > KVP_DTYPE_F8 || d->layout > KVP_LAYOUT_LCND ||
		d->rope_pairing > KVP_ROPE_INTERLEAVED || d->rope_dim > UINT16_MAX ||
		d->rope_scaling > KVP_ROPE_SCALING_LLAMA3 || d->layout_name || d->block_bytes ||
		d->key_bytes)
		return -EINVAL;
	canon->dtype = d->dtype;
	canon->n_layers = d->n_layers;
	canon->rope_pairing = d->rope_pairing;
	canon->rope_dim = d->rope_dim;
	canon->rope_scaling = d->rope_scaling;
	canon->rope_theta_bits = double_bits(d->rope_theta);
	for (uint32_t i = 0; i < 4; i++)
		canon->rope_param_bits[i] = double_bits(d->rope_params[i]);
	return canon_layers(d, canon);
}

static int except_layer(struct kvp_space_canon *canon, uint32_t index)
{
	for (uint32_t i = 0; i < canon->n_layers; i++)
		if (canon->layers[i].index == index) {
			canon->layers[i].exact = 1;
			return 0;
		}
	return -EINVAL;
}

/* What the owner accepts to lose. */
static int canon_floor(const struct kvp_space_desc *d, struct kvp_space_canon *canon)
{
	if (!d->floor_k && !d->floor_v)
		return d->native_first || d->native_last || d->n_exact_layers ? -EINVAL : 0;
	if (d->n_exact_layers > d->n_layers || (d->n_exact_layers && !d->exact_layers))
		return -EINVAL;
	canon->floor_k = d->floor_k;
	canon->floor_v = d->floor_v;
	canon->native_first = d->native_first;
	canon->native_last = d->native_last;
	for (uint32_t i = 0; i < d->n_exact_layers; i++)
		if (except_layer(canon, d->exact_layers[i]) < 0)
			return -EINVAL;
	return kvp_payload_judge(canon);
}

static int canon_of(const struct kvp_space_desc *d, struct kvp_space_canon *canon)
{
	int r;

	memset(canon, 0, sizeof(*canon));
	if (copy_name(canon->model, d->model) < 0 || copy_name(canon->adapter, d->adapter) < 0 ||
		copy_name(canon->tokenizer, d->tokenizer) < 0)
		return -EINVAL;
	canon->version = 1;
	canon->layout = d->layout;
	canon->block_tokens = d->block_tokens ? d->block_tokens : KVP_BLOCK_TOKENS_DEFAULT;
	memcpy(canon->weights_digest, d->weights_digest, sizeof(canon->weights_digest));
	r = d->layout == KVP_LAYOUT_OPAQUE ? canon_opaque(d, canon) : canon_plain(d, canon);
	return r < 0 ? r : canon_floor(d, canon);
}

int space_bind(
	struct attachment *att, struct kvp_space *space, const struct kvp_msg_space *answer, int fd)
{
	struct space_bind *b = &att->binds[space->number];
	const struct kvp_shm_space *s;
	int r;

	if (answer->space >= KVP_MAX_SPACES)
		return -EPROTO;
	s = &att->view.spaces[answer->space];
	if (kvp_load_acquire(&s->state) != KVP_SPACE_LIVE || s->generation != answer->generation ||
		s->block_bytes != space->geo.block_bytes ||
		memcmp(&s->canon, &space->canon, sizeof(s->canon)) != 0)
		return -EPROTO;
	r = coded_calibrate(space->codecs, &space->canon, fd);
	if (r < 0)
		return r;
	pthread_mutex_lock(&att->client->ring_lock);
	b->index = answer->space;
	b->generation = answer->generation;
	b->root = (struct kvp_key){ .lo = s->root_lo, .hi = s->root_hi };
	memset(b->stock, 0, sizeof(b->stock));
	b->serve.state = SERVE_NONE;
	b->stock[0].batch = 1;
	memcpy(space->fingerprint, s->fingerprint, sizeof(space->fingerprint));
	/* Release: pairs with the acquire in bind_of(). */
	kvp_store_release(&b->open, 1);
	pthread_mutex_unlock(&att->client->ring_lock);
	return 0;
}

static int find_number(const struct kvp_client *c, uint32_t *ret_number)
{
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		if (!c->spaces[i]) {
			*ret_number = i;
			return 0;
		}
	}
	return -ENOSPC;
}

/* lock held. */
static int open_at_daemon(struct kvp_space *space, uint64_t deadline)
{
	struct kvp_client *c = space->client;
	struct attachment *att = kvp_load_seq(&c->att);
	struct kvp_msg_space_open open = { .canon = space->canon };
	struct kvp_msg_space answer;
	kvp_autoclose int fd = -1;
	int r;

	/* What blocks are decoded with is known before there is a handle, and stays the same. */
	if (!att)
		return c->lazy && !kvp_payload_calibrated(&space->canon) ? 0 : -ESHUTDOWN;
	pthread_mutex_lock(&c->ring_lock);
	r = ring_stuck(att) ? -ETIMEDOUT : 0;
	pthread_mutex_unlock(&c->ring_lock);
	if (r < 0)
		return r;
	r = call_daemon(c, KVP_MSG_SPACE_OPEN, &open, sizeof(open), deadline, &answer, &fd);
	if (r < 0)
		return r;
	/* call_daemon() has waited: by now the daemon may be another one. */
	if (kvp_load_seq(&c->att) != att)
		return -ESHUTDOWN;
	att->binds[space->number].tried = space->stamp;
	r = space_bind(att, space, &answer, fd);
	if (r < 0)
		close_at_daemon(att, answer.space, answer.generation);
	return r;
}

/* lock held. Where it is open, if anywhere: a daemon that came while it was being opened has it open, too. */
static void close_where_open(struct kvp_space *space)
{
	struct kvp_client *c = space->client;
	struct attachment *att = kvp_load_seq(&c->att);
	struct space_bind *b = att ? &att->binds[space->number] : NULL;

	if (!b || !kvp_load_relaxed(&b->open))
		return;
	pthread_mutex_lock(&c->ring_lock);
	stock_return(att, b);
	kvp_store_release(&b->open, 0);
	pthread_mutex_unlock(&c->ring_lock);
	close_at_daemon(att, b->index, b->generation);
}

int kvp_space_open(struct kvp_client *client, const struct kvp_space_desc *desc,
	uint32_t timeout_ms, struct kvp_space **ret_space)
{
	struct kvp_space_desc d;
	struct kvp_space *space;
	int r;

	if (!client || !desc || !ret_space || opts_take(&d, sizeof(d), desc) < 0)
		return -EINVAL;
	if (!client_mine(client))
		return -ECHILD;
	space = calloc(1, sizeof(*space));
	if (!space)
		return -ENOMEM;
	space->client = client;
	space->min_cache_tokens = d.min_cache_tokens;
	r = canon_of(&d, &space->canon);
	if (r == 0)
		r = geometry_init(&space->canon, &space->geo);
	if (r == 0)
		r = coded_new(&space->canon, &space->codecs);
	if (r < 0) {
		free(space);
		return r;
	}
	KVP_FAULT("space-open");
	pthread_mutex_lock(&client->lock);
	r = find_number(client, &space->number);
	if (r == 0) {
		space->stamp = ++client->stamp;
		client->spaces[space->number] = space;
		r = open_at_daemon(space, answer_by(deadline_of(client, timeout_ms)));
		if (r < 0) {
			close_where_open(space);
			client->spaces[space->number] = NULL;
		}
	}
	pthread_mutex_unlock(&client->lock);
	if (r < 0) {
		space_free(space);
		return r;
	}
	*ret_space = space;
	return 0;
}

/* ---- salts ----------------------------------------------------------------------------------- */

int kvp_space_salted(struct kvp_space *space, const uint8_t salt[32], struct kvp_space **ret_space)
{
	struct kvp_space *salted;
	kvp_token any = 0;

	if (!space || !salt || !ret_space || space->base || space->canon.key_bytes)
		return -EINVAL;
	if (!client_mine(space->client))
		return -ECHILD;
	salted = malloc(sizeof(*salted));
	if (!salted)
		return -ENOMEM;
	pthread_mutex_lock(&space->client->lock);
	*salted = *space;
	memcpy(salted->salt, salt, sizeof(salted->salt));
	for (uint32_t i = 0; i < KVP_SALT_TOKENS; i++)
		any |= salted->salt[i];
	salted->salted = any != 0;
	salted->salteds = NULL;
	salted->base = space;
	salted->next = space->salteds;
	space->salteds = salted;
	pthread_mutex_unlock(&space->client->lock);
	*ret_space = salted;
	return 0;
}

/* One of several of its base. */
static void close_salted(struct kvp_space *space)
{
	struct kvp_client *c = space->client;
	struct kvp_space **p = &space->base->salteds;

	pthread_mutex_lock(&c->lock);
	while (*p != space)
		p = &(*p)->next;
	*p = space->next;
	pthread_mutex_unlock(&c->lock);
	free(space);
}

void space_free(struct kvp_space *space)
{
	while (space && space->salteds) {
		struct kvp_space *salted = space->salteds;

		space->salteds = salted->next;
		free(salted);
	}
	if (space)
		coded_free(space->codecs);
	free(space);
}

int space_same(const struct kvp_space *a, const struct kvp_space *b)
{
	return a == b ||
	       (a->client == b->client && a->number == b->number && a->salted == b->salted &&
		       (!a->salted || !memcmp(a->salt, b->salt, sizeof(a->salt))));
}

/* ---- closing, asking ------------------------------------------------------------------------- */

struct kvp_space *kvp_space_close(struct kvp_space *space)
{
	struct kvp_client *c;

	if (!space)
		return NULL;
	c = space->client;
	if (!client_mine(c))
		return NULL; /* kvp_close() in this process frees it */
	if (space->base) {
		close_salted(space);
		return NULL;
	}
	pthread_mutex_lock(&c->lock);
	close_where_open(space);
	c->spaces[space->number] = NULL;
	space_free(space);
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

int kvp_space_info(struct kvp_space *space, struct kvp_space_props *ret_info)
{
	struct kvp_space_props info = { 0 };
	struct attachment *att;
	uint32_t t;

	if (!space || !ret_info)
		return -EINVAL;
	if (!client_mine(space->client))
		return -ECHILD;
	t = space->geo.block_tokens;
	info.block_tokens = t;
	info.chunk_tokens = t < CHUNK_TOKENS ? CHUNK_TOKENS / t * t : t;
	info.block_bytes = space->geo.block_bytes;
	info.token_bytes = space->geo.token_bytes;
	info.features = KVP_FEATURE_ZERO_COPY | KVP_FEATURE_NON_BLOCKING_PUT;
	info.homogeneous = space->geo.homogeneous;
	info.n_layers = space->geo.n_layers;
	pthread_mutex_lock(&space->client->lock);
	att = kvp_load_seq(&space->client->att);
	info.attached = att && bind_of(att, space);
	memcpy(info.fingerprint, (space->base ? space->base : space)->fingerprint,
		sizeof(info.fingerprint));
	pthread_mutex_unlock(&space->client->lock);
	return result_give(ret_info, &info, sizeof(info));
}

int kvp_space_block_bytes(struct kvp_space *space, uint32_t codec, uint64_t *ret_bytes)
{
	if (!space || !ret_bytes)
		return -EINVAL;
	if (!client_mine(space->client))
		return -ECHILD;
	if (codec != KVP_CODEC_NATIVE && !coded_layout(space->codecs, codec))
		return -EOPNOTSUPP;
	*ret_bytes = codec == KVP_CODEC_NATIVE ? space->geo.block_bytes
					       : coded_layout(space->codecs, codec)->bytes;
	return 0;
}

int kvp_report_quality(struct kvp_space *space, double score)
{
	struct kvp_sqe sqe = { .op = KVP_OP_QUALITY };
	const struct space_bind *b;
	struct attachment *att;
	struct kvp_client *c;
	int r;

	/* Not a number is not within. */
	if (!space || !(score >= 0 && score <= 1))
		return -EINVAL;
	c = space->client;
	if (!client_mine(c))
		return -ECHILD;
	if (!space->codecs)
		return -EOPNOTSUPP;
	pthread_mutex_lock(&c->ring_lock);
	att = kvp_load_seq(&c->att);
	b = att && !kvp_load_seq(&att->dead) ? bind_of(att, space) : NULL;
	r = b ? 0 : -ESHUTDOWN;
	if (b) {
		sqe.serial = ++att->other_serial;
		sqe.space = (uint16_t)b->index;
		sqe.count = (uint32_t)(score * KVP_QUALITY_WHOLE + .5);
		r = kvp_sq_push(att->page, &att->sq_tail, &sqe) < 0 ? -EAGAIN : 0;
		if (kvp_sq_must_wake(att->page))
			ledger_wake(att);
	}
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}

int space_root(struct kvp_space *space, struct kvp_key *ret_root)
{
	struct kvp_client *c = space->client;
	const struct space_bind *b = NULL;
	struct attachment *att;

	pthread_mutex_lock(&c->ring_lock);
	att = kvp_load_seq(&c->att);
	if (att)
		b = bind_of(att, space);
	if (b)
		*ret_root = space_above(space, b->root);
	pthread_mutex_unlock(&c->ring_lock);
	return b ? 0 : -ESHUTDOWN;
}

int kvp_chunk_keys(struct kvp_space *space, const uint32_t *tokens, size_t n,
	struct kvp_digest *out, size_t max)
{
	struct kvp_key key;
	size_t i = 0, t;
	int r;

	if (!space || (n && !tokens) || n > MAX_TOKENS || (max && !out))
		return -EINVAL;
	if (!client_mine(space->client))
		return -ECHILD;
	r = space_root(space, &key);
	if (r < 0)
		return r;
	t = space->geo.block_tokens;
	for (size_t at = 0; at < n && i < max; at += t, i++) {
		key = kvp_chain_key(key, tokens + at, (uint32_t)(n - at < t ? n - at : t));
		out[i] = (struct kvp_digest){ .lo = key.lo, .hi = key.hi };
	}
	return (int)((n + t - 1) / t);
}
