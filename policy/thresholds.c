/* SPDX-License-Identifier: Apache-2.0 */
/* The window of scores, the controller, the store of what was learnt, and its file format. */
#include "policy/kvp_thresholds.h"
#include "policy/kvp_zones.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STORE_CAPACITY_MAX 1000000u
#define STAMP_MAX          (UINT64_MAX >> 1) /* read from a file: later ones must be larger */
#define RECORD_WORDS       12u
#define RECORD_BYTES       (KVP_THRESHOLD_MODEL_MAX + 4 * RECORD_WORDS)
#define HEADER_BYTES       16u
#define CHECKSUM_BYTES     8u

static const unsigned char store_magic[8] = { 'K', 'V', 'P', 'T', 'H', 'R', 0, 1 };

int kvp_quality_add(struct kvp_quality *q, float score)
{
	if (!isfinite(score))
		return -EINVAL;
	q->score[q->next] = score;
	q->next = (q->next + 1) % KVP_QUALITY_WINDOW;
	if (q->count < KVP_QUALITY_WINDOW)
		q->count++;
	return 0;
}

int kvp_quality_mean(const struct kvp_quality *q, uint32_t n, double *ret_mean)
{
	double sum = 0;
	uint32_t i;

	if (n > q->count)
		n = q->count;
	if (!n)
		return -ENODATA;
	for (i = 1; i <= n; i++)
		sum += q->score[(q->next + KVP_QUALITY_WINDOW - i) % KVP_QUALITY_WINDOW];
	*ret_mean = sum / n;
	return 0;
}

static int threshold_valid(const struct kvp_threshold *t)
{
	return t->hot_tokens >= KVP_THRESHOLD_HOT_MIN && t->hot_tokens <= t->stale_tokens &&
	       t->stale_tokens <= KVP_ZONE_TOKENS_MAX && t->archive_width < KVP_WIDTHS;
}

int kvp_adapt_init(
	struct kvp_adapt *a, const struct kvp_adapt_opts *opts, const struct kvp_threshold *start)
{
	struct kvp_adapt new = { .now = *start };
	struct kvp_adapt_opts *o = &new.opts;

	if (opts->size != sizeof(*opts) || !(opts->target > 0) || !isfinite(opts->target) ||
		opts->period > KVP_QUALITY_RECENT || !threshold_valid(start))
		return -EINVAL;
	*o = *opts;
	if (!o->period)
		o->period = 4;
	if (!o->most_bits)
		o->most_bits = 4;
	if (!o->least_bits)
		o->least_bits = 2;
	if (kvp_width_of_bits(o->most_bits) > start->archive_width ||
		kvp_width_of_bits(o->least_bits) < start->archive_width ||
		kvp_width_of_bits(o->least_bits) == KVP_WIDTHS)
		return -EINVAL;
	*a = new;
	return 0;
}

int kvp_adapt_retarget(struct kvp_adapt *a, double target)
{
	if (!(target > 0) || !isfinite(target))
		return -EINVAL;
	a->opts.target = target;
	a->hold = 0;
	a->last = 0;
	return 0;
}

static struct kvp_threshold tighter(const struct kvp_adapt *a)
{
	struct kvp_threshold t = a->now;
	/* In 64 bits: 1.2 as 6/5 and 0.9 as 9/10 are exact where a float product is not. */
	uint64_t hot = (uint64_t)t.hot_tokens * 6 / 5;

	t.hot_tokens = hot < t.stale_tokens ? (uint32_t)hot : t.stale_tokens;
	if (t.archive_width > kvp_width_of_bits(a->opts.most_bits))
		t.archive_width--;
	return t;
}

static struct kvp_threshold looser(const struct kvp_adapt *a)
{
	struct kvp_threshold t = a->now;
	uint32_t hot = (uint32_t)((uint64_t)t.hot_tokens * 9 / 10);

	t.hot_tokens = hot > KVP_THRESHOLD_HOT_MIN ? hot : KVP_THRESHOLD_HOT_MIN;
	if (t.archive_width < kvp_width_of_bits(a->opts.least_bits))
		t.archive_width++;
	return t;
}

/* 1: that is another setting. */
static int change(struct kvp_adapt *a, const struct kvp_threshold *next, int32_t direction)
{
	if (next->hot_tokens == a->now.hot_tokens && next->archive_width == a->now.archive_width)
		return 0;
	a->now = *next;
	a->last = direction;
	a->since_change = 0;
	a->changes++;
	return 1;
}

int kvp_adapt_retry(struct kvp_adapt *a)
{
	struct kvp_threshold next = looser(a);

	a->hold = 0;
	return change(a, &next, -1);
}

int kvp_adapt_sample(struct kvp_adapt *a, float score)
{
	struct kvp_threshold next = a->now;
	uint32_t n;
	double mean;
	int r, direction = 0;

	r = kvp_quality_add(&a->quality, score);
	if (r < 0)
		return r;
	a->since_change++;
	if (a->hold)
		a->hold--;
	if (a->since_change % a->opts.period)
		return 0;
	n = a->since_change < KVP_QUALITY_RECENT ? a->since_change : KVP_QUALITY_RECENT;
	r = kvp_quality_mean(&a->quality, n, &mean);
	if (r < 0)
		return r;
	if (mean < a->opts.target) {
		direction = 1;
		next = tighter(a);
		if (a->last < 0)
			a->hold = KVP_QUALITY_WINDOW;
	} else if (mean > a->opts.target * 1.1 && !a->hold) {
		direction = -1;
		next = looser(a);
	}
	return change(a, &next, direction);
}

struct kvp_threshold_store {
	uint32_t capacity;
	uint32_t count;
	uint64_t clock; /* counts puts: which of two records is newer */
	uint64_t *stamp;
	struct kvp_threshold_record *records;
};

struct kvp_threshold_store *kvp_threshold_store_new(uint32_t capacity)
{
	struct kvp_threshold_store *s;

	if (!capacity || capacity > STORE_CAPACITY_MAX)
		return NULL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->capacity = capacity;
	s->records = calloc(capacity, sizeof(*s->records));
	s->stamp = calloc(capacity, sizeof(*s->stamp));
	if (!s->records || !s->stamp)
		return kvp_threshold_store_free(s);
	return s;
}

struct kvp_threshold_store *kvp_threshold_store_free(struct kvp_threshold_store *store)
{
	if (store) {
		free(store->records);
		free(store->stamp);
		free(store);
	}
	return NULL;
}

uint32_t kvp_threshold_store_count(const struct kvp_threshold_store *store)
{
	return store->count;
}

void kvp_threshold_store_at(
	const struct kvp_threshold_store *store, uint32_t i, struct kvp_threshold_record *ret)
{
	*ret = store->records[i];
}

static int name_valid(const char *model)
{
	size_t len = strnlen(model, KVP_THRESHOLD_MODEL_MAX);

	return len > 0 && len < KVP_THRESHOLD_MODEL_MAX;
}

static int shape_valid(const struct kvp_model_shape *s)
{
	return s->layers && s->layers <= KVP_MAX_LAYERS && s->kv_heads && s->kv_heads <= 65536 &&
	       s->head_dim && s->head_dim <= 65536;
}

static int record_valid(const struct kvp_threshold_record *r)
{
	return name_valid(r->model) && shape_valid(&r->shape) && r->layer < r->shape.layers &&
	       r->context_tokens <= KVP_ZONE_TOKENS_MAX && threshold_valid(&r->threshold) &&
	       r->origin <= KVP_ORIGIN_DEFAULT && isfinite(r->quality);
}

int kvp_threshold_store_put(
	struct kvp_threshold_store *store, const struct kvp_threshold_record *record)
{
	uint32_t i, oldest = 0, at = store->count;

	if (!record_valid(record))
		return -EINVAL;
	for (i = 0; i < store->count; i++) {
		const struct kvp_threshold_record *r = &store->records[i];

		if (r->layer == record->layer && r->context_tokens == record->context_tokens &&
			strcmp(r->model, record->model) == 0)
			break;
		if (store->stamp[i] < store->stamp[oldest])
			oldest = i;
	}
	if (i < store->count)
		at = i;
	else if (store->count == store->capacity)
		at = oldest;
	else
		store->count++;
	store->records[at] = *record;
	store->stamp[at] = ++store->clock;
	return 0;
}

static uint32_t distance_u32(uint32_t a, uint32_t b)
{
	return a > b ? a - b : b - a;
}

int kvp_threshold_nearest(const struct kvp_threshold_store *store, const char *model,
	uint32_t layer, uint32_t context_tokens, struct kvp_threshold_record *ret)
{
	uint32_t i, best = KVP_BLOCK_NONE;

	for (i = 0; i < store->count; i++) {
		const struct kvp_threshold_record *r = &store->records[i];
		uint32_t d, b;

		if (r->layer != layer || strcmp(r->model, model) != 0)
			continue;
		if (best == KVP_BLOCK_NONE) {
			best = i;
			continue;
		}
		d = distance_u32(r->context_tokens, context_tokens);
		b = distance_u32(store->records[best].context_tokens, context_tokens);
		if (d < b || (d == b && store->stamp[i] > store->stamp[best]))
			best = i;
	}
	if (best == KVP_BLOCK_NONE)
		return -ENOENT;
	*ret = store->records[best];
	return 0;
}

static double log_distance(uint32_t a, uint32_t b)
{
	return fabs(log2((double)a + 1) - log2((double)b + 1));
}

/* Heads and widths decide how a model bears quantisation more than its depth does. */
static double shape_distance(const struct kvp_threshold_record *r,
	const struct kvp_model_shape *shape, uint32_t layer, uint32_t context_tokens)
{
	double depth = fabs((double)r->layer / r->shape.layers - (double)layer / shape->layers);

	return 2 * log_distance(r->shape.head_dim, shape->head_dim) +
	       log_distance(r->shape.kv_heads, shape->kv_heads) +
	       log_distance(r->shape.layers, shape->layers) + 2 * depth +
	       .5 * log_distance(r->context_tokens, context_tokens);
}

int kvp_threshold_bootstrap(const struct kvp_threshold_store *store, const char *model,
	const struct kvp_model_shape *shape, uint32_t layer, uint32_t context_tokens,
	struct kvp_threshold_record *ret)
{
	struct kvp_threshold_record out = {
		.layer = layer,
		.context_tokens = context_tokens,
		.shape = *shape,
		.threshold = { KVP_ZONE_HOT_DEFAULT, KVP_ZONE_STALE_DEFAULT, KVP_WIDTH_2 },
		.origin = KVP_ORIGIN_DEFAULT,
	};
	double best = INFINITY;
	uint32_t i;

	if (!name_valid(model) || !shape_valid(shape) || layer >= shape->layers ||
		context_tokens > KVP_ZONE_TOKENS_MAX)
		return -EINVAL;
	memcpy(out.model, model, strlen(model) + 1);
	for (i = 0; i < store->count; i++) {
		const struct kvp_threshold_record *r = &store->records[i];
		double d = shape_distance(r, shape, layer, context_tokens);

		/* What is itself a guess must not breed further guesses. */
		if (r->origin != KVP_ORIGIN_MEASURED || d >= best)
			continue;
		best = d;
		out.threshold = r->threshold;
		out.quality = r->quality;
		out.origin = KVP_ORIGIN_INHERITED;
	}
	*ret = out;
	return 0;
}

int kvp_threshold_key(const char *model, uint32_t layer, char *buf, size_t size)
{
	int n = snprintf(NULL, 0, "kv_threshold:%s:%u", model, layer);

	if (n < 0 || (size_t)n >= size)
		return -ENOSPC;
	snprintf(buf, size, "kv_threshold:%s:%u", model, layer);
	return 0;
}

static uint64_t fnv1a(const unsigned char *p, size_t n)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	while (n--)
		h = (h ^ *p++) * UINT64_C(0x100000001b3);
	return h;
}

static void put_le(unsigned char *p, uint64_t v, unsigned int bytes)
{
	unsigned int i;

	for (i = 0; i < bytes; i++)
		p[i] = (unsigned char)(v >> (8 * i));
}

static uint64_t get_le(const unsigned char *p, unsigned int bytes)
{
	uint64_t v = 0;
	unsigned int i;

	for (i = 0; i < bytes; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

static void pack_record(unsigned char *p, const struct kvp_threshold_record *r, uint64_t stamp)
{
	uint32_t quality, words[RECORD_WORDS], i;

	memcpy(&quality, &r->quality, sizeof(quality));
	words[0] = r->layer;
	words[1] = r->context_tokens;
	words[2] = r->shape.layers;
	words[3] = r->shape.kv_heads;
	words[4] = r->shape.head_dim;
	words[5] = r->threshold.hot_tokens;
	words[6] = r->threshold.stale_tokens;
	words[7] = kvp_width_bits(r->threshold.archive_width);
	words[8] = r->origin;
	words[9] = quality;
	words[10] = (uint32_t)stamp;
	words[11] = (uint32_t)(stamp >> 32);
	memset(p, 0, KVP_THRESHOLD_MODEL_MAX);
	memcpy(p, r->model, strlen(r->model));
	for (i = 0; i < RECORD_WORDS; i++)
		put_le(p + KVP_THRESHOLD_MODEL_MAX + 4 * i, words[i], 4);
}

static uint64_t unpack_record(const unsigned char *p, struct kvp_threshold_record *r)
{
	uint32_t w[RECORD_WORDS], i;

	for (i = 0; i < RECORD_WORDS; i++)
		w[i] = (uint32_t)get_le(p + KVP_THRESHOLD_MODEL_MAX + 4 * i, 4);
	memcpy(r->model, p, KVP_THRESHOLD_MODEL_MAX);
	r->layer = w[0];
	r->context_tokens = w[1];
	r->shape = (struct kvp_model_shape){ w[2], w[3], w[4] };
	r->threshold = (struct kvp_threshold){ w[5], w[6], kvp_width_of_bits(w[7]) };
	r->origin = w[8];
	memcpy(&r->quality, &w[9], sizeof(r->quality));
	return w[10] | (uint64_t)w[11] << 32;
}

size_t kvp_threshold_store_packed_size(const struct kvp_threshold_store *store)
{
	return HEADER_BYTES + (size_t)store->count * RECORD_BYTES + CHECKSUM_BYTES;
}

int kvp_threshold_store_pack(const struct kvp_threshold_store *store, void *buf, size_t size)
{
	size_t len = kvp_threshold_store_packed_size(store);
	unsigned char *p = buf;
	uint32_t i;

	if (size < len)
		return -ENOSPC;
	memcpy(p, store_magic, sizeof(store_magic));
	put_le(p + 8, store->count, 4);
	put_le(p + 12, 0, 4);
	for (i = 0; i < store->count; i++)
		pack_record(p + HEADER_BYTES + (size_t)i * RECORD_BYTES, &store->records[i],
			store->stamp[i]);
	put_le(p + len - CHECKSUM_BYTES, fnv1a(p, len - CHECKSUM_BYTES), CHECKSUM_BYTES);
	return 0;
}

int kvp_threshold_store_unpack(struct kvp_threshold_store *store, const void *buf, size_t size)
{
	const unsigned char *p = buf;
	struct kvp_threshold_record r;
	uint32_t i, count;

	if (size < HEADER_BYTES + CHECKSUM_BYTES ||
		memcmp(p, store_magic, sizeof(store_magic)) != 0)
		return -EBADMSG;
	count = (uint32_t)get_le(p + 8, 4);
	if (get_le(p + 12, 4) || count > STORE_CAPACITY_MAX ||
		size != HEADER_BYTES + (size_t)count * RECORD_BYTES + CHECKSUM_BYTES)
		return -EBADMSG;
	if (get_le(p + size - CHECKSUM_BYTES, CHECKSUM_BYTES) != fnv1a(p, size - CHECKSUM_BYTES))
		return -EBADMSG;
	if (count > store->capacity)
		return -ENOSPC;
	for (i = 0; i < count; i++) {
		uint64_t stamp = unpack_record(p + HEADER_BYTES + (size_t)i * RECORD_BYTES, &r);

		if (stamp > STAMP_MAX || !record_valid(&r))
			return -EBADMSG;
	}
	store->clock = 0;
	for (i = 0; i < count; i++) {
		store->stamp[i] = unpack_record(
			p + HEADER_BYTES + (size_t)i * RECORD_BYTES, &store->records[i]);
		if (store->stamp[i] > store->clock)
			store->clock = store->stamp[i];
	}
	store->count = count;
	return 0;
}
