/* SPDX-License-Identifier: Apache-2.0 */
/* A cache in kvpool: matched blocks are read in place, coded ones too, new ones are written where they stay. */
#include "tools/kvrun/kvr_kv_pool.h"
#include "tools/kvrun/kvr_flight.h"
#include "tools/kvrun/kvr_link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Grants are refilled within a millisecond, but the first one has to wait for a whole extent to be
 * populated.
 */
#define WAIT_GRANT_MS  250u
#define WAIT_FLUSH_MS  5000u
#define WAIT_EXTENT_MS 2000u
#define WAIT_WARM_MS   5000u

/* One block of the sequence. Exactly one of: payload read in place, native or coded, grant, private memory. */
struct slot {
	void *addr; /* NULL: coded */
	struct kvp_grant *grant;
	void *private_memory;
	struct kvp_attend_plane (*planes)[2]; /* of each layer, if it is coded */
};

struct pool_kv {
	struct kvr_kv kv; /* first: the engine's handle */
	const struct kvr_model *model;
	struct kvr_pool_opts opts;
	struct kvr_coding coding;
	struct kvp_kernels *kernels; /* NULL: there is no floor */
	char *variant;
	struct kvr_link link;

	/* of the sequence */
	struct kvp_prefix *match; /* holds the lease on the blocks that are read in place */
	struct kvp_prefix *claim; /* the right to compute the missing blocks; given up on its own */
	uint32_t matched;         /* whole blocks in the match */
	int publish;              /* the chain up to the last block is published or will be */
	int dirty;                /* commits since the last flush */
	struct slot *slot;
	uint32_t n_slots;
	uint32_t room;
	uint32_t shares_room, shares_n;
	float *shares; /* of the token that is reported, of each token, added up over layers */
	uint32_t
		report_next; /* the token with which the last report ended that was cut short; 0: none */
	struct kvr_pool_report report;
};

static struct pool_kv *pool_of(struct kvr_kv *kv)
{
	return (struct pool_kv *)kv;
}

static uint32_t space_dtype(enum kvr_dtype dtype)
{
	return dtype == KVR_F32 ? KVP_DTYPE_F32 : dtype == KVR_F16 ? KVP_DTYPE_F16 : KVP_DTYPE_BF16;
}

/*
 * Joins the daemon if there is one by now. What makes blocks exchangeable: the digest covers the
 * configuration and every weight; the adapter is how earlier blocks were read when later ones were
 * computed.
 */
static int attach(struct pool_kv *p)
{
	const struct kvr_config *c = &p->model->config;
	const struct kvr_geom *g = &p->kv.geom;
	struct kvp_layer layers[KVR_MAX_LAYERS];
	struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.model = p->model->name,
		.adapter = p->variant,
		.dtype = space_dtype(g->dtype),
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = g->block_tokens,
		.n_layers = g->layers,
		.layers = layers,
		.rope_pairing = c->rope_pairs == KVR_ROPE_HALF_SPLIT ? KVP_ROPE_HALF_SPLIT
								     : KVP_ROPE_INTERLEAVED,
		.rope_dim = c->head_dim,
		.rope_theta = c->rope_theta,
		.floor_k = p->opts.floor[0],
		.floor_v = p->opts.floor[1],
	};

	memcpy(desc.weights_digest, &p->model->digest_lo, 8);
	memcpy(desc.weights_digest + 8, &p->model->digest_hi, 8);
	for (uint32_t i = 0; i < g->layers; i++)
		layers[i] = (struct kvp_layer){ i, c->kv_heads, 0, c->head_dim, c->head_dim };
	return kvr_link_join(&p->link, &desc, kvr_block_bytes(g));
}

/*
 * Blocks after the last published one can no longer be published. An engine that waits for our
 * claim must not wait in vain.
 */
static void stop_publishing(struct pool_kv *p)
{
	p->publish = 0;
	kvp_release(p->claim);
	p->claim = NULL;
}

static void end_sequence(struct pool_kv *p)
{
	for (uint32_t i = 0; i < p->n_slots; i++) {
		kvp_grant_release(p->slot[i].grant);
		free(p->slot[i].private_memory);
		free(p->slot[i].planes);
	}
	p->kv.coding = NULL; /* a sequence of native blocks is attended as one without a floor */
	p->n_slots = 0;
	stop_publishing(p);
	kvp_release(p->match);
	p->match = NULL;
	p->matched = 0;
	p->report_next = 0;
}

static int append(struct pool_kv *p, struct slot s)
{
	if (p->n_slots == p->room) {
		uint32_t room = p->room ? 2 * p->room : 32;
		struct slot *slot = realloc(p->slot, room * sizeof(*slot));

		if (!slot)
			return -ENOMEM;
		p->slot = slot;
		p->room = room;
	}
	p->slot[p->n_slots++] = s;
	return 0;
}

static int append_private(struct pool_kv *p)
{
	void *memory = kvr_block_alloc(&p->kv.geom);

	if (!memory || append(p, (struct slot){ .addr = memory, .private_memory = memory }) < 0) {
		free(memory);
		return -ENOMEM;
	}
	p->report.blocks_private++;
	return 0;
}

static int find_prefix(
	struct pool_kv *p, const uint32_t *tokens, uint32_t n, struct kvp_prefix_info *ret_info)
{
	const struct kvr_flight_opts opts = {
		.space = p->link.space,
		.flags = p->opts.reuse_tail ? 0 : KVP_MATCH_NO_TAIL,
		.claim = p->opts.store,
		.attached = p->report.attached,
	};
	int r = kvr_flight_match(&opts, tokens, n, &p->match, &p->claim, ret_info);

	if (r == 0)
		p->matched = ret_info->n_tokens / p->kv.geom.block_tokens;
	return r;
}

/* Copies tokens [from, from + n) of the match into a block's memory. */
static int copy_matched(struct pool_kv *p, uint32_t from, uint32_t n, void *dst)
{
	struct kvp_view_plane planes[KVR_MAX_LAYERS];
	struct kvp_view view = { .size = sizeof(view), .planes = planes };
	uint64_t bytes;
	int r;

	r = kvp_view_dense(
		p->link.space, KVP_VIEW_LCND, dst, p->kv.geom.block_tokens, planes, &bytes);
	if (r < 0)
		return r;
	if (bytes != kvr_block_bytes(&p->kv.geom))
		return -EPROTO;
	return kvp_get(p->match, from, n, &view, 0) == (int64_t)n ? 0 : -ESTALE;
}

/* The device to read on, by its number; KVR_NO_DEVICE: none. */
static uint32_t device_of(const struct pool_kv *p)
{
	struct kvp_device_props props = { .size = sizeof(props) };
	uint32_t i = p->opts.device, end = i + 1;

	if (i == KVR_NO_DEVICE)
		return i;
	if (i == KVR_FIRST_DEVICE) {
		i = 0;
		end = KVP_CLIENT_DEVICES;
	}
	for (; i < end; i++)
		if (kvp_device_info(p->link.client, i, &props) == 0 &&
			props.state == KVP_DEVICE_IS_UP)
			return i;
	return KVR_NO_DEVICE;
}

/* Has the first n blocks of the match copied to the device. Those that do not come are read in DRAM. */
static void to_device(struct pool_kv *p, uint32_t device, uint32_t n)
{
	struct kvp_warm_opts opts = { .size = sizeof(opts), .device = device };

	for (; opts.first < n; opts.first += KVP_CLIENT_WARM_BLOCKS) {
		struct kvp_ticket ticket;

		opts.n = n - opts.first;
		if (kvp_warm(p->match, &opts, &ticket) < 0 ||
			kvp_ticket_wait(p->link.client, ticket, WAIT_WARM_MS, NULL) < 0)
			return;
	}
}

/* Its bytes as they are, and all of them? */
static int readable(const struct pool_kv *p, const struct kvp_payload_info *payload)
{
	return payload->addr && payload->codec == 0 &&
	       payload->bytes == kvr_block_bytes(&p->kv.geom);
}

/* False: not as kvp_plane_decode() takes it. */
static int plane_of(const struct pool_kv *p, const struct kvp_payload_half *h, uint32_t tokens,
	struct kvp_attend_plane *ret_plane)
{
	size_t row = p->model->config.head_dim * kvr_dtype_bytes(p->kv.geom.dtype);

	*ret_plane = (struct kvp_attend_plane){
		.codec = h->codec,
		.dtype = p->kv.geom.dtype,
		.data = h->addr,
		.bytes = h->bytes,
		.head_stride = (ptrdiff_t)h->head_stride,
		.token_stride = (ptrdiff_t)h->token_stride,
	};
	return h->addr && tokens == p->kv.geom.block_tokens &&
	       (h->codec != KVP_CODEC_NATIVE ||
		       (h->token_stride == row && h->head_stride == row * tokens));
}

/* Block `i` of the match, which is coded, where it lies. -EOPNOTSUPP: it has to be decoded. */
static int take_coded(struct pool_kv *p, uint32_t i)
{
	uint32_t layers = p->kv.geom.layers;
	struct slot s = { .planes = calloc(layers, sizeof(*s.planes)) };
	int r = s.planes ? 0 : -ENOMEM;

	for (uint32_t l = 0; r == 0 && l < layers; l++) {
		struct kvp_payload_layer_info info = { .size = sizeof(info) };

		r = kvp_payload_planes(p->match, i, l, &info);
		if (r == 0 && (!plane_of(p, &info.k, info.tokens, &s.planes[l][0]) ||
				      !plane_of(p, &info.v, info.tokens, &s.planes[l][1])))
			r = -EOPNOTSUPP;
	}
	if (r == 0)
		r = append(p, s);
	if (r < 0)
		free(s.planes);
	else
		p->kv.coding = &p->coding;
	return r;
}

/* Block `i` of the match as the sequence's next: in place, or a copy where that is not possible. */
static int take_block(struct pool_kv *p, uint32_t device, uint32_t i)
{
	struct kvp_payload_info payload = { .size = sizeof(payload) };
	uint32_t size = p->kv.geom.block_tokens;
	int there = device != KVR_NO_DEVICE &&
		    kvp_device_payload(p->match, i, device, &payload) == 0 && readable(p, &payload);
	int r = there ? 0 : kvp_payload(p->match, i, &payload);
	uint32_t coded;

	if (r == 0 && readable(p, &payload)) {
		p->report.blocks_read++;
		p->report.blocks_device += (uint32_t)there;
		return append(p, (struct slot){ .addr = (void *)(uintptr_t)payload.addr });
	}
	coded = r == 0 && payload.codec != 0;
	if (coded && payload.addr && p->kernels && take_coded(p, i) == 0) {
		p->report.blocks_coded++;
		return 0;
	}
	r = append_private(p);
	if (r < 0)
		return r;
	if (copy_matched(p, i * size, size, p->slot[i].addr) < 0) {
		free(p->slot[--p->n_slots].private_memory);
		p->report.blocks_private--;
		return -ESTALE;
	}
	p->report.blocks_coded += coded;
	p->report.blocks_decoded += coded;
	return 0;
}

static int reserve_slot(struct pool_kv *p)
{
	struct kvp_grant *grant;
	int r = kvp_reserve(p->link.space, WAIT_GRANT_MS, NULL, &grant);

	if (r < 0)
		return r;
	r = append(p, (struct slot){ .addr = kvp_grant_addr(grant), .grant = grant });
	if (r < 0)
		kvp_grant_release(grant);
	else
		p->report.blocks_slots++;
	return r;
}

static int pool_grow(struct kvr_kv *kv, uint32_t index)
{
	struct pool_kv *p = pool_of(kv);

	if (index < p->n_slots) /* a tail that pool_start has taken over */
		return 0;
	if (index < p->matched) /* cached, but computed again for its logits */
		return append_private(p);
	if (p->publish) {
		int r = reserve_slot(p);

		if (r == 0 || r == -ENOMEM)
			return r;
		stop_publishing(p);
	}
	return append_private(p);
}

/* The tokens behind the last whole block that match too, into a block of our own. */
static int take_tail(struct pool_kv *p, uint32_t n, uint32_t *ret_reused)
{
	uint32_t index = p->n_slots, from = index * p->kv.geom.block_tokens;
	int r;

	if (n == 0)
		return 0;
	r = pool_grow(&p->kv, index);
	if (r == 0 && copy_matched(p, from, n, p->slot[index].addr) == 0)
		*ret_reused = from + n;
	return r; /* a copy that failed leaves a block to compute, present already */
}

/* Has others compute what was evicted of the prompt. Whatever comes of it: what is there is found after it. */
static void want(struct pool_kv *p, const uint32_t *tokens, uint32_t n)
{
	struct kvp_want_opts opts = {
		.size = sizeof(opts), .within_ms = p->opts.want_ms, .timeout_ms = WAIT_GRANT_MS
	};
	const struct kvp_ids ids = { .ids = tokens, .n = n, .type = KVP_IDS_U32 };
	struct kvp_ticket ticket;
	int r = kvp_want(p->link.space, &ids, &opts, &ticket);

	p->report.want_why = r < 0 ? r : 0;
	if (r <= 0)
		return;
	p->report.wanted = (uint32_t)r;
	r = kvp_ticket_wait(p->link.client, ticket, p->opts.want_ms, &p->report.want_why);
	if (r < 0)
		p->report.want_why = r;
}

static int pool_start(
	struct kvr_kv *kv, const uint32_t *tokens, uint32_t n, uint32_t limit, uint32_t *ret_reused)
{
	struct pool_kv *p = pool_of(kv);
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint32_t size = kv->geom.block_tokens, reused = 0, usable, device;
	int r;

	end_sequence(p);
	p->report = (struct kvr_pool_report){ .attached = attach(p) };
	/* without partial blocks nobody can gain from a claim on one: ask for whole blocks only */
	if (!p->opts.reuse_tail)
		n -= n % size;
	if (p->link.space && p->opts.want_ms)
		want(p, tokens, n);
	device = p->link.space ? device_of(p) : KVR_NO_DEVICE;
	p->report.no_device =
		p->link.space && p->opts.device != KVR_NO_DEVICE && device == KVR_NO_DEVICE;
	if (p->link.space && find_prefix(p, tokens, n, &info) == 0) {
		p->publish = p->opts.store;
		usable = info.n_tokens + info.tail_tokens;
		usable = usable < limit ? usable : limit;
		if (device != KVR_NO_DEVICE)
			to_device(p, device, usable / size);
		for (uint32_t i = 0; i < usable / size; i++) {
			r = take_block(p, device, i);
			if (r == -ENOMEM)
				return r;
			if (r < 0)
				break;
			reused += size;
		}
		if (p->opts.reuse_tail && reused == usable - usable % size) {
			r = take_tail(p, usable % size, &reused);
			if (r < 0)
				return r;
		}
	}
	*ret_reused = reused;
	return 0;
}

static void *pool_block(struct kvr_kv *kv, uint32_t index)
{
	return pool_of(kv)->slot[index].addr;
}

static bool pool_planes(
	struct kvr_kv *kv, uint32_t index, uint32_t layer, struct kvp_attend_plane ret_plane[2])
{
	const struct slot *s = &pool_of(kv)->slot[index];

	if (s->planes)
		memcpy(ret_plane, s->planes[layer], sizeof(s->planes[layer]));
	return s->planes != NULL;
}

static int commit(struct pool_kv *p, uint32_t index, const uint32_t *tokens, uint32_t n)
{
	struct kvp_ref parent = kvp_ref_root();
	int r = 0;

	if (index > 0 && index <= p->matched)
		r = kvp_match_ref(p->match, index, &parent);
	else if (index > 0)
		r = kvp_grant_ref(p->slot[index - 1].grant, &parent);
	if (r == 0)
		r = kvp_commit(p->slot[index].grant, parent, tokens, n, p->claim, 0);
	return r;
}

static void pool_seal(struct kvr_kv *kv, uint32_t index, const uint32_t *tokens, uint32_t n)
{
	struct pool_kv *p = pool_of(kv);

	if (!p->publish || index < p->matched)
		return;
	if (!p->slot[index].grant || commit(p, index, tokens, n) < 0) {
		stop_publishing(p);
		return;
	}
	p->report.published++;
	p->dirty = 1;
}

static void flush(struct pool_kv *p)
{
	if (p->dirty)
		kvp_flush(p->link.client, WAIT_FLUSH_MS);
	p->dirty = 0;
}

static int pool_asks(struct kvr_kv *kv, uint32_t position)
{
	const struct pool_kv *p = pool_of(kv);

	return p->opts.report_every && p->matched && position % p->opts.report_every == 0;
}

/* The layers come in their order; with the last one the token's report is complete. */
static void pool_attended(struct kvr_kv *kv, uint32_t layer, const float *share, uint32_t n)
{
	struct pool_kv *p = pool_of(kv);
	int r;

	/* Of cached blocks alone. */
	n = n / kv->geom.block_tokens < p->matched ? n - n % kv->geom.block_tokens
						   : p->matched * kv->geom.block_tokens;
	if (n > p->shares_room) {
		float *room = realloc(p->shares, n * sizeof(*room));

		if (!room)
			return;
		p->shares = room;
		p->shares_room = n;
	}
	if (layer == 0)
		p->shares_n = n;
	if (n != p->shares_n)
		return; /* a layer is missing */
	for (uint32_t i = 0; i < n; i++)
		p->shares[i] = (layer ? p->shares[i] : 0) + share[i];
	if (layer + 1 < kv->geom.layers || !n)
		return;
	if (p->report_next >= n)
		p->report_next = 0;
	r = kvp_report_token_attention(p->match, p->shares, n, p->report_next);
	if (r > 0) {
		p->report_next = (uint32_t)r;
		p->report.attention++;
	}
}

static void pool_end(struct kvr_kv *kv)
{
	end_sequence(pool_of(kv));
}

static void pool_free(struct kvr_kv *kv)
{
	struct pool_kv *p = pool_of(kv);

	flush(p);
	end_sequence(p);
	kvr_link_done(&p->link);
	kvp_kernels_free(p->kernels);
	free(p->slot);
	free(p->shares);
	free(p->variant);
	free(p);
}

static const struct kvr_kv_ops pool_ops = {
	.start = pool_start,
	.grow = pool_grow,
	.block = pool_block,
	.planes = pool_planes,
	.asks = pool_asks,
	.attended = pool_attended,
	.seal = pool_seal,
	.end = pool_end,
	.free = pool_free,
};

/*
 * A client's first grant makes the daemon set up an extent of memory for it, which takes far longer
 * than the grants after it. Better while the engine starts than while the first prompt waits.
 */
static void warm_up(struct pool_kv *p)
{
	struct kvp_grant *grant;

	if (p->opts.store && kvp_reserve(p->link.space, WAIT_EXTENT_MS, NULL, &grant) == 0)
		kvp_grant_release(grant);
}

int kvr_kv_pool_new(const struct kvr_model *model, const struct kvr_geom *geom,
	const struct kvr_pool_opts *opts, struct kvr_kv **ret_kv)
{
	struct pool_kv *p;
	int r = 0;

	if (!kvr_geom_valid(geom))
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->kv = (struct kvr_kv){ .ops = &pool_ops, .geom = *geom };
	p->model = model;
	p->opts = *opts;
	p->variant = opts->variant ? strdup(opts->variant) : NULL;
	if (opts->floor[0] || opts->floor[1])
		r = kvp_kernels_new(KVP_CPU_ALL, &p->kernels);
	p->coding.kernels = p->kernels;
	if (kvr_link_init(&p->link, opts->socket) < 0 || !p->variant != !opts->variant || r < 0) {
		kvr_link_done(&p->link);
		kvp_kernels_free(p->kernels);
		free(p->variant);
		free(p);
		return -ENOMEM;
	}
	if (attach(p))
		warm_up(p);
	*ret_kv = &p->kv;
	return 0;
}

struct kvp_space *kvr_kv_pool_space(struct kvr_kv *kv)
{
	struct pool_kv *p = pool_of(kv);

	return attach(p) ? p->link.space : NULL;
}

struct kvp_client *kvr_kv_pool_client(struct kvr_kv *kv)
{
	struct pool_kv *p = pool_of(kv);

	return attach(p) ? p->link.client : NULL;
}

void kvr_kv_pool_report(struct kvr_kv *kv, struct kvr_pool_report *ret_report)
{
	struct pool_kv *p = pool_of(kv);

	flush(p);
	*ret_report = p->report;
	ret_report->coding_errors = p->coding.errors;
	snprintf(ret_report->why, sizeof(ret_report->why), "%s", p->link.why);
}
