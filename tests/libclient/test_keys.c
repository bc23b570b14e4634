/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks by key, and layouts that only the engine knows, beside a real daemon. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "libclient/kvpool_admin.h"
#include "tests/libclient/live.h"

#define BYTES 4096u

static struct kvp_client *client;

static struct kvp_space_desc keyed(const char *name, uint32_t key_bytes)
{
	return (struct kvp_space_desc){
		.size = sizeof(struct kvp_space_desc),
		.model = name,
		.layout = KVP_LAYOUT_OPAQUE,
		.layout_name = "pages of my engine, version 3",
		.block_bytes = BYTES,
		.key_bytes = key_bytes,
	};
}

static struct kvp_space *space_of(const struct kvp_space_desc *d)
{
	struct kvp_space *s;

	EQUAL(kvp_space_open(client, d, WAIT_MS, &s), 0);
	return s;
}

static void make_key(uint8_t *key, uint32_t bytes, uint32_t number)
{
	for (uint32_t i = 0; i < bytes; i++)
		key[i] = (uint8_t)(0xa5 + i * 7);
	memcpy(key + bytes - sizeof(number), &number, sizeof(number));
}

static void make_block(uint8_t *block, uint32_t number)
{
	for (uint32_t i = 0; i < BYTES; i++)
		block[i] = (uint8_t)(number * 31 + i * 13 + (i >> 8));
}

static void put(struct kvp_space *s, uint32_t key_bytes, uint32_t number, uint32_t content)
{
	uint8_t key[65], block[BYTES];
	const void *src = block;

	make_key(key + 1, key_bytes, number);
	make_block(block, content);
	EQUAL(kvp_put_keys(s, key + 1, 1, &src, WAIT_MS, NULL), 1);
}

static uint32_t look(struct kvp_space *s, uint32_t key_bytes, uint32_t number)
{
	uint8_t key[64];

	make_key(key, key_bytes, number);
	return (uint32_t)kvp_match_keys(s, key, 1, KVP_MATCH_NO_TOUCH, NULL, NULL);
}

static void is_block(struct kvp_prefix *m, uint32_t i, uint32_t content)
{
	struct kvp_payload_info p = { .size = sizeof(p) };
	uint8_t want[BYTES];

	make_block(want, content);
	EQUAL(kvp_payload(m, i, &p), 0);
	EQUAL(p.bytes, BYTES);
	CHECK(!memcmp(p.addr, want, BYTES));
}

/* ---- descriptions --------------------------------------------------------------------------- */

static void wrong_descriptions_are_refused(void)
{
	static const struct kvp_layer layer = { .kv_heads = 1, .k_dim = 8, .v_dim = 8 };
	struct kvp_space *s = NULL;
	struct kvp_space_desc d;
	char name[200];

	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
#define REFUSED(change)                                                  \
	do {                                                             \
		d = keyed("refused", 32);                                \
		change;                                                  \
		EQUAL(kvp_space_open(client, &d, WAIT_MS, &s), -EINVAL); \
	} while (0)
	REFUSED(d.layout_name = NULL);
	REFUSED(d.layout_name = "");
	REFUSED(d.layout_name = name);
	REFUSED(d.block_bytes = 0);
	REFUSED(d.block_bytes = UINT64_C(1) << 32);
	REFUSED(d.key_bytes = 12);
	REFUSED(d.key_bytes = 18);
	REFUSED(d.key_bytes = 68);
	REFUSED(d.block_tokens = 16);
	REFUSED(d.dtype = KVP_DTYPE_F16);
	REFUSED((d.n_layers = 1, d.layers = &layer));
	REFUSED(d.rope_theta = 10000);
	REFUSED(d.rope_params[3] = 1);
	REFUSED(d.layout = KVP_LAYOUT_OPAQUE + 1);
	REFUSED(d.layout = KVP_LAYOUT_LCND);
#undef REFUSED
	d = model("refused", KVP_LAYOUT_LCND);
	d.key_bytes = 32;
	EQUAL(kvp_space_open(client, &d, WAIT_MS, &s), -EINVAL);
	d = keyed("refused", 32);
	d.block_bytes = UINT32_MAX;
	EQUAL(kvp_space_open(client, &d, WAIT_MS, &s), -E2BIG);
	CHECK(!s);
}

/* ---- storing and finding -------------------------------------------------------------------- */

/* Keys of all sizes, compared to their last byte, from memory that is not aligned. */
static void what_is_put_is_found(void)
{
	static const uint32_t sizes[] = { 16, 20, 32, 48, 64 };

	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		struct kvp_space_desc d = keyed("found", sizes[k]);
		struct kvp_space *s = space_of(&d);
		uint8_t keys[4 * 64 + 1];
		uint64_t found[1] = { ~UINT64_C(0) };
		const void *addrs[4];
		struct kvp_prefix_info info = { .size = sizeof(info) };
		struct kvp_payload_info p = { .size = sizeof(p) };
		struct kvp_prefix *m;

		put(s, sizes[k], 1, 1);
		put(s, sizes[k], 2, 2);
		put(s, sizes[k], 4, 4);
		EQUAL(kvp_flush(client, WAIT_MS), 0);
		for (uint32_t i = 0; i < 4; i++)
			make_key(keys + 1 + i * sizes[k], sizes[k], i + 1);
		/* A new extent is a miss until the library has mapped it. */
		for (int i = 0; i < 60000; i++) {
			EQUAL(kvp_match_keys(s, keys + 1, 4, 0, found, &m) >= 0, 1);
			if (found[0] == 0xb)
				break;
			kvp_release(m);
			usleep(1000);
		}
		EQUAL(found[0], 0xb);
		is_block(m, 0, 1);
		is_block(m, 1, 2);
		is_block(m, 3, 4);
		EQUAL(kvp_payload(m, 2, &p), -ENOENT);
		EQUAL(kvp_payload(m, 4, &p), -ENOENT);
		EQUAL(kvp_payloads(m, 0, 4, addrs), 2);
		EQUAL(kvp_payloads(m, 3, 4, addrs), 1);
		EQUAL(kvp_match_info(m, &info), 0);
		EQUAL(info.flags, KVP_MATCHED_LEASED);
		EQUAL(info.n_tokens, 0);
		EQUAL(kvp_touch(m), 0);
		EQUAL(kvp_release(m), 0);
		EQUAL(kvp_release(m), -EALREADY);
		EQUAL(kvp_match_keys(s, keys + 1, 4, KVP_MATCH_LEADING, found, &m), 2);
		EQUAL(found[0], 3);
		EQUAL(kvp_payload(m, 3, &p), -ENOENT);
		EQUAL(kvp_release(m), 0);
		EQUAL(kvp_match_keys(s, keys + 1, 4, 0, found, NULL), 3);
		EQUAL(kvp_match_keys(s, keys + 1, 0, 0, NULL, &m), 0);
		EQUAL(kvp_payload(m, 0, &p), -ENOENT);
		EQUAL(kvp_release(m), 0);
		kvp_space_close(s);
	}
}

/* Nothing is shared between spaces that differ in anything, nor with spaces of token ids. */
static void spaces_are_kept_apart(void)
{
	struct kvp_space_desc a = keyed("apart", 64), b = keyed("apart", 64), c = keyed("apart", 0);
	struct kvp_space *sa = space_of(&a), *sb, *sc;
	uint32_t words[16];
	struct kvp_prefix *m;
	struct kvp_prefix_info info = { .size = sizeof(info) };

	b.layout_name = "pages of my engine, version 4";
	c.block_tokens = 16;
	sb = space_of(&b);
	sc = space_of(&c);
	put(sa, 64, 7, 7);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	EQUAL(look(sa, 64, 7), 1);
	EQUAL(look(sb, 64, 7), 0);
	make_key((uint8_t *)words, 64, 7);
	EQUAL(kvp_match(sc, words, 16, NULL, &m), 0);
	EQUAL(kvp_match_info(m, &info), 0);
	EQUAL(info.n_tokens + info.tail_tokens, 0);
	EQUAL(kvp_release(m), 0);
	EQUAL(kvp_match_keys(sc, words, 1, 0, NULL, NULL), -EINVAL);
	kvp_space_close(sa);
	kvp_space_close(sb);
	kvp_space_close(sc);
}

/* What is there stays as it is; a run that is wrong somewhere is refused whole. */
static void commits_by_key(void)
{
	struct kvp_space_desc d = keyed("commits", 32), t = keyed("commits", 0);
	struct kvp_space *s = space_of(&d), *other = space_of(&t);
	struct kvp_grant *g[3], *foreign;
	uint8_t keys[3 * 32];
	struct kvp_ref ref;

	EQUAL(kvp_reserve_run(s, 3, WAIT_MS, NULL, g), 3);
	EQUAL(kvp_reserve(other, WAIT_MS, NULL, &foreign), 0);
	for (uint32_t i = 0; i < 3; i++) {
		make_key(keys + 32 * i, 32, i);
		make_block(kvp_grant_addr(g[i]), 50 + i);
	}
	EQUAL(kvp_commit_keys(g, 3, NULL, 0), -EINVAL);
	EQUAL(kvp_commit_keys(g, 0, keys, 0), -EINVAL);
	EQUAL(kvp_commit_keys(g, 3, keys, 8), -EINVAL);
	EQUAL(kvp_commit_keys(&foreign, 1, keys, 0), -EINVAL);
	EQUAL(kvp_commit_keys((struct kvp_grant *[]){ g[0], foreign }, 2, keys, 0), -EINVAL);
	EQUAL(kvp_commit_keys((struct kvp_grant *[]){ g[0], g[0] }, 2, keys, 0), -EINVAL);
	/* Neither part of a key nor a parent. */
	EQUAL(kvp_commit(g[2], kvp_ref_root(), (uint32_t *)(void *)keys, 7, NULL, 0), 0);
	EQUAL(kvp_grant_wait(g[2], WAIT_MS), -EINVAL);
	EQUAL(kvp_grant_release(g[2]), 0);
	EQUAL(kvp_commit_keys(g, 1, keys, 0), 1);
	EQUAL(kvp_grant_ref(g[0], &ref), 0);
	EQUAL(kvp_commit(g[1], ref, (uint32_t *)(void *)keys, 8, NULL, 0), 0);
	EQUAL(kvp_grant_wait(g[1], WAIT_MS), -EINVAL);
	EQUAL(kvp_grant_release(g[1]), 0);
	EQUAL(kvp_grant_wait(g[0], WAIT_MS), 0);
	EQUAL(kvp_commit_keys(g, 1, keys, 0), -EALREADY);
	EQUAL(kvp_reserve(s, WAIT_MS, NULL, &g[1]), 0);
	make_block(kvp_grant_addr(g[1]), 99);
	EQUAL(kvp_commit_keys(&g[1], 1, keys, 0), 1);
	EQUAL(kvp_grant_wait(g[1], WAIT_MS), KVP_COMMITTED_DUPLICATE);
	EQUAL(kvp_grant_release(g[1]), 0);
	put(s, 32, 0, 99);
	{
		struct kvp_prefix *m;

		EQUAL(kvp_match_keys(s, keys, 1, 0, NULL, &m), 1);
		is_block(m, 0, 50);
		EQUAL(kvp_match_ref(m, 1, &ref), -EINVAL);
		kvp_release(m);
	}
	EQUAL(kvp_grant_release(g[0]), 0);
	EQUAL(kvp_grant_release(foreign), 0);
	kvp_space_close(s);
	kvp_space_close(other);
}

/* ---- leases --------------------------------------------------------------------------------- */

#define MANY (KVP_CLIENT_LEASES + 100)

static void more_than_can_be_leased(void)
{
	struct kvp_space_desc d = keyed("many", 16);
	struct kvp_space *s = space_of(&d);
	uint8_t *keys = malloc(16 * MANY), block[BYTES];
	const void **src = malloc(MANY * sizeof(*src));
	uint64_t found[(MANY + 63) / 64];
	struct kvp_prefix *m;
	uint32_t n = 0;

	CHECK(keys && src);
	make_block(block, 1);
	for (uint32_t i = 0; i < MANY; i++) {
		make_key(keys + 16 * i, 16, i);
		src[i] = block;
	}
	EQUAL(kvp_put_keys(s, keys, MANY, src, WAIT_MS, NULL), MANY);
	EQUAL(kvp_put_keys(s, keys, MANY, src, WAIT_MS, NULL), MANY);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	EQUAL(kvp_match_keys(s, keys, MANY, 0, NULL, NULL), MANY);
	for (int i = 0; i < 60000; i++) {
		n = (uint32_t)kvp_match_keys(s, keys, MANY, 0, found, &m);
		if (n == KVP_CLIENT_LEASES)
			break;
		kvp_release(m);
		usleep(1000);
	}
	EQUAL(n, KVP_CLIENT_LEASES);
	EQUAL(found[0], UINT64_MAX);
	EQUAL(found[(MANY - 1) / 64], 0);
	for (uint32_t i = 0; i < KVP_CLIENT_LEASES; i++)
		is_block(m, i, 1);
	EQUAL(kvp_match_keys(s, keys + 16 * (MANY - 1), 1, 0, found, &(struct kvp_prefix *){ 0 }),
		0);
	EQUAL(kvp_release(m), 0);
	EQUAL(kvp_match_keys(s, keys + 16 * (MANY - 1), 1, 0, found, &m), 1);
	EQUAL(kvp_release(m), 0);
	free(src);
	free(keys);
	kvp_space_close(s);
}

/* Uses that the daemon has counted of the block stored so many before the last one. */
static long long uses(uint32_t before_last)
{
	struct kvp_admin *admin;
	json_t *answer, *row;
	char ask[80], *text;
	long long n;

	snprintf(ask, sizeof(ask), "{\"verb\":\"blocks\",\"sort\":\"serial\",\"limit\":%u}",
		before_last + 1);
	EQUAL(kvp_admin_open(NULL, &admin), 0);
	EQUAL(kvp_admin_request(admin, ask, WAIT_MS, 0, &text), 0);
	kvp_admin_close(admin);
	answer = json_loads(text, 0, NULL);
	free(text);
	row = json_array_get(json_object_get(answer, "blocks"), before_last);
	CHECK(row);
	n = json_integer_value(json_object_get(row, "hits"));
	json_decref(answer);
	return n;
}

#define USED 700u /* more than one thread's log of uses has room for */

/* Of more than can be told, the uses of the first keys are. */
static void the_first_keys_count_as_used(void)
{
	struct kvp_space_desc d = keyed("used", 16);
	struct kvp_space *s = space_of(&d);
	uint8_t keys[16 * USED];
	struct kvp_prefix *m;
	int r = 0;

	for (uint32_t i = 0; i < USED; i++) {
		put(s, 16, i, i);
		make_key(keys + 16 * i, 16, i);
	}
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	for (int i = 0; i < 60000 && r < (int)USED; i++) {
		r = kvp_match_keys(s, keys, USED, KVP_MATCH_NO_TOUCH, NULL, &m);
		EQUAL(kvp_release(m), 0);
		usleep(r < (int)USED ? 1000 : 0);
	}
	EQUAL(r, USED);
	EQUAL(uses(USED - 1), 0);
	EQUAL(kvp_match_keys(s, keys, USED, 0, NULL, &m), USED);
	/* Told of with what is asked for next. */
	for (int i = 0; i < 1000; i++)
		EQUAL(kvp_flush(client, WAIT_MS), 0);
	EQUAL(uses(USED - 1), 1);
	EQUAL(uses(USED - 100), 1);
	EQUAL(kvp_release(m), 0);
	kvp_space_close(s);
}

/* Each block is leased by itself: what is deleted goes when its lease ends, and not before. */
static void a_leased_block_stays(void)
{
	struct kvp_space_desc d = keyed("stays", 16);
	struct kvp_space *s = space_of(&d);
	struct kvp_timeline *line;
	struct kvp_prefix *m;
	uint32_t words[2][4];

	make_key((uint8_t *)words[0], 16, 1);
	make_key((uint8_t *)words[1], 16, 2);
	put(s, 16, 1, 11);
	put(s, 16, 2, 12);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	EQUAL(kvp_match_keys(s, words, 2, 0, NULL, &m), 2);
	EQUAL(kvp_delete(s, words[0], 4, WAIT_MS), 1);
	EQUAL(kvp_delete(s, words[1], 4, WAIT_MS), 1);
	usleep(100000);
	is_block(m, 0, 11);
	is_block(m, 1, 12);
	EQUAL(look(s, 16, 1), 1);
	EQUAL(kvp_timeline_new(client, &line), 0);
	EQUAL(kvp_release_after(m, line, 5), 0);
	usleep(100000);
	EQUAL(look(s, 16, 2), 1);
	EQUAL(kvp_timeline_advance(line, 5), 0);
	for (int i = 0; i < 60000 && look(s, 16, 1) + look(s, 16, 2); i++)
		usleep(1000);
	EQUAL(look(s, 16, 1) + look(s, 16, 2), 0);
	kvp_timeline_free(line);
	kvp_space_close(s);
}

/* A pool much smaller than what is stored: old keys go, leased ones and their bytes do not. */
/* What the daemon has to say of its own tables: nothing is wrong. */
static void check_all(void)
{
	struct kvp_admin *admin;
	char *answer = NULL;
	int r;

	EQUAL(kvp_admin_open(NULL, &admin), 0);
	r = kvp_admin_request(admin, "{\"verb\": \"check\"}", WAIT_MS, 0, &answer);
	if (r < 0)
		fprintf(stderr, "check: %.400s\n", answer ? answer : "");
	EQUAL(r, 0);
	free(answer);
	kvp_admin_close(admin);
}

/*
 * Chains of four blocks under keys, more than there is room for: of each that is not whole the end is
 * what is missing, also where its first block was stored long ago and used by nobody.
 */
static void the_last_of_a_chain_goes_first(void)
{
	const uint32_t bytes = 32, chains = 3000, length = 4;
	struct kvp_space_desc d = keyed("chains", bytes);
	struct kvp_space *s = space_of(&d);
	uint32_t whole = 0, part = 0, none = 0;
	struct kvp_grant *g[4];
	uint8_t keys[4 * 32];

	for (uint32_t c = 0; c < chains; c++) {
		const void *parents[4] = { NULL, keys, keys + 32, keys + 64 };

		EQUAL(kvp_reserve_run(s, length, WAIT_MS, NULL, g), length);
		for (uint32_t i = 0; i < length; i++) {
			make_key(keys + (size_t)i * bytes, bytes, c * length + i);
			make_block(kvp_grant_addr(g[i]), c * length + i);
		}
		EQUAL(kvp_commit_keys_under(g, length, keys, parents, KVP_COMMIT_RELEASE), length);
	}
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	for (uint32_t c = 0; c < chains; c++) {
		uint64_t found = 0;
		uint32_t n;

		for (uint32_t i = 0; i < length; i++)
			make_key(keys + (size_t)i * bytes, bytes, c * length + i);
		CHECK(kvp_match_keys(s, keys, length, KVP_MATCH_NO_TOUCH, &found, NULL) >= 0);
		for (n = 0; found >> n & 1; n++)
			;
		EQUAL(found >> n, 0);
		*(n == length ? &whole : n ? &part : &none) += 1;
	}
	printf("%u chains are whole, %u begin, %u are gone\n", whole, part, none);
	CHECK(none + part && whole + part);
	check_all();
	/* The space is emptied for others like any other. */
	kvp_space_close(s);
	for (uint32_t i = 0; i < 70; i++) {
		char name[16];

		snprintf(name, sizeof(name), "other-%u", i);
		d.model = name;
		kvp_space_close(space_of(&d));
	}
	check_all();
	d.model = "chains";
	s = space_of(&d);
	make_key(keys, bytes, (chains - 1) * length);
	EQUAL(kvp_match_keys(s, keys, 1, 0, NULL, NULL), 0);
	kvp_space_close(s);
}

static void old_keys_are_evicted(void)
{
	struct kvp_space_desc d = keyed("evicted", 32);
	struct kvp_space *s;
	uint8_t key[32];
	struct kvp_prefix *m;
	uint32_t there = 0;

	s = space_of(&d);
	put(s, 32, 0, 77);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	make_key(key, 32, 0);
	EQUAL(kvp_match_keys(s, key, 1, 0, NULL, &m), 1);
	for (uint32_t i = 1; i <= 20000; i++)
		put(s, 32, i, i);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	is_block(m, 0, 77);
	EQUAL(kvp_release(m), 0);
	for (uint32_t i = 1; i <= 20000; i++)
		there += look(s, 32, i);
	CHECK(there > 1000 && there <= 4096);
	CHECK(look(s, 32, 20000) == 1);
	kvp_space_close(s);
}

/* ---- token ids and a layout of the engine's own --------------------------------------------- */

static void a_layout_that_only_the_engine_knows(void)
{
	struct kvp_space_desc d = keyed("tokens", 0);
	struct kvp_space_props props = { .size = sizeof(props) };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_view_plane plane = { 0 };
	struct kvp_view view = { .size = sizeof(view), .planes = &plane };
	uint32_t tokens[40];
	struct kvp_space *s;
	struct kvp_grant *g[3];
	struct kvp_prefix *m;
	uint64_t bytes;

	d.block_tokens = 16;
	s = space_of(&d);
	EQUAL(kvp_space_info(s, &props), 0);
	EQUAL(props.block_bytes, BYTES);
	EQUAL(props.block_tokens, 16);
	EQUAL(props.n_layers, 0);
	for (uint32_t i = 0; i < 40; i++)
		tokens[i] = 3 * i + 1;
	EQUAL(kvp_reserve_run(s, 3, WAIT_MS, NULL, g), 3);
	for (uint32_t i = 0; i < 3; i++)
		make_block(kvp_grant_addr(g[i]), 200 + i);
	EQUAL(kvp_commit_run(g, 3, kvp_ref_root(), tokens, 40, NULL, KVP_COMMIT_RELEASE, NULL), 3);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	EQUAL(kvp_match(s, tokens, 40, NULL, &m), 0);
	EQUAL(kvp_match_info(m, &info), 0);
	EQUAL(info.n_tokens, 40);
	for (uint32_t i = 0; i < 3; i++)
		is_block(m, i, 200 + i);
	EQUAL(kvp_get(m, 0, 40, &view, 0), -EOPNOTSUPP);
	EQUAL(kvp_put(s, tokens, 40, 0, &view, NULL, NULL), -EOPNOTSUPP);
	EQUAL(kvp_view_dense(s, KVP_VIEW_NCLD, NULL, 40, NULL, &bytes), -EOPNOTSUPP);
	EQUAL(kvp_reserve(s, WAIT_MS, NULL, g), 0);
	EQUAL(kvp_fork(m, g[0]), -EOPNOTSUPP);
	EQUAL(kvp_grant_release(g[0]), 0);
	EQUAL(kvp_release(m), 0);
	kvp_space_close(s);
}

static void lookups_are_counted(void)
{
	struct kvp_space_desc d = keyed("counted", 16);
	struct kvp_space *s = space_of(&d);
	struct kvp_counters before = { .size = sizeof(before) }, after = before;
	uint8_t keys[3 * 16];

	put(s, 16, 1, 1);
	put(s, 16, 2, 2);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	for (uint32_t i = 0; i < 3; i++)
		make_key(keys + 16 * i, 16, i + 1);
	EQUAL(kvp_stats(client, &before), 0);
	EQUAL(kvp_match_keys(s, keys, 2, 0, NULL, NULL), 2);
	EQUAL(kvp_match_keys(s, keys, 3, 0, NULL, NULL), 2);
	EQUAL(kvp_match_keys(s, keys + 32, 1, 0, NULL, NULL), 0);
	EQUAL(kvp_match_keys(s, keys, 3, KVP_MATCH_NO_TOUCH, NULL, NULL), 2);
	EQUAL(kvp_stats(client, &after), 0);
	EQUAL(after.hits - before.hits, 1);
	EQUAL(after.partial_hits - before.partial_hits, 1);
	EQUAL(after.misses - before.misses, 1);
	EQUAL(after.tokens_asked - before.tokens_asked, 6 * 4);
	EQUAL(after.tokens_matched - before.tokens_matched, 4 * 4);
	kvp_space_close(s);
}

int main(void)
{
	static const struct live_test tests[] = {
		{ "wrong descriptions are refused", wrong_descriptions_are_refused },
		{ "what is put is found", what_is_put_is_found },
		{ "spaces are kept apart", spaces_are_kept_apart },
		{ "commits by key", commits_by_key },
		{ "more than can be leased", more_than_can_be_leased },
		{ "the first keys count as used", the_first_keys_count_as_used },
		{ "a leased block stays", a_leased_block_stays },
		{ "a layout that only the engine knows", a_layout_that_only_the_engine_knows },
		{ "lookups are counted", lookups_are_counted },
		{ "the last of a chain goes first", the_last_of_a_chain_goes_first },
		{ "old keys are evicted", old_keys_are_evicted },
	};
	struct kvp_open_opts o = { .size = sizeof(o), .default_timeout_ms = WAIT_MS };
	int r;

	if (getenv("KVPOOL_SOCKET"))
		EQUAL(kvp_open(&o, &client), 0);
	r = live_main(tests, sizeof(tests) / sizeof(tests[0]));
	kvp_close(client);
	return r;
}
