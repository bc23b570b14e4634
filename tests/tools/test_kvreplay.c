/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvreplay's readers and simulation: hostile input, a second and obvious implementation of the
 * policies, and what another simulator counts. test_kvreplay_data.c has the real traces.
 */
#include "tests/tools/kvreplay_test.h"

#include "tests/policy/random.h"
#include "tools/kvreplay/generate.h"

static char path[] = "/tmp/kvreplay-test-XXXXXX";

static void write_file(const char *text, size_t len)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, len, f), len);
	assert_int_equal(fclose(f), 0);
}

static int load_text(const char *text, enum trace_format format, char *error, size_t len)
{
	struct trace_options o = { 0 };
	struct trace t;

	write_file(text, strlen(text));
	int r = trace_load(path, format, &o, &t, error, len);
	if (r == 0)
		trace_done(&t);
	return r;
}

static void test_hostile_input(void **state)
{
	(void)state;
	static const char *const bad[] = {
		"",
		"\n\n",
		"not json\n",
		"[]\n",
		"{}\n",
		"{\"timestamp\":0,\"input_length\":512,\"output_length\":1}\n",
		"{\"timestamp\":0,\"input_length\":512,\"output_length\":1,\"hash_ids\":5}\n",
		"{\"timestamp\":0,\"input_length\":512,\"output_length\":1,\"hash_ids\":[\"a\"]}\n",
		"{\"timestamp\":0,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1,2]}\n",
		"{\"timestamp\":0,\"input_length\":-1,\"output_length\":1,\"hash_ids\":[]}\n",
		"{\"timestamp\":-5,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n",
		"{\"timestamp\":99999999999999999999,\"input_length\":1,\"output_length\":1,"
		"\"hash_ids\":[1]}\n",
		"{\"timestamp\":0,\"input_length\":4294967296,\"output_length\":1,\"hash_ids\":[1]}"
		"\n",
		"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]\n",
	};
	char error[256];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		error[0] = 0;
		assert_int_equal(load_text(bad[i], TRACE_MOONCAKE, error, sizeof(error)), -EBADMSG);
		assert_non_null(strstr(error, path));
	}
	assert_int_equal(load_text("{\"timestamp\":1,\"input\":\"abc\"}\n", TRACE_AGENT, error,
				 sizeof(error)),
		-EBADMSG);
	assert_int_equal(load_text("{\"timestamp\":1,\"input\":7,\"session_id\":\"x\"}\n",
				 TRACE_AGENT, error, sizeof(error)),
		-EBADMSG);
	assert_int_equal(
		load_text("12345678901234567890123", TRACE_ORACLE, error, sizeof(error)), -EBADMSG);

	struct trace_options o = { 0 };
	struct trace t;
	assert_int_equal(
		trace_load("/nonexistent", TRACE_ORACLE, &o, &t, error, sizeof(error)), -ENOENT);
}

static void test_agent_reader(void **state)
{
	(void)state;
	/* out of order, two sessions; the second prompt of s extends the first */
	static const char text[] =
		"{\"timestamp\":3000,\"input\":\"abcdefgh\",\"session_id\":\"s\"}\n"
		"{\"timestamp\":1000,\"input\":\"abcdef\",\"output\":\"xy\",\"session_id\":\"s\"}\n"
		"{\"timestamp\":9000,\"input\":\"abcd\",\"session_id\":\"t\"}\n";
	struct trace_options o = { .block_tokens = 4, .keep_text = true, .overlap = true };
	struct trace t;
	char error[256];

	write_file(text, sizeof(text) - 1);
	assert_int_equal(trace_load(path, TRACE_AGENT, &o, &t, error, sizeof(error)), 0);
	assert_int_equal(t.n_requests, 3);
	assert_int_equal(t.n_sessions, 2);
	assert_int_equal(t.n_refs, 5);
	assert_int_equal(t.n_blocks, 3); /* abcd, ef below it, efgh below it */
	assert_int_equal(t.longest, 2);
	assert_int_equal(t.request[0].time_ns, 0);
	assert_int_equal(t.request[1].time_ns, 0);
	assert_int_equal(t.request[2].time_ns, 2000000);
	assert_memory_equal(t.text + t.request[0].text, "abcdef", 6);
	assert_int_equal(t.request[0].output_tokens, 2);
	assert_int_equal(t.block[t.ref[t.request[0].first + 1]].tokens, 2);
	trace_done(&t);
}

/* ---- a second implementation: arrays, linear scans, nothing shared with policy/ ---- */

#define OBJECTS  120u
#define REQUESTS 6000u

struct slow {
	bool in[OBJECTS];
	uint32_t bytes[OBJECTS];
	double rank[OBJECTS]; /* smallest goes first; ties by `when` */
	uint64_t when[OBJECTS];
	uint32_t freq[OBJECTS];
	uint64_t fill;
};

static uint32_t slow_victim(const struct slow *s)
{
	uint32_t v = UINT32_MAX;

	for (uint32_t i = 0; i < OBJECTS; i++)
		if (s->in[i] && (v == UINT32_MAX || s->rank[i] < s->rank[v] ||
					(!(s->rank[v] < s->rank[i]) && s->when[i] < s->when[v])))
			v = i;
	return v;
}

/* Misses of lru, fifo, lfu-da and gdsf. */
static uint64_t slow_ranked(const struct trace *t, const char *policy, uint64_t capacity)
{
	struct slow s = { .fill = 0 };
	double age = 0;
	uint64_t misses = 0;

	for (uint32_t i = 0; i < t->n_requests; i++) {
		uint32_t x = t->ref[t->request[i].first], bytes = t->request[i].tokens;
		bool hit = s.in[x];
		if (!hit) {
			misses++;
			if (bytes > capacity)
				continue;
			while (s.fill + bytes > capacity) {
				uint32_t v = slow_victim(&s);
				age = s.rank[v];
				s.in[v] = false;
				s.fill -= s.bytes[v];
			}
			s.in[x] = true;
			s.freq[x] = 0;
			s.bytes[x] = bytes;
			s.fill += bytes;
		}
		s.freq[x]++;
		if (!strcmp(policy, "lru") || (!strcmp(policy, "fifo") && !hit))
			s.rank[x] = i;
		else if (!strcmp(policy, "lfu-da"))
			s.rank[x] = age + s.freq[x];
		else if (!strcmp(policy, "gdsf"))
			s.rank[x] = age + s.freq[x] * 1e6 / s.bytes[x];
		s.when[x] = i;
	}
	return misses;
}

/* A queue as an array, oldest first. */
struct queue {
	uint32_t id[4 * OBJECTS];
	uint32_t n;
};

static uint32_t queue_pop(struct queue *q, uint32_t at)
{
	uint32_t id = q->id[at];

	memmove(q->id + at, q->id + at + 1, (--q->n - at) * sizeof(q->id[0]));
	return id;
}

static uint32_t queue_find(const struct queue *q, uint32_t id)
{
	uint32_t i = 0;

	while (i < q->n && q->id[i] != id)
		i++;
	return i;
}

static uint64_t queue_bytes(const struct queue *q, const uint32_t *bytes)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < q->n; i++)
		sum += bytes[q->id[i]];
	return sum;
}

static uint64_t slow_sieve(const struct trace *t, uint64_t capacity)
{
	struct queue q = { .n = 0 };
	uint32_t bytes[OBJECTS] = { 0 }, hand = 0; /* hand: place in the queue */
	bool visited[OBJECTS] = { false };
	uint64_t misses = 0;

	for (uint32_t i = 0; i < t->n_requests; i++) {
		uint32_t x = t->ref[t->request[i].first], size = t->request[i].tokens;
		if (queue_find(&q, x) < q.n) {
			visited[x] = true;
			continue;
		}
		misses++;
		if (size > capacity)
			continue;
		while (queue_bytes(&q, bytes) + size > capacity) {
			while (visited[q.id[hand]]) {
				visited[q.id[hand]] = false;
				hand = (hand + 1) % q.n;
			}
			queue_pop(&q, hand);
			/* from the young end back to the old one, before anything comes */
			if (hand == q.n)
				hand = 0;
		}
		bytes[x] = size;
		visited[x] = false;
		q.id[q.n++] = x;
	}
	return misses;
}

struct slow_s3 {
	struct queue small, main, ghost;
	uint32_t bytes[OBJECTS], freq[OBJECTS];
	uint64_t small_cap, main_cap, ghost_cap;
	uint32_t threshold;
};

static void slow_s3_evict(struct slow_s3 *s)
{
	bool from_main = queue_bytes(&s->main, s->bytes) > s->main_cap || !s->small.n;

	while (from_main && s->main.n) {
		uint32_t x = queue_pop(&s->main, 0);
		if (!s->freq[x])
			return;
		s->freq[x] = (s->freq[x] < 3 ? s->freq[x] : 3) - 1;
		s->main.id[s->main.n++] = x;
	}
	while (!from_main && s->small.n) {
		uint32_t x = queue_pop(&s->small, 0);
		if (s->freq[x] >= s->threshold) {
			s->freq[x] = 0;
			s->main.id[s->main.n++] = x;
			continue;
		}
		if (s->bytes[x] > s->ghost_cap)
			return;
		while (queue_bytes(&s->ghost, s->bytes) + s->bytes[x] > s->ghost_cap)
			queue_pop(&s->ghost, 0);
		s->ghost.id[s->ghost.n++] = x;
		return;
	}
}

static uint64_t slow_s3fifo(const struct trace *t, uint64_t capacity, unsigned tenths, uint32_t thr)
{
	struct slow_s3 *s = calloc(1, sizeof(*s));
	uint64_t misses = 0;

	assert_non_null(s);
	s->small_cap = capacity * tenths / 10;
	s->main_cap = capacity - s->small_cap;
	s->ghost_cap = (uint64_t)((double)capacity * 0.9);
	s->threshold = thr;
	for (uint32_t i = 0; i < t->n_requests; i++) {
		uint32_t x = t->ref[t->request[i].first], size = t->request[i].tokens;
		if (queue_find(&s->small, x) < s->small.n || queue_find(&s->main, x) < s->main.n) {
			s->freq[x]++;
			continue;
		}
		misses++;
		uint32_t g = queue_find(&s->ghost, x);
		bool known = g < s->ghost.n;
		if (known)
			queue_pop(&s->ghost, g);
		if (size > capacity || (!known && size >= s->small_cap))
			continue;
		while (queue_bytes(&s->small, s->bytes) + queue_bytes(&s->main, s->bytes) + size >
			capacity)
			slow_s3_evict(s);
		s->bytes[x] = size;
		s->freq[x] = 0;
		struct queue *q = known ? &s->main : &s->small;
		q->id[q->n++] = x;
	}
	free(s);
	return misses;
}

static uint64_t slow_slru(const struct trace *t, uint64_t capacity)
{
	struct queue probation = { .n = 0 }, prot = { .n = 0 };
	uint32_t bytes[OBJECTS] = { 0 };
	uint64_t misses = 0;

	for (uint32_t i = 0; i < t->n_requests; i++) {
		uint32_t x = t->ref[t->request[i].first], size = t->request[i].tokens;
		uint32_t p = queue_find(&probation, x), r = queue_find(&prot, x);
		if (p < probation.n || r < prot.n) {
			queue_pop(p < probation.n ? &probation : &prot, p < probation.n ? p : r);
			prot.id[prot.n++] = x;
			while (queue_bytes(&prot, bytes) > capacity - capacity / 5)
				probation.id[probation.n++] = queue_pop(&prot, 0);
			continue;
		}
		misses++;
		if (size > capacity)
			continue;
		while (queue_bytes(&probation, bytes) + queue_bytes(&prot, bytes) + size > capacity)
			queue_pop(probation.n ? &probation : &prot, 0);
		bytes[x] = size;
		probation.id[probation.n++] = x;
	}
	return misses;
}

/* ARC as its paper's figure 4 has it; all objects weigh `unit`. */
static void arc_replace(struct queue *t1, struct queue *t2, struct queue *b1, struct queue *b2,
	double p, bool in_b2)
{
	bool from1 = t1->n && ((in_b2 && t1->n >= p) || t1->n > p);

	if (from1 || !t2->n)
		b1->id[b1->n++] = queue_pop(t1, 0);
	else
		b2->id[b2->n++] = queue_pop(t2, 0);
}

static uint64_t slow_arc(const struct trace *t, uint32_t c)
{
	static struct queue t1, t2, b1, b2;
	double p = 0;
	uint64_t misses = 0;

	t1.n = t2.n = b1.n = b2.n = 0;
	for (uint32_t i = 0; i < t->n_requests; i++) {
		uint32_t x = t->ref[t->request[i].first], at;
		if ((at = queue_find(&t1, x)) < t1.n || (at = queue_find(&t2, x)) < t2.n) {
			queue_pop(queue_find(&t1, x) < t1.n ? &t1 : &t2, at);
			t2.id[t2.n++] = x;
			continue;
		}
		misses++;
		if ((at = queue_find(&b1, x)) < b1.n) {
			p += b2.n > b1.n ? (double)b2.n / b1.n : 1;
			p = p < c ? p : c;
			queue_pop(&b1, at);
			if (t1.n + t2.n >= c)
				arc_replace(&t1, &t2, &b1, &b2, p, false);
			t2.id[t2.n++] = x;
		} else if ((at = queue_find(&b2, x)) < b2.n) {
			p -= b1.n > b2.n ? (double)b1.n / b2.n : 1;
			p = p > 0 ? p : 0;
			queue_pop(&b2, at);
			if (t1.n + t2.n >= c)
				arc_replace(&t1, &t2, &b1, &b2, p, true);
			t2.id[t2.n++] = x;
		} else {
			if (t1.n + b1.n >= c && t1.n < c) {
				queue_pop(&b1, 0);
				if (t1.n + t2.n >= c)
					arc_replace(&t1, &t2, &b1, &b2, p, false);
			} else if (t1.n + b1.n >= c) {
				queue_pop(&t1, 0);
			} else if (t1.n + t2.n >= c) {
				if (t1.n + t2.n + b1.n + b2.n >= 2 * c)
					queue_pop(&b2, 0);
				arc_replace(&t1, &t2, &b1, &b2, p, false);
			}
			t1.id[t1.n++] = x;
		}
	}
	return misses;
}

static uint64_t slow_belady(const struct trace *t, uint64_t capacity)
{
	bool in[OBJECTS] = { false };
	uint32_t bytes[OBJECTS] = { 0 };
	uint64_t fill = 0, misses = 0;

	for (uint32_t i = 0; i < t->n_requests; i++) {
		uint32_t x = t->ref[t->request[i].first], size = t->request[i].tokens;
		if (in[x])
			continue;
		misses++;
		if (size > capacity)
			continue;
		while (fill + size > capacity) {
			uint32_t victim = 0, far = 0;
			for (uint32_t v = 0; v < OBJECTS; v++) {
				uint32_t n = i + 1;
				while (in[v] && n < t->n_requests &&
					t->ref[t->request[n].first] != v)
					n++;
				if (in[v] && n > far)
					far = n, victim = v;
			}
			in[victim] = false;
			fill -= bytes[victim];
		}
		in[x] = true;
		bytes[x] = size;
		fill += size;
	}
	return misses;
}

/* oracleGeneral records of a skewed, drifting workload; one size for each object. */
static void load_objects(uint64_t seed, bool one_size, struct trace *ret_trace)
{
	unsigned char *buf = calloc(REQUESTS, 24);
	struct trace_options o = { 0 };
	char error[256];

	assert_non_null(buf);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		uint32_t r = (uint32_t)(seed >> 33);
		uint32_t x = r % 3 ? r % 7 * (r / 16 % 9) : (r / 8 + i / 20) % OBJECTS;
		uint32_t size = one_size ? 1 : 1 + x * 37 % 50;
		memcpy(buf + 24 * i, &i, 4);
		memcpy(buf + 24 * i + 4, &x, 4);
		memcpy(buf + 24 * i + 12, &size, 4);
	}
	write_file((const char *)buf, (size_t)REQUESTS * 24);
	free(buf);
	assert_int_equal(trace_load(path, TRACE_ORACLE, &o, ret_trace, error, sizeof(error)), 0);
	assert_int_equal(ret_trace->n_requests, REQUESTS);
	assert_in_range(ret_trace->n_blocks, 2, OBJECTS);
}

/* C-008 to C-011: not one miss more or less than the obvious way to do it. */
static void test_second_implementation(void **state)
{
	(void)state;
	static const uint64_t capacities[] = { 60, 150, 400, 1000 };
	uint64_t first = random_print_seed();

	for (uint64_t seed = first; seed < first + 4; seed++) {
		struct trace t;
		load_objects(seed, false, &t);
		for (size_t c = 0; c < sizeof(capacities) / sizeof(capacities[0]); c++) {
			uint64_t cap = capacities[c];
			static const char *const ranked[] = { "lru", "fifo", "lfu-da", "gdsf" };
			for (size_t p = 0; p < 4; p++)
				assert_int_equal(fast_misses(&t, ranked[p], cap),
					slow_ranked(&t, ranked[p], cap));
			assert_int_equal(fast_misses(&t, "sieve", cap), slow_sieve(&t, cap));
			assert_int_equal(fast_misses(&t, "slru", cap), slow_slru(&t, cap));
			assert_int_equal(
				fast_misses(&t, "s3-fifo", cap), slow_s3fifo(&t, cap, 1, 2));
			assert_int_equal(
				fast_misses(&t, "s3-fifo-30", cap), slow_s3fifo(&t, cap, 3, 1));
			assert_int_equal(fast_misses(&t, "min", cap), slow_belady(&t, cap));
		}
		trace_done(&t);
		load_objects(seed, true, &t);
		for (uint32_t cap = 5; cap <= 80; cap += 15)
			assert_int_equal(fast_misses(&t, "arc", cap), slow_arc(&t, cap));
		trace_done(&t);
	}
}

/* C-010: a scan of ten times the capacity must not cost S3-FIFO the blocks in use. */
static void test_scan_resistance(void **state)
{
	(void)state;
	struct kvp_evict_params p = { .size = sizeof(p), .items = 100, .max_ids = 2000 };
	struct kvp_evict *e = NULL;
	kvp_block_id victim;

	assert_int_equal(kvp_evict_new("s3-fifo", &p, &e), 0);
	for (kvp_block_id i = 0; i < 1100; i++) {
		struct kvp_evict_item item = {
			.parent = KVP_BLOCK_NONE, .bytes = 1, .key = { .lo = i + 1 }
		};
		kvp_evict_admit(e, &item, i);
		if (kvp_evict_len(e) == 100) {
			assert_int_equal(kvp_evict_victims(e, 1, 0, NULL, NULL, i, &victim, 1), 1);
			assert_int_equal(kvp_evict_remove(e, victim, 1, i), 0);
		}
		assert_int_equal(kvp_evict_insert(e, i, &item, i), 0);
		for (int k = 0; i < 50 && k < 3; k++)
			assert_int_equal(kvp_evict_access(e, i, i), 0);
	}
	for (kvp_block_id i = 0; i < 50; i++)
		assert_true(kvp_evict_contains(e, i));
	kvp_evict_free(e);
}

/* ---- another simulator ---- */

/* Objects of skewed popularity, of one size or of six, written as libCacheSim's oracleGeneral. */
static void load_skewed(bool sized, struct trace *ret_trace)
{
	struct trace_options load = { .time_scale = 1 };
	FILE *f = fopen(path, "w");
	char error[256];

	assert_non_null(f);
	random_seed(11);
	for (uint32_t i = 0; i < 60000; i++) {
		uint64_t a = below(20000), b = below(20000), x = a * b / 20000;
		struct {
			uint32_t time;
			uint64_t object;
			uint32_t bytes;
			int64_t next;
		} __attribute__((packed))
		record = { i / 100, x + 1, sized ? 512u << x % 6 : 1, -1 };

		assert_int_equal(fwrite(&record, sizeof(record), 1, f), 1);
	}
	assert_int_equal(fclose(f), 0);
	assert_int_equal(trace_load(path, TRACE_ORACLE, &load, ret_trace, error, sizeof(error)), 0);
	assert_int_equal(ret_trace->n_refs, 60000);
}

/*
 * C-008, C-009, C-011: misses as libCacheSim 0.3.5 counts them on the same file. Its S3-FIFO, GDSF,
 * LFU-DA and SLRU are defined otherwise (docs/policies.md), its ARC is with objects of several sizes.
 */
static void test_libcachesim_counts(void **state)
{
	(void)state;
	static const struct {
		bool sized;
		const char *policy;
		uint64_t misses[4];
	} table[] = {
		{ false, "lru", { 59403, 57001, 48687, 24558 } },
		{ false, "fifo", { 59407, 57008, 49105, 26832 } },
		{ false, "sieve", { 59098, 56078, 46170, 22977 } },
		{ false, "arc", { 59043, 55740, 45845, 23145 } },
		{ false, "min", { 52211, 43171, 30000, 15991 } },
		{ true, "lru", { 58839, 55366, 43187, 16181 } },
		{ true, "fifo", { 58852, 55447, 44031, 17597 } },
		{ true, "sieve", { 58448, 54066, 40117, 16057 } },
		{ true, "min", { 49265, 39642, 25052, 14972 } },
	};
	static const uint64_t capacity[2][4] = { { 100, 500, 2000, 8000 },
		{ 1 << 20, 4 << 20, 16 << 20, 64 << 20 } };

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct trace t;

		load_skewed(table[i].sized, &t);
		for (size_t c = 0; c < 4; c++)
			assert_int_equal(
				fast_misses(&t, table[i].policy, capacity[table[i].sized][c]),
				table[i].misses[c]);
		trace_done(&t);
	}
}

/* ---- generated workloads ---- */

static void load_generated(const char *kind, uint32_t requests, struct trace *ret_trace)
{
	struct generate_options o = { .kind = kind, .requests = requests, .rate = 4, .seed = 3 };
	struct trace_options load = { 0 };
	char error[256];
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_int_equal(generate(&o, f), 0);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(
		trace_load(path, TRACE_MOONCAKE, &load, ret_trace, error, sizeof(error)), 0);
}

/*
 * What the generator makes: how many requests repeat all full blocks of an earlier prompt, and how
 * many more a part of one. test_kvreplay_run.py asks a real daemon.
 */
static void test_generated_repeats(void **state)
{
	(void)state;
	static const struct {
		const char *kind;
		double exact, partial;
	} want[] = { { "chat", .95, .03 }, { "rag", .60, .30 }, { "batch", 1, 0 },
		{ "mixed", .50, .30 } };

	for (size_t k = 0; k < 4; k++) {
		struct trace t;
		uint32_t exact = 0, partial = 0;
		uint64_t exact_hits = 0, partial_hits = 0;
		load_generated(want[k].kind, 5000, &t);
		bool *seen = calloc(t.n_blocks, 1), *end = calloc(t.n_blocks, 1);
		assert_true(seen && end);
		for (uint32_t i = 0; i < t.n_requests; i++) {
			const struct trace_request *q = &t.request[i];
			const uint32_t *ref = t.ref + q->first;
			uint32_t hits = 0;
			while (hits < q->blocks && seen[ref[hits]])
				hits++;
			if (hits && end[ref[hits - 1]])
				exact++, exact_hits += hits;
			else if (hits)
				partial++, partial_hits += hits;
			for (uint32_t b = 0; b < q->blocks; b++)
				seen[ref[b]] = true;
			if (q->tokens >= 512)
				end[ref[q->tokens / 512 - 1]] = true;
		}
		double n = t.n_requests, refs = (double)t.n_refs;
		print_message("%s: %.3f of the requests and %.3f of the blocks by whole prompts, "
			      "%.3f and %.3f more by parts\n",
			want[k].kind, exact / n, (double)exact_hits / refs, partial / n,
			(double)partial_hits / refs);
		assert_true(exact / n > want[k].exact - .02 && exact / n < want[k].exact + .02);
		assert_true(
			partial / n > want[k].partial - .02 && partial / n < want[k].partial + .02);
		double gain = (double)partial_hits / (double)exact_hits;
		if (!strcmp(want[k].kind, "mixed"))
			assert_true(gain > .2 && gain < .3);
		free(seen);
		free(end);
		trace_done(&t);
	}
}

static void test_hazard_generated(void **state)
{
	(void)state;
	static const char *const kinds[] = { "chat", "rag", "batch", "mixed" };
	static const uint64_t capacity[] = { 1000, 3000, 10000 };

	for (size_t k = 0; k < 4; k++) {
		struct trace t;
		load_generated(kinds[k], 10000, &t);
		keeps_the_bound(&t, "hazard", capacity, 3);
		keeps_the_bound(&t, "contest", capacity, 3);
		trace_done(&t);
	}
}

/*
 * E-046, E-047, in simulation: a cache of half the distinct blocks. The default policy evicts no more
 * than LRU, and less of what it evicts is back within as many references as the cache has blocks.
 */
static void test_no_thrash(void **state)
{
	(void)state;
	static const char *const kinds[] = { "chat", "rag", "batch", "mixed" };

	for (size_t k = 0; k < 4; k++) {
		struct sim_result lru, own;
		struct trace t;
		load_generated(kinds[k], 10000, &t);
		struct sim_job job = { .trace = &t, .capacity = t.n_blocks / 2, .order = SIM_LEAF };
		job.policy = "lru";
		assert_int_equal(sim_run(&job, &lru), 0);
		job.policy = KVP_EVICT_DEFAULT;
		assert_int_equal(sim_run(&job, &own), 0);
		print_message(
			"%s: of %llu references, evictions %llu, reloads %llu; lru %llu, %llu\n",
			kinds[k], (unsigned long long)own.refs, (unsigned long long)own.evictions,
			(unsigned long long)own.reloads, (unsigned long long)lru.evictions,
			(unsigned long long)lru.reloads);
		assert_true(own.evictions > 0 && own.evictions <= lru.evictions);
		assert_true(own.reloads <= lru.reloads && own.reloads < own.evictions / 10);
		trace_done(&t);
	}
}

static void test_mrc_generated(void **state)
{
	(void)state;
	static const char *const kinds[] = { "chat", "rag", "batch", "mixed" };

	for (size_t k = 0; k < 4; k++) {
		struct trace t;
		load_generated(kinds[k], 10000, &t);
		mrc_is_near(kinds[k], &t);
		trace_done(&t);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hostile_input),
		cmocka_unit_test(test_agent_reader),
		cmocka_unit_test(test_second_implementation),
		cmocka_unit_test(test_scan_resistance),
		cmocka_unit_test(test_libcachesim_counts),
		cmocka_unit_test(test_generated_repeats),
		cmocka_unit_test(test_hazard_generated),
		cmocka_unit_test(test_no_thrash),
		cmocka_unit_test(test_mrc_generated),
	};
	int fd = mkstemp(path);

	if (fd < 0)
		return 1;
	close(fd);
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(path);
	return r;
}
