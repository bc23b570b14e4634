/* SPDX-License-Identifier: Apache-2.0 */
/* The pressure ladder against brute force, its order, its monotony and its calm. */
#include "tests/policy/plan_test.h"

#include "policy/kvp_ladder.h"

#define MAX_N 2000

static struct kvp_ladder_block blocks[MAX_N];
static struct kvp_ladder_step steps[MAX_N];
static struct kvp_ladder_tier tiers[KVP_LADDER_TIERS];

static const uint8_t speed[3] = { KVP_TIER_VRAM, KVP_TIER_DRAM, KVP_TIER_STORE };

static struct kvp_ladder *make(uint32_t max, struct kvp_ladder_opts *ret)
{
	struct kvp_ladder *l = NULL;

	kvp_ladder_opts_init(ret, max);
	assert_int_equal(kvp_ladder_new(ret, &l), 0);
	return l;
}

static void plain_tiers(void)
{
	static const struct kvp_ladder_tier t = { 0, 0, .95, .85, .75, 0, 0 };

	for (int i = 0; i < 4; i++)
		tiers[i] = t;
	tiers[KVP_TIER_DRAM].latency = 1e-5;
	tiers[KVP_TIER_DRAM].seconds_per_byte = 1 / 25e9;
	tiers[KVP_TIER_STORE].latency = 1e-4;
	tiers[KVP_TIER_STORE].seconds_per_byte = 1 / 7e9;
}

/* Blocks in one or several tiers, some recipe only, in trees; 8 MiB native each, or so. */
static void random_blocks(uint32_t n, int trees)
{
	uint32_t i, t;

	for (i = 0; i < n; i++) {
		struct kvp_ladder_block *b = &blocks[i];

		*b = (struct kvp_ladder_block){
			.block = 1000 + i,
			.parent = trees && i && below(3) ? below(i) : KVP_BLOCK_NONE,
			.flags = below(8) ? 0 : KVP_LADDER_FIXED,
			.tokens = 64,
			.native_bytes = 4000000 + below(8000000),
			.recipe_bytes = 300 + below(100),
			.reuse = below(10) ? pow(uniform(), 3) : 0,
			.recompute_seconds = 2e-3 + 4e-3 * uniform(),
		};
		t = below(10);
		if (t == 0)
			continue;
		t = t < 6 ? KVP_TIER_VRAM : t < 9 ? KVP_TIER_DRAM : KVP_TIER_STORE;
		b->width[t] = (uint8_t)(below(2) ? 0 : below(5));
		b->bytes[t] = b->native_bytes;
		if (b->width[t])
			b->bytes[t] =
				(uint64_t)((double)b->native_bytes *
					   (double[]){ 1, .508, .258, .196, .133 }[b->width[t]]);
		if (!below(4) && t != KVP_TIER_STORE) {
			uint32_t u =
				t == KVP_TIER_VRAM && below(2) ? KVP_TIER_DRAM : KVP_TIER_STORE;

			b->bytes[u] = b->bytes[t];
			b->width[u] = b->width[t];
		}
	}
}

static double bytes_in(const struct kvp_ladder_block *b, uint32_t n, uint32_t t)
{
	double sum = 0;
	uint32_t i;

	for (i = 0; i < n; i++)
		sum += t == KVP_TIER_RECIPE ? b[i].recipe_bytes : (double)b[i].bytes[t];
	return sum;
}

/* Tiers about as large as what they hold, so that one, two or all are under pressure. */
static void random_tiers(uint32_t n)
{
	uint32_t t;

	plain_tiers();
	for (t = 0; t < 4; t++) {
		double in_view = bytes_in(blocks, n, t),
		       others = below(2) ? 0 : in_view * uniform();

		tiers[t].used = (uint64_t)(in_view + others);
		tiers[t].capacity =
			(uint64_t)(((double)tiers[t].used + 1e4) * (.6 + 2 * uniform()));
		if (t == KVP_TIER_RECIPE)
			tiers[t].capacity *= 1 + below(4);
	}
	if (!below(4))
		tiers[KVP_TIER_STORE].capacity = 0;
}

/* ---- a second solution, by enumeration ---- */

struct outcome {
	double bytes[4];
	double cost;
	int presence; /* 2 payload, 1 recipe, 0 gone */
};

static double read_seconds(const struct kvp_ladder_opts *o, const struct kvp_ladder_block *b,
	uint32_t tier, uint32_t width, double bytes)
{
	double s = tier == KVP_TIER_VRAM
			   ? 0
			   : tiers[tier].latency + bytes * tiers[tier].seconds_per_byte;

	return s + b->tokens * (width ? o->decode_seconds : 0) +
	       b->tokens * o->error_seconds * o->distortion[width];
}

static double state_seconds(const struct kvp_ladder_opts *o, const struct kvp_ladder_block *b)
{
	int s;

	for (s = 0; s < 3; s++)
		if (b->bytes[speed[s]])
			return read_seconds(
				o, b, speed[s], b->width[speed[s]], (double)b->bytes[speed[s]]);
	return b->recompute_seconds;
}

/* All legal outcomes of one block. */
static uint32_t enumerate(const struct kvp_ladder_opts *o, const struct kvp_ladder_block *b,
	uint32_t pressed, struct outcome *out)
{
	double now = state_seconds(o, b);
	uint32_t n = 0, mask, have = 0, t, w, fast = 3;
	int s;

	for (s = 2; s >= 0; s--)
		if (b->bytes[speed[s]]) {
			have |= 1u << speed[s];
			fast = (uint32_t)s;
		}
	for (mask = 1; mask < 8; mask++) { /* some of the payloads stay as they are */
		struct kvp_ladder_block left = *b;
		struct outcome *x = &out[n];

		if (mask & ~have || (b->flags && mask != have))
			continue;
		for (t = 0; t < 3; t++)
			if (!(mask & 1u << t))
				left.bytes[t] = 0;
		*x = (struct outcome){ .presence = 2,
			.cost = b->reuse * fmax(0, state_seconds(o, &left) - now) };
		for (t = 0; t < 3; t++)
			x->bytes[t] = (double)left.bytes[t];
		x->bytes[3] = b->recipe_bytes;
		n++;
	}
	for (s = (int)fast; !b->flags && have && s < 3; s++) /* one payload, moved or narrower */
		for (w = 0; w < 5; w++) {
			uint32_t src = have & 1u << speed[s] ? speed[s] : speed[fast];
			double bytes = w == b->width[src] ? (double)b->bytes[src]
							  : ceil(b->native_bytes * o->ratio[w]);

			t = speed[s];
			if ((t != src && pressed & 1u << t) ||
				(t != src && t == KVP_TIER_DRAM && b->bytes[KVP_TIER_STORE]) ||
				w < b->width[src] || bytes > (double)b->bytes[src] ||
				!tiers[t].capacity || (t == src && w == b->width[src]))
				continue;
			out[n] = (struct outcome){ .presence = 2 };
			out[n].bytes[t] = bytes;
			out[n].bytes[3] = b->recipe_bytes;
			out[n].cost = b->reuse * fmax(0, read_seconds(o, b, t, w, bytes) - now);
			if (t != src)
				out[n].cost +=
					o->move_price *
					(tiers[t].latency + bytes * tiers[t].seconds_per_byte);
			if (w != b->width[src])
				out[n].cost += o->move_price * b->tokens * o->encode_seconds;
			n++;
		}
	if (!have || !b->flags) {
		out[n] = (struct outcome){ .presence = 1,
			.cost = b->reuse * fmax(0, b->recompute_seconds - now) };
		out[n++].bytes[3] = b->recipe_bytes;
	}
	if (!b->flags)
		out[n++] = (struct outcome){ .presence = 0,
			.cost = b->reuse *
				fmax(0, b->recompute_seconds + o->forget_seconds - now) };
	return n;
}

struct brute {
	struct outcome out[8][40];
	uint32_t count[8], n;
	double budget[4], best;
	double missing; /* least that is above the mark of tier `pressed`, no other overfull */
	uint32_t pressed;
	int presence[8];
};

static void brute_force(struct brute *x, uint32_t i, double cost, const double *used)
{
	uint32_t k, t;

	if (i == x->n) {
		if (used[x->pressed] > x->budget[x->pressed])
			x->missing = fmin(x->missing, used[x->pressed] - x->budget[x->pressed]);
		else if (cost < x->best)
			x->best = cost;
		return;
	}
	for (k = 0; k < x->count[i]; k++) {
		const struct outcome *o = &x->out[i][k];
		uint32_t parent = blocks[i].parent;
		double next[4];
		int demand = o->presence, ok = 1;

		if (parent != KVP_BLOCK_NONE) {
			int was = blocks[parent].bytes[0] || blocks[parent].bytes[1] ||
				  blocks[parent].bytes[2];

			if (!was && demand > 1)
				demand = 1;
			if (demand > x->presence[parent])
				continue;
		}
		for (t = 0; t < 4; t++) {
			next[t] = used[t] + o->bytes[t];
			ok &= next[t] <= x->budget[t] || t == x->pressed;
		}
		if (!ok)
			continue;
		x->presence[i] = o->presence;
		brute_force(x, i + 1, cost + o->cost, next);
	}
}

static uint32_t budgets(uint32_t n, double *ret)
{
	uint32_t t, pressed = 0;

	for (t = 0; t < 4; t++) {
		double mark = tiers[t].high * (double)tiers[t].capacity;

		if (!tiers[t].capacity) {
			ret[t] = INFINITY;
			continue;
		}
		if ((double)tiers[t].used > mark) {
			mark = tiers[t].low * (double)tiers[t].capacity;
			pressed |= 1u << t;
		}
		ret[t] = mark - ((double)tiers[t].used - bytes_in(blocks, n, t));
	}
	return pressed;
}

/* Carries the steps out one by one; no tier may overflow on the way. */
static double carry_out(
	const struct kvp_ladder_opts *o, struct kvp_ladder_block *b, uint32_t n, uint32_t count)
{
	uint32_t i, t, seen[MAX_N] = { 0 };
	double cost = 0;

	for (i = 0; i < count; i++) {
		const struct kvp_ladder_step *s = &steps[i];
		struct kvp_ladder_block *x = &b[s->index], old = *x;
		uint32_t k, src = 9;

		assert_true(s->index < n && !seen[s->index]++);
		assert_int_equal(s->block, x->block);
		assert_false(x->flags & KVP_LADDER_FIXED);
		assert_true(
			i == 0 || steps[i - 1].rung <= s->rung ||
			(steps[i - 1].rung == KVP_LADDER_FORGET && s->rung == KVP_LADDER_RECIPE));
		for (k = 3; k-- > 0;)
			if (old.bytes[speed[k]])
				src = speed[k];
		switch (s->rung) {
		case KVP_LADDER_DROP:
			assert_true(s->tiers && old.bytes[s->tier] && !(s->tiers & 1u << s->tier));
			break;
		case KVP_LADDER_REQUANTISE:
			assert_true(s->width > old.width[s->tier]);
			x->bytes[s->tier] = (uint64_t)ceil(old.native_bytes * o->ratio[s->width]);
			x->width[s->tier] = s->width;
			assert_true(x->bytes[s->tier] <= old.bytes[s->tier]);
			break;
		case KVP_LADDER_STORE:
		case KVP_LADDER_SPILL:
			assert_int_equal(s->tier,
				s->rung == KVP_LADDER_STORE ? KVP_TIER_STORE : KVP_TIER_DRAM);
			assert_true(!old.bytes[s->tier] && s->width >= old.width[src]);
			x->bytes[s->tier] =
				s->width == old.width[src]
					? old.bytes[src]
					: (uint64_t)ceil(old.native_bytes * o->ratio[s->width]);
			x->width[s->tier] = s->width;
			break;
		case KVP_LADDER_RECIPE:
			assert_true(src != 9);
			break;
		case KVP_LADDER_FORGET:
			x->recipe_bytes = 0;
			break;
		case KVP_LADDER_RISE:
			assert_true(!old.bytes[s->tier]);
			x->bytes[s->tier] = old.bytes[src];
			x->width[s->tier] = old.width[src];
			break;
		default:
			fail();
		}
		for (t = 0; t < 3; t++)
			if (s->tiers & 1u << t)
				x->bytes[t] = 0;
		for (t = 0; t < 4; t++) { /* the promise about the order of steps */
			uint64_t before = t == 3 ? old.recipe_bytes : old.bytes[t];
			uint64_t after = t == 3 ? x->recipe_bytes : x->bytes[t];

			tiers[t].used += after - before;
			if (after > before)
				assert_true((double)tiers[t].used <=
					    (s->rung == KVP_LADDER_RISE ? tiers[t].rise
									: tiers[t].high) *
						    (double)tiers[t].capacity);
		}
		/* leaves before parents */
		if (s->rung == KVP_LADDER_RECIPE || s->rung == KVP_LADDER_FORGET)
			for (k = 0; k < n; k++)
				if (b[k].parent == s->index)
					assert_true(
						!(b[k].bytes[0] || b[k].bytes[1] || b[k].bytes[2]));
		cost += s->cost;
	}
	return cost;
}

/* Small instances: within 5 % of the optimum; it is in fact the optimum. */
static void test_against_brute_force(void **state)
{
	struct kvp_ladder_opts o;
	struct kvp_ladder *l = make(8, &o);
	static struct brute x;
	uint32_t round, solved = 0, impossible = 0, optimal = 0, least = 0;
	double worst = 0;

	(void)state;
	seed_from_env(30);
	for (round = 0; round < 2000; round++) {
		struct kvp_ladder_block after[8];
		struct kvp_ladder_result r;
		double none[4] = { 0 }, cost, gap;
		uint32_t n = 1 + below(5), i, count, pressed;

		random_blocks(n, 1);
		random_tiers(n);
		x.n = n;
		x.best = x.missing = INFINITY;
		pressed = budgets(n, x.budget);
		if (!pressed)
			continue;
		for (x.pressed = 0; !(pressed & 1u << x.pressed);)
			x.pressed++;
		for (i = 0; i < n; i++)
			x.count[i] = enumerate(&o, &blocks[i], pressed, x.out[i]);
		brute_force(&x, 0, 0, none);
		assert_int_equal(kvp_ladder_plan(l, tiers, blocks, n, steps, &count, &r), 0);
		assert_int_equal(r.under_pressure, pressed);
		if (x.best == INFINITY) {
			impossible++;
			assert_true(r.missing[0] || r.missing[1] || r.missing[2] || r.missing[3]);
			if (pressed ==
				1u << x.pressed) { /* a single tier: what nobody could free */
				for (i = 0; i < 4; i++)
					if (i != x.pressed)
						assert_int_equal(r.missing[i], 0);
				assert_true(r.missing[x.pressed] == ceil(x.missing));
				least++;
			}
			continue;
		}
		solved++;
		optimal += r.exact;
		for (i = 0; i < 4; i++)
			assert_int_equal(r.missing[i], 0);
		memcpy(after, blocks, sizeof(after));
		cost = carry_out(&o, after, n, count);
		assert_true(fabs(cost - r.cost) < 1e-9);
		for (i = 0; i < 4; i++)
			assert_true(bytes_in(after, n, i) <= x.budget[i]);
		gap = (r.cost - x.best) / fmax(fabs(x.best), 1e-9);
		worst = fmax(worst, gap);
		assert_true(gap >= -1e-6 && gap <= .05);
		assert_true(r.bound <= x.best + 1e-9);
	}
	print_message("%u instances, worst gap %.4f %%, %u proven optimal, %u impossible\n", solved,
		100 * worst, optimal, impossible);
	assert_true(solved > 200 && least > 20);
	kvp_ladder_free(l);
}

/* The largest numbers that are allowed: the plan is one still, and leaves the leased ones alone. */
static void test_largest_numbers(void **state)
{
	struct kvp_ladder_opts o;
	struct kvp_ladder *l = NULL;
	uint32_t round, i, t;

	(void)state;
	seed_from_env(35);
	kvp_ladder_opts_init(&o, 8);
	o.error_seconds = o.decode_seconds = o.encode_seconds = KVP_LADDER_NUMBER_MAX;
	o.move_price = o.forget_seconds = o.distortion[4] = KVP_LADDER_NUMBER_MAX;
	assert_int_equal(kvp_ladder_new(&o, &l), 0);
	for (round = 0; round < 300; round++) {
		struct kvp_ladder_result r;
		uint32_t count, n = 1 + below(8);

		random_blocks(n, 1);
		random_tiers(n);
		for (i = 0; i < n; i++) {
			blocks[i].tokens = below(2) ? UINT32_MAX : 64;
			blocks[i].recompute_seconds = below(2) ? KVP_LADDER_NUMBER_MAX : 1e-3;
		}
		for (t = 0; t < 3; t++)
			tiers[t].latency = tiers[t].seconds_per_byte =
				below(2) ? KVP_LADDER_NUMBER_MAX : 1e-9;
		assert_int_equal(kvp_ladder_plan(l, tiers, blocks, n, steps, &count, &r), 0);
		assert_true(count <= n && isfinite(r.cost) && isfinite(r.bound));
		for (i = 0; i < count; i++) {
			assert_true(steps[i].index < n && isfinite(steps[i].cost));
			assert_false(blocks[steps[i].index].flags & KVP_LADDER_FIXED);
		}
	}
	kvp_ladder_free(l);
}

/* Large instances: the prices' own bound says how far from the optimum they can be. */
static void test_bound_on_large_views(void **state)
{
	struct kvp_ladder_opts o;
	struct kvp_ladder *l = make(MAX_N, &o);
	static struct kvp_ladder_block after[MAX_N];
	double worst = 0;
	uint32_t round, met = 0;

	(void)state;
	seed_from_env(31);
	for (round = 0; round < 60; round++) {
		struct kvp_ladder_result r;
		double budget[4], largest = 0;
		uint32_t count, i;

		random_blocks(MAX_N, round % 2);
		random_tiers(MAX_N);
		if (!budgets(MAX_N, budget))
			continue;
		assert_int_equal(kvp_ladder_plan(l, tiers, blocks, MAX_N, steps, &count, &r), 0);
		memcpy(after, blocks, sizeof(after));
		carry_out(&o, after, MAX_N, count);
		if (r.missing[0] || r.missing[1] || r.missing[2] || r.missing[3])
			continue;
		for (i = 0; i < 4; i++)
			assert_true(bytes_in(after, MAX_N, i) <= budget[i]);
		if (r.cost > 1e-4) { /* a tenth of a millisecond over 2,000 blocks is nothing */
			met++;
			worst = fmax(worst, (r.cost - r.bound) / r.cost);
			for (i = 0; i < count; i++)
				largest = fmax(largest, steps[i].cost);
			/* 5 %, or the one block that a budget cuts in two */
			assert_true(r.cost - r.bound <= fmax(.05 * r.cost, largest));
		}
	}
	print_message("%u views, at most %.4f %% above the lower bound\n", met, 100 * worst);
	assert_true(met > 5);
	kvp_ladder_free(l);
}

/* A pool of blocks in VRAM alone, with room below. */
static void vram_only(uint32_t n)
{
	uint32_t i;

	random_blocks(n, 0);
	plain_tiers();
	for (i = 0; i < n; i++) {
		memset(blocks[i].bytes, 0, sizeof(blocks[i].bytes));
		memset(blocks[i].width, 0, sizeof(blocks[i].width));
		blocks[i].flags = 0;
		blocks[i].bytes[KVP_TIER_VRAM] = blocks[i].native_bytes;
	}
	for (i = 0; i < 4; i++) {
		tiers[i].used = (uint64_t)bytes_in(blocks, n, i);
		tiers[i].capacity = UINT64_C(1) << 40;
	}
}

static double recipes(uint32_t count)
{
	double p = 0;
	uint32_t i;

	for (i = 0; i < count; i++)
		if (steps[i].rung == KVP_LADDER_RECIPE || steps[i].rung == KVP_LADDER_FORGET)
			p += blocks[steps[i].index].reuse *
			     blocks[steps[i].index].recompute_seconds;
	return p;
}

/* More pressure never costs less; a dearer recompute is never used more. */
static void test_monotone(void **state)
{
	struct kvp_ladder_opts o;
	struct kvp_ladder *l = make(MAX_N, &o);
	uint32_t round, k, n, i, count;

	(void)state;
	seed_from_env(32);
	for (round = 0; round < 60; round++) {
		struct kvp_ladder_result r;
		double last = -INFINITY, base = 0, gap = 0, slack;

		n = round % 4 ? 2 + below(7) : 300;
		vram_only(n);
		for (k = 0; k < 12; k++) { /* pressure */
			tiers[KVP_TIER_VRAM].capacity =
				(uint64_t)(tiers[KVP_TIER_VRAM].used * (1.04 - .08 * k));
			tiers[KVP_TIER_DRAM].capacity = tiers[KVP_TIER_VRAM].used / 4;
			assert_int_equal(
				kvp_ladder_plan(l, tiers, blocks, n, steps, &count, &r), 0);
			/* few blocks are solved exactly, the others within the bound's gap */
			slack = r.exact ? 1e-6 : .03;
			assert_true(r.cost >= last - slack * fabs(last) - 1e-12);
			last = fmax(last, r.cost);
		}
		for (k = 0; k < 10; k++) { /* price of recomputing */
			double used, now;

			assert_int_equal(
				kvp_ladder_plan(l, tiers, blocks, n, steps, &count, &r), 0);
			used = recipes(count) / pow(1.5, k);
			/* Of two plans that are at most g1 and g2 above the optimum of their prices
			 * a1 < a2, the second computes at most (g1 + g2) / (a2 - a1) more. */
			now = fmax(0, r.cost - r.bound);
			if (k)
				assert_true(used <=
					    base * (1 + 1e-6) + 1e-9 +
						    (gap + now) / (pow(1.5, k) - pow(1.5, k - 1)));
			gap = now;
			base = used;
			for (i = 0; i < n; i++)
				blocks[i].recompute_seconds *= 1.5;
		}
	}
	kvp_ladder_free(l);
}

/* The rungs come up in the order that their costs give: one block, one alternative after another.
 */
static void test_each_rung(void **state)
{
	struct kvp_ladder_opts o;
	struct kvp_ladder *l = make(4, &o);
	struct kvp_ladder_result r;
	uint32_t count;

	(void)state;
	plain_tiers();
	blocks[0] = (struct kvp_ladder_block){ .block = 7,
		.parent = KVP_BLOCK_NONE,
		.tokens = 64,
		.native_bytes = 1000000,
		.recipe_bytes = 300,
		.reuse = .5,
		.recompute_seconds = 1 };
	blocks[0].bytes[KVP_TIER_VRAM] = blocks[0].bytes[KVP_TIER_DRAM] = 1000000;
	tiers[KVP_TIER_VRAM].capacity = tiers[KVP_TIER_VRAM].used = 1000000;
	tiers[KVP_TIER_DRAM].capacity = 10000000;
	tiers[KVP_TIER_DRAM].used = 1000000;
	tiers[KVP_TIER_STORE].capacity = 10000000;

	/* a second copy: it goes, for nothing */
	tiers[KVP_TIER_VRAM].capacity = 2000000;
	tiers[KVP_TIER_DRAM].capacity = 1000000;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 1, steps, &count, &r), 0);
	assert_int_equal(count, 1);
	assert_int_equal(steps[0].rung, KVP_LADDER_DROP);
	assert_int_equal(steps[0].tiers, 1u << KVP_TIER_DRAM);
	assert_true(r.cost == 0);
	tiers[KVP_TIER_VRAM].capacity = 1000000;
	tiers[KVP_TIER_DRAM].capacity = 10000000;

	/* none: half the bytes cost next to nothing in precision */
	blocks[0].bytes[KVP_TIER_DRAM] = 0;
	tiers[KVP_TIER_DRAM].used = 0;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 1, steps, &count, &r), 0);
	assert_int_equal(steps[0].rung, KVP_LADDER_REQUANTISE);
	assert_int_equal(steps[0].width, KVP_WIDTH_8);

	/* already narrow: spill */
	blocks[0].width[KVP_TIER_VRAM] = KVP_WIDTH_2;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 1, steps, &count, &r), 0);
	assert_int_equal(steps[0].rung, KVP_LADDER_SPILL);
	assert_int_equal(steps[0].width, KVP_WIDTH_2);

	/* no room in DRAM: store */
	tiers[KVP_TIER_DRAM].used = 9400000;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 1, steps, &count, &r), 0);
	assert_int_equal(steps[0].rung, KVP_LADDER_STORE);

	/* nor in the store: recipe; no room for recipes either: forget */
	tiers[KVP_TIER_STORE].used = 9400000;
	tiers[KVP_TIER_RECIPE].capacity = 1000;
	tiers[KVP_TIER_RECIPE].used = 300;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 1, steps, &count, &r), 0);
	assert_int_equal(steps[0].rung, KVP_LADDER_RECIPE);
	tiers[KVP_TIER_RECIPE].used = 1000;
	tiers[KVP_TIER_RECIPE].capacity = 800;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 1, steps, &count, &r), 0);
	assert_int_equal(steps[0].rung, KVP_LADDER_FORGET);

	/* leased: nothing, and the plan says what is missing */
	blocks[0].flags = KVP_LADDER_FIXED;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 1, steps, &count, &r), 0);
	assert_int_equal(count, 0);
	assert_true(r.missing[KVP_TIER_VRAM] >= 150000);

	/* between the marks: nothing at all */
	blocks[0].flags = 0;
	tiers[KVP_TIER_RECIPE].capacity = 1200;
	tiers[KVP_TIER_VRAM].capacity = 1100000;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 1, steps, &count, &r), 0);
	assert_int_equal(count, 0);
	assert_int_equal(r.under_pressure, 0);
	kvp_ladder_free(l);
}

/*
 * Hysteresis: a load that steps up, stays, steps down and stays. Every plan is carried out. No
 * block turns round more than once for each step of the load, and the plans cease.
 */
static void test_step_in_load(void **state)
{
	enum { N = 400, TICKS = 120 };
	struct kvp_ladder_opts o;
	struct kvp_ladder *l = make(N, &o);
	uint32_t round;

	(void)state;
	seed_from_env(33);
	for (round = 0; round < 30; round++) {
		static int8_t direction[N];
		static uint8_t reversals[N];
		uint32_t tick, quiet = 0, i;
		uint64_t others = 0, target;

		vram_only(N);
		memset(direction, 0, sizeof(direction));
		memset(reversals, 0, sizeof(reversals));
		tiers[KVP_TIER_VRAM].capacity = tiers[KVP_TIER_VRAM].used * 3 / 2;
		tiers[KVP_TIER_DRAM].capacity =
			(uint64_t)(tiers[KVP_TIER_VRAM].used * (.2 + uniform()));
		for (tick = 0; tick < TICKS; tick++) {
			struct kvp_ladder_result r;
			uint32_t count;

			target = tick >= 20 && tick < 70 ? tiers[KVP_TIER_VRAM].capacity / 2 : 0;
			tiers[KVP_TIER_VRAM].used += target - others;
			others = target;
			for (i = 0; i < N; i++) /* what is known of reuse is never quite the same */
				blocks[i].reuse = fmin(1, blocks[i].reuse * (.95 + .1 * uniform()));
			assert_int_equal(
				kvp_ladder_plan(l, tiers, blocks, N, steps, &count, &r), 0);
			for (i = 0; i < count; i++) {
				int8_t d = steps[i].rung == KVP_LADDER_RISE ? 1 : -1;
				uint32_t k = steps[i].index;

				reversals[k] += direction[k] && direction[k] != d;
				direction[k] = d;
			}
			carry_out(&o, blocks, N, count);
			quiet = count ? 0 : quiet + 1;
			if (tick == 19 || tick == 69 || tick == TICKS - 1)
				assert_true(quiet >= 15); /* settled long before the next step */
		}
		for (i = 0; i < N; i++)
			assert_true(reversals[i] <= 1);
	}
	kvp_ladder_free(l);
}

static void test_refusals(void **state)
{
	struct kvp_ladder_opts o, bad;
	struct kvp_ladder *l = make(4, &o), *none = NULL;
	struct kvp_ladder_result r = { .cost = 77 };
	uint32_t count = 77;

	(void)state;
	bad = o, bad.max_blocks = 0;
	assert_int_equal(kvp_ladder_new(&bad, &none), -EINVAL);
	bad = o, bad.ratio[2] = .9;
	assert_int_equal(kvp_ladder_new(&bad, &none), -EINVAL);
	bad = o, bad.distortion[2] = 0;
	assert_int_equal(kvp_ladder_new(&bad, &none), -EINVAL);
	bad = o, bad.move_price = NAN;
	assert_int_equal(kvp_ladder_new(&bad, &none), -EINVAL);
	bad = o, bad.size = 3;
	assert_int_equal(kvp_ladder_new(&bad, &none), -EINVAL);
	assert_null(none);
	random_blocks(4, 0);
	random_tiers(4);
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 5, steps, &count, &r), -EINVAL);
	blocks[1].parent = 1;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 4, steps, &count, &r), -EINVAL);
	blocks[1].parent = KVP_BLOCK_NONE;
	blocks[2].reuse = 1.1;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 4, steps, &count, &r), -EINVAL);
	blocks[2].reuse = NAN;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 4, steps, &count, &r), -EINVAL);
	blocks[2].reuse = 1;
	blocks[3].width[0] = 5;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 4, steps, &count, &r), -EINVAL);
	blocks[3].width[0] = 0;
	tiers[0].low = tiers[0].high;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 4, steps, &count, &r), -EINVAL);
	assert_int_equal(count, 77);
	assert_true(r.cost == 77);
	tiers[0].low = .85;
	/* numbers so large that sums of them would be no numbers */
	bad = o, bad.error_seconds = 1e13;
	assert_int_equal(kvp_ladder_new(&bad, &none), -EINVAL);
	bad = o, bad.distortion[4] = 1e13;
	assert_int_equal(kvp_ladder_new(&bad, &none), -EINVAL);
	assert_null(none);
	blocks[1].recompute_seconds = 1e13;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 4, steps, &count, &r), -EINVAL);
	blocks[1].recompute_seconds = 1e-3;
	tiers[KVP_TIER_DRAM].seconds_per_byte = 1e13;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 4, steps, &count, &r), -EINVAL);
	tiers[KVP_TIER_DRAM].seconds_per_byte = 1e-9;
	tiers[KVP_TIER_STORE].capacity = 0; /* payloads may be left there: it can still be read */
	tiers[KVP_TIER_STORE].latency = NAN;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 4, steps, &count, &r), -EINVAL);
	assert_int_equal(count, 77);
	tiers[KVP_TIER_STORE].latency = 0;
	tiers[KVP_TIER_VRAM].high = 1.01;
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 0, steps, &count, &r), -EINVAL);
	tiers[KVP_TIER_VRAM].high = 1; /* the whole tier: that can be */
	assert_int_equal(kvp_ladder_plan(l, tiers, blocks, 0, steps, &count, &r), 0);
	assert_int_equal(count, 0);
	assert_null(kvp_ladder_free(l));
	assert_null(kvp_ladder_free(NULL));
}

/* 1,000,000 random blocks through plans: every plan can be carried out as listed. */
static void test_random_views(void **state)
{
	struct kvp_ladder_opts o;
	struct kvp_ladder *l = make(100, &o);
	static struct kvp_ladder_block after[100];
	uint32_t done = 0;

	(void)state;
	seed_from_env(34);
	while (done < 1000000) {
		struct kvp_ladder_result r;
		uint32_t n = 65 + below(36), count;

		random_blocks(n, 1);
		random_tiers(n);
		assert_int_equal(kvp_ladder_plan(l, tiers, blocks, n, steps, &count, &r), 0);
		memcpy(after, blocks, sizeof(after));
		assert_true(fabs(carry_out(&o, after, n, count) - r.cost) < 1e-9);
		done += n;
	}
	kvp_ladder_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_brute_force),
		cmocka_unit_test(test_largest_numbers),
		cmocka_unit_test(test_bound_on_large_views),
		cmocka_unit_test(test_monotone),
		cmocka_unit_test(test_each_rung),
		cmocka_unit_test(test_step_in_load),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_random_views),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
