/* SPDX-License-Identifier: Apache-2.0 */
/* One trace through one eviction policy: hits are counted, nothing is stored. */
#include "tools/kvreplay/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "policy/kvp_evict.h"
#include "tools/kvreplay/store.h"

#define BATCH 1024

struct sim {
	const struct sim_job *job;
	const struct trace *t;
	struct kvp_evict *e; /* NULL: no memory */
	struct store *store;
	struct sim_result r;
	uint64_t *evicted_at; /* reference count at the last eviction of a block; 0: never */
	uint64_t seen;        /* references so far */
	uint64_t now;         /* of this request */
	kvp_block_id tip;     /* must not go now */
	bool before;          /* makes room before an insert, not after the request */
};

static double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static int is_tip(void *ctx, kvp_block_id id)
{
	return id == ((const struct sim *)ctx)->tip;
}

static void left_memory(void *ctx, kvp_block_id id)
{
	struct sim *s = ctx;

	s->evicted_at[id] = s->seen;
	s->r.evictions++;
	store_event(s->store, KVP_INGEST_EVENT_EVICT, id, false, s->now);
}

static void was_hot(void *ctx, kvp_block_id id)
{
	struct sim *s = ctx;

	store_event(s->store, KVP_INGEST_EVENT_ACCESS, id, true, s->now);
}

static bool in_memory(const struct sim *s, uint32_t b)
{
	return s->e && kvp_evict_contains(s->e, b);
}

/* Evicts so many blocks and bytes, as far as they can go. */
static void make_room(struct sim *s, uint64_t items, uint64_t bytes, uint64_t now)
{
	kvp_block_id out[BATCH];

	while (items || bytes) {
		size_t n = kvp_evict_victims(s->e, items, bytes, is_tip, s, now, out, BATCH);
		if (!n)
			break;
		uint64_t was = kvp_evict_bytes(s->e);
		for (size_t i = 0; i < n; i++)
			kvp_evict_remove(s->e, out[i], 1, now);
		uint64_t freed = was - kvp_evict_bytes(s->e);
		items -= n < items ? n : items;
		bytes -= freed < bytes ? freed : bytes;
	}
}

static void evict_excess(struct sim *s, uint64_t now)
{
	uint64_t items, bytes;

	kvp_evict_excess(s->e, &items, &bytes);
	make_room(s, items, bytes, now);
}

static void insert(struct sim *s, uint32_t b, kvp_block_id parent, uint32_t bytes, uint64_t now)
{
	const struct trace_block *x = &s->t->block[b];
	bool objects = s->t->format == TRACE_ORACLE;
	struct kvp_evict_item item = {
		.parent = parent,
		.bytes = bytes,
		.depth = x->depth,
		.tokens = x->tokens,
		.flags = x->tokens < s->t->block_tokens ? KVP_EVICT_PARTIAL : 0,
		/* attention makes a deep block dearer; objects all cost the same */
		.cost = objects ? 1e6f : 1 + (float)x->depth / 64,
		.key = { .lo = b + 1 },
	};

	if (!s->e)
		return;
	if (s->before) {
		if (!kvp_evict_admit(s->e, &item, now) || (objects && bytes > s->job->capacity)) {
			s->r.refused++;
			return;
		}
		uint64_t len = kvp_evict_len(s->e), held = kvp_evict_bytes(s->e);
		if (objects)
			make_room(s, 0,
				held + bytes > s->job->capacity ? held + bytes - s->job->capacity
								: 0,
				now);
		else
			make_room(s, len >= s->job->capacity ? len - s->job->capacity + 1 : 0, 0,
				now);
	}
	if (s->evicted_at[b] && s->seen - s->evicted_at[b] < s->job->capacity)
		s->r.reloads++;
	kvp_evict_insert(s->e, b, &item, now);
}

/* How many leading blocks are in either tier; counts them. *ret_memory: of these in memory. */
static uint32_t leading_hits(struct sim *s, const struct trace_request *q, uint32_t *ret_memory)
{
	const uint32_t *ref = s->t->ref + q->first;
	uint32_t k = 0, memory = 0;

	for (; k < q->blocks; k++) {
		bool here = in_memory(s, ref[k]);
		if (!here && !store_has(s->store, ref[k]))
			break;
		memory += here;
	}
	s->r.hits += memory;
	s->r.store_hits += k - memory;
	*ret_memory = memory;
	return k;
}

/* A block that memory lacks comes: from the store, or because a client computed it. */
static void bring(struct sim *s, uint32_t b, kvp_block_id parent, uint32_t bytes, bool found)
{
	insert(s, b, parent, bytes, s->now);
	if (found)
		store_use(s->store, b, s->now);
	else
		store_event(s->store, KVP_INGEST_EVENT_PUT, b, false, s->now);
}

static void request_free(struct sim *s, const struct trace_request *q)
{
	const uint32_t *ref = s->t->ref + q->first;
	uint32_t memory, hits = leading_hits(s, q, &memory);

	for (uint32_t i = q->blocks; i-- > 0;) {
		uint32_t bytes = s->t->format == TRACE_ORACLE ? q->tokens : 1;
		s->seen++;
		if (in_memory(s, ref[i]))
			kvp_evict_access(s->e, ref[i], q->time_ns);
		else
			bring(s, ref[i], KVP_BLOCK_NONE, bytes, i < hits);
	}
}

static void request_leaf(struct sim *s, const struct trace_request *q)
{
	const uint32_t *ref = s->t->ref + q->first;
	uint32_t memory, hits = leading_hits(s, q, &memory);
	struct kvp_evict_request shape = {
		.tip = memory ? ref[memory - 1] : KVP_BLOCK_NONE,
		.blocks = q->blocks,
		.matched = memory,
		.tokens = q->tokens,
	};

	s->seen += memory;
	if (s->e)
		kvp_evict_request(s->e, &shape, q->time_ns);
	if (memory)
		kvp_evict_access_chain(s->e, shape.tip, q->time_ns);
	s->tip = shape.tip;
	for (uint32_t i = memory; i < q->blocks; i++) {
		s->seen++;
		bring(s, ref[i], s->tip, 1, i < hits);
		if (s->e && !in_memory(s, ref[i]))
			break; /* blocks that would hang below it cannot come either */
		s->tip = ref[i];
	}
	s->tip = KVP_BLOCK_NONE;
}

static bool evicts_before(const struct sim_job *job)
{
	static const char *const names[] = { "s3-fifo", "s3-fifo-30", "sieve", "arc" };

	if (job->trace->format == TRACE_ORACLE)
		return true;
	if (job->order == SIM_LEAF)
		return false;
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(job->policy, names[i]))
			return true;
	return false;
}

/* What it learns are prompts, not blocks one by one. */
static bool needs_chains(const char *policy)
{
	return !strcmp(policy, "hazard") || !strcmp(policy, "contest");
}

static int run_policy(struct sim *s)
{
	const struct sim_job *job = s->job;
	bool objects = s->t->format == TRACE_ORACLE;
	bool leaf = !objects && (job->order == SIM_LEAF || needs_chains(job->policy));
	struct kvp_evict_params p = {
		.size = sizeof(p),
		.items = objects ? 0 : job->capacity,
		.bytes = objects ? job->capacity : 0,
		.max_ids = s->t->n_blocks,
		.seed = job->seed,
		.hooks = { .on_evict = left_memory,
			.on_hot_access = job->store ? was_hot : NULL,
			.ctx = s },
	};
	int r = job->capacity ? kvp_evict_new(job->policy, &p, &s->e) : 0;

	if (!r)
		r = store_new(s->t, job->store, job->ingest, job->capacity > 0, &s->store);
	if (r < 0)
		goto out;
	s->before = evicts_before(job) && !(leaf && job->order == SIM_FREE);
	s->tip = KVP_BLOCK_NONE;
	double begin = now_ns();
	for (uint32_t i = 0; i < s->t->n_requests; i++) {
		const struct trace_request *q = &s->t->request[i];
		s->now = q->time_ns;
		if (leaf)
			request_leaf(s, q);
		else
			request_free(s, q);
		if (!s->before && s->e)
			evict_excess(s, q->time_ns);
	}
	s->r.ns_per_access = (now_ns() - begin) / (double)s->t->n_refs;

	struct kvp_evict_memory m = { 0 };
	if (s->e)
		kvp_evict_memory(s->e, &m);
	s->r.state_bytes_per_block = m.per_block;
	s->r.store_writes = store_counts(s->store).writes;
	s->r.store_evictions = store_counts(s->store).evictions;
out:
	store_free(s->store);
	kvp_evict_free(s->e);
	return r;
}

/* ---- Belady's MIN ---- */

struct min_entry {
	uint64_t key; /* next request << 20 | depth: the larger, the sooner it goes */
	uint32_t block;
};

struct min {
	const struct trace *t;
	struct min_entry *heap; /* largest first; entries of old keys are skipped when met */
	uint64_t len;
	uint64_t *next; /* of each reference: the next request with that block */
	uint64_t *key;  /* of each block, while cached */
	bool *cached;
	uint32_t *bytes;
};

#define DEPTH_BITS 20
#define NEVER      (UINT64_MAX >> DEPTH_BITS)

static void min_push(struct min *m, struct min_entry x)
{
	uint64_t i = m->len++;

	while (i && m->heap[(i - 1) / 2].key < x.key) {
		m->heap[i] = m->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	m->heap[i] = x;
}

static struct min_entry min_pop(struct min *m)
{
	struct min_entry top = m->heap[0], x = m->heap[--m->len];
	uint64_t i = 0;

	for (;;) {
		uint64_t c = 2 * i + 1;
		if (c >= m->len)
			break;
		if (c + 1 < m->len && m->heap[c + 1].key > m->heap[c].key)
			c++;
		if (m->heap[c].key <= x.key)
			break;
		m->heap[i] = m->heap[c];
		i = c;
	}
	m->heap[i] = x;
	return top;
}

static void min_evict(struct min *m, uint64_t *len, uint64_t *fill, struct sim_result *r)
{
	struct min_entry x;

	do
		x = min_pop(m);
	while (!m->cached[x.block] || m->key[x.block] != x.key);
	m->cached[x.block] = false;
	*fill -= m->bytes[x.block];
	--*len;
	r->evictions++;
}

static void min_request(struct min *m, const struct sim_job *job, uint32_t index, uint64_t *len,
	uint64_t *fill, struct sim_result *r)
{
	const struct trace_request *q = &m->t->request[index];
	const uint32_t *ref = m->t->ref + q->first;
	bool objects = m->t->format == TRACE_ORACLE;
	uint32_t k = 0;

	while (k < q->blocks && m->cached[ref[k]])
		k++;
	r->hits += k;
	for (uint32_t i = 0; i < q->blocks; i++) {
		uint32_t b = ref[i], depth = m->t->block[b].depth;
		if (!m->cached[b]) {
			m->bytes[b] = objects ? q->tokens : 1;
			if (m->bytes[b] > job->capacity) {
				r->refused++;
				continue;
			}
			while (objects && *fill + m->bytes[b] > job->capacity)
				min_evict(m, len, fill, r);
			m->cached[b] = true;
			*fill += m->bytes[b];
			++*len;
		}
		m->key[b] = m->next[q->first + i] << DEPTH_BITS |
			    (depth >> DEPTH_BITS ? (1u << DEPTH_BITS) - 1 : depth);
		min_push(m, (struct min_entry){ .key = m->key[b], .block = b });
	}
	while (*fill > job->capacity)
		min_evict(m, len, fill, r);
}

static int run_min(const struct sim_job *job, struct sim_result *r)
{
	const struct trace *t = job->trace;
	uint64_t all = 0, len = 0, fill = 0;
	int ret = -ENOMEM;

	for (uint32_t i = 0; i < t->n_requests; i++)
		if (t->request[i].first + t->request[i].blocks > all)
			all = t->request[i].first + t->request[i].blocks;
	struct min m = {
		.t = t,
		.heap = malloc((t->n_refs + 1) * sizeof(*m.heap)),
		.next = malloc(all * sizeof(*m.next)),
		.key = malloc(t->n_blocks * sizeof(*m.key)),
		.cached = calloc(t->n_blocks, sizeof(*m.cached)),
		.bytes = calloc(t->n_blocks, sizeof(*m.bytes)),
	};
	if (!m.heap || !m.next || !m.key || !m.cached || !m.bytes)
		goto out;

	double begin = now_ns();
	for (uint32_t b = 0; b < t->n_blocks; b++)
		m.key[b] = NEVER;
	for (uint32_t i = t->n_requests; i-- > 0;)
		for (uint32_t k = 0; k < t->request[i].blocks; k++) {
			uint64_t at = t->request[i].first + k;
			m.next[at] = m.key[t->ref[at]];
			m.key[t->ref[at]] = i;
		}
	for (uint32_t i = 0; i < t->n_requests; i++)
		min_request(&m, job, i, &len, &fill, r);
	r->ns_per_access = (now_ns() - begin) / (double)t->n_refs;
	ret = 0;
out:
	free(m.heap);
	free(m.next);
	free(m.key);
	free(m.cached);
	free(m.bytes);
	return ret;
}

int sim_run(const struct sim_job *job, struct sim_result *ret_result)
{
	struct sim s = { .job = job, .t = job->trace, .r = { .refs = job->trace->n_refs } };
	int r;

	if (!job->trace->n_blocks)
		return -EINVAL;
	if (!strcmp(job->policy, "min")) {
		if (!job->capacity || job->store)
			return -EINVAL;
		r = run_min(job, &s.r);
	} else {
		s.evicted_at = calloc(job->trace->n_blocks, sizeof(*s.evicted_at));
		r = s.evicted_at ? run_policy(&s) : -ENOMEM;
		free(s.evicted_at);
	}
	if (r == 0)
		*ret_result = s.r;
	return r;
}
