/* SPDX-License-Identifier: Apache-2.0 */
/* Spaces under salts, beside a real daemon: the same tokens, and nothing in common. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/kvpool_admin.h"
#include "tests/libclient/live.h"

#define USER_SALT                                                     \
	"\"salt\":\"000000000000000000000000000000000000000000000000" \
	"0000000000000009\""
static const uint8_t lora[32] = { 1, 2, 3 }, user[32] = { [31] = 9 }, none[32];

/* The engine uses its space under a salt from now on; returns the plain one. */
static struct kvp_space *salted(struct engine *e, const uint8_t salt[32])
{
	struct kvp_space *plain = e->space;

	EQUAL(kvp_space_salted(plain, salt, &e->space), 0);
	return plain;
}

static uint32_t tokens_found(struct engine *e, uint32_t n)
{
	struct kvp_prefix_info info;

	kvp_release(find(e, n, 0, &info));
	return info.n_tokens + info.tail_tokens;
}

/* The bytes of the prompt, all others. */
static void other_bytes(struct engine *e)
{
	for (size_t i = 0; i < (size_t)(N + T) * TOKEN_BYTES; i++)
		e->kv[i] ^= 0x5a;
}

static void nothing_in_common(void)
{
	const uint32_t n = 3 * T + 20;
	struct engine *a = engine_new("salts", KVP_LAYOUT_LCND, 1);
	struct engine *b = engine_new("salts", KVP_LAYOUT_LCND, 1);
	struct engine *c = engine_new("salts", KVP_LAYOUT_LCND, 1);
	struct kvp_space *plain_a = salted(a, lora), *plain_b = salted(b, lora),
			 *plain_c = c->space;
	struct kvp_prefix_info info;
	struct kvp_prefix *m;

	store(a, n, KVP_PUT_PARTIAL);
	/* whole, partial, and a match that ends inside the first or a later block */
	m = find_soon(b, n, n, &info);
	same_bytes(b, m, n);
	kvp_release(m);
	for (uint32_t len = 0; len <= n + 9; len += 9) {
		uint32_t most = len < n ? len : n;

		/* inside a block 8 tokens at least, or none */
		most = most % T < 8 ? most / T * T : most;
		EQUAL(found_soon(b, len, 0, most), most);
		EQUAL(tokens_found(c, len), 0);
	}
	salted(c, user);
	EQUAL(tokens_found(c, n), 0);
	EQUAL(tokens_found(c, 40), 0);
	/* The same tokens once more under that, and under none, with bytes of their own. */
	other_bytes(c);
	store(c, n, KVP_PUT_PARTIAL);
	m = find_soon(c, n, n, &info);
	same_bytes(c, m, n);
	kvp_release(m);
	c->space = plain_c;
	EQUAL(tokens_found(c, n), 0);
	salted(c, none); /* which is none */
	EQUAL(tokens_found(c, n), 0);
	store(c, 2 * T, 0);
	c->space = plain_c;
	m = find_soon(c, 2 * T, 2 * T, &info);
	same_bytes(c, m, 2 * T);
	kvp_release(m);
	m = find_soon(b, n, n, &info);
	same_bytes(b, m, n);
	kvp_release(m);
	/* Deleting one leaves the others. */
	EQUAL(kvp_delete(a->space, a->tokens, n, WAIT_MS), 4);
	EQUAL(tokens_found(b, n), 0);
	EQUAL(found_soon(c, 2 * T, 0, 2 * T), 2 * T);
	salted(c, user);
	EQUAL(found_soon(c, n, 0, n), n);
	EQUAL(kvp_put_outcome(c->space, c->tokens, n, 0, WAIT_MS, NULL), n);
	c->space = plain_c;
	b->space = kvp_space_close(b->space);
	b->space = plain_b;
	a->space = plain_a; /* which the salted one goes with */
	engine_free(a);
	engine_free(b);
	engine_free(c);
}

static void keys_differ(void)
{
	struct engine *e = engine_new("keys", KVP_LAYOUT_NCLD, 2);
	struct kvp_space *plain = e->space, *other;
	struct kvp_digest k[3][3];

	EQUAL(kvp_chunk_keys(plain, e->tokens, 3 * T, k[0], 3), 3);
	salted(e, lora);
	EQUAL(kvp_chunk_keys(e->space, e->tokens, 3 * T, k[1], 3), 3);
	EQUAL(kvp_space_salted(plain, none, &other), 0);
	EQUAL(kvp_chunk_keys(other, e->tokens, 3 * T, k[2], 3), 3);
	CHECK(!memcmp(k[0], k[2], sizeof(k[0])));
	for (uint32_t i = 0; i < 3; i++)
		CHECK(k[0][i].lo != k[1][i].lo && k[0][i].hi != k[1][i].hi);
	EQUAL(kvp_space_salted(e->space, user, &other), -EINVAL);
	EQUAL(kvp_space_salted(NULL, user, &other), -EINVAL);
	EQUAL(kvp_space_salted(plain, NULL, &other), -EINVAL);
	EQUAL(kvp_space_salted(plain, user, NULL), -EINVAL);
	e->space = plain;
	engine_free(e);
}

/* Slots of a handle are committed under its salt; a chain goes on after what it names. */
static void written_in_place(void)
{
	struct engine *e = engine_new("in place", KVP_LAYOUT_NCLD, 3);
	struct kvp_space *plain = salted(e, user);
	struct kvp_grant *g[3], *mixed[2];
	struct kvp_prefix_info info;
	struct kvp_prefix *m, *longer;
	struct kvp_match_opts o = { .size = sizeof(o) };
	struct kvp_ref last;

	EQUAL(kvp_reserve_run(e->space, 2, WAIT_MS, NULL, g), 2);
	EQUAL(kvp_reserve(plain, WAIT_MS, NULL, &g[2]), 0);
	mixed[0] = g[0];
	mixed[1] = g[2];
	EQUAL(kvp_commit_run(mixed, 2, kvp_ref_root(), e->tokens, 2 * T, NULL, 0, &last), -EINVAL);
	for (uint32_t i = 0; i < 3; i++)
		memcpy(kvp_grant_addr(g[i]), e->kv + (size_t)i * T * TOKEN_BYTES, T * TOKEN_BYTES);
	EQUAL(kvp_commit_run(
		      g, 2, kvp_ref_root(), e->tokens, 2 * T, NULL, KVP_COMMIT_RELEASE, &last),
		2);
	EQUAL(kvp_commit(g[2], last, e->tokens + 2 * T, T, NULL, KVP_COMMIT_RELEASE), 0);
	EQUAL(kvp_flush(e->client, WAIT_MS), 0);
	m = find_soon(e, T, T, &info);
	/* A prefix of one handle goes on in another of the same salt, and in no other. */
	o.after = m;
	EQUAL(kvp_match(plain, e->tokens + T, 2 * T, &o, &longer), -EINVAL);
	EQUAL(kvp_space_salted(plain, user, &e->space), 0);
	EQUAL(kvp_match(e->space, e->tokens + T, 2 * T, &o, &longer), 0);
	kvp_release(m);
	same_bytes(e, longer, 3 * T);
	kvp_release(longer);
	e->space = plain;
	EQUAL(tokens_found(e, 3 * T), 0);
	engine_free(e);
}

/* A partial block of a salted chain is gone on with in a copy. */
static void forked(void)
{
	struct engine *e = engine_new("forked", KVP_LAYOUT_NCLD, 4);
	struct kvp_space *plain = salted(e, lora);
	struct kvp_prefix_info info;
	struct kvp_grant *g, *other;
	struct kvp_prefix *m;

	store(e, 20, KVP_PUT_PARTIAL);
	m = find_soon(e, 19, 19, &info);
	EQUAL(info.tail_tokens, 19);
	EQUAL(kvp_reserve(plain, WAIT_MS, NULL, &other), 0);
	EQUAL(kvp_fork(m, other), -EINVAL);
	EQUAL(kvp_grant_release(other), 0);
	EQUAL(kvp_reserve(e->space, WAIT_MS, NULL, &g), 0);
	EQUAL(kvp_fork(m, g), 19);
	kvp_release(m);
	memcpy((uint8_t *)kvp_grant_addr(g) + (size_t)19 * TOKEN_BYTES,
		e->kv + (size_t)19 * TOKEN_BYTES, (size_t)(T - 19) * TOKEN_BYTES);
	EQUAL(kvp_commit(g, kvp_ref_root(), e->tokens, T, NULL, 0), 0);
	EQUAL(kvp_grant_wait(g, WAIT_MS), 0);
	kvp_grant_release(g);
	m = find_soon(e, T, T, &info);
	same_bytes(e, m, T);
	kvp_release(m);
	e->space = plain;
	EQUAL(tokens_found(e, T), 0);
	engine_free(e);
}

/* A match is taken over under the salt that it was made under, and under no other. */
static void handed_over(void)
{
	struct engine *a = engine_new("tickets", KVP_LAYOUT_LCND, 5);
	struct engine *b = engine_new("tickets", KVP_LAYOUT_LCND, 5);
	struct kvp_space *plain_a = salted(a, lora), *plain_b = b->space;
	const uint32_t lengths[] = { 3 * T, T, 30, 2 * T + 9 };
	struct kvp_prefix_info info;
	struct kvp_prefix *m, *got;
	struct kvp_handover h;

	store(a, 3 * T, 0);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		struct kvp_space *right, *wrong;
		int r = -EAGAIN;

		m = find_soon(a, lengths[i], lengths[i], &info);
		EQUAL(kvp_match_export(m, &h), 0);
		EQUAL(kvp_space_salted(plain_b, lora, &right), 0);
		EQUAL(kvp_space_salted(plain_b, user, &wrong), 0);
		EQUAL(kvp_match_import(plain_b, &h, &got), -ESTALE);
		EQUAL(kvp_match_import(wrong, &h, &got), -ESTALE);
		for (int k = 0; k < 60000 && r == -EAGAIN; k++) {
			r = kvp_match_import(right, &h, &got);
			if (r == -EAGAIN)
				usleep(1000);
		}
		EQUAL(r, 0);
		kvp_release(m);
		same_bytes(b, got, lengths[i]);
		kvp_release(got);
		kvp_space_close(right);
		kvp_space_close(wrong);
	}
	a->space = plain_a;
	engine_free(a);
	engine_free(b);
}

/* Who computes a chain under one salt does not compute it under another. */
static void claims_apart(void)
{
	struct engine *a = engine_new("claims", KVP_LAYOUT_LCND, 6);
	struct engine *b = engine_new("claims", KVP_LAYOUT_LCND, 6);
	struct kvp_space *plain_a = salted(a, lora), *plain_b = b->space;
	struct kvp_prefix_info info;
	struct kvp_prefix *mine, *m;

	mine = find(a, 2 * T, KVP_MATCH_CLAIM, &info);
	CHECK(info.flags & KVP_MATCHED_CLAIMED);
	m = find(b, 2 * T, KVP_MATCH_CLAIM, &info);
	CHECK(info.flags & KVP_MATCHED_CLAIMED);
	kvp_release(m);
	salted(b, lora);
	m = find(b, 2 * T, KVP_MATCH_CLAIM, &info);
	CHECK(info.flags & KVP_MATCHED_PENDING);
	EQUAL(kvp_wait(m, 0), -ETIMEDOUT);
	store(a, T, 0);
	EQUAL(kvp_wait(m, WAIT_MS), 0);
	kvp_release(m);
	m = find_soon(b, T, T, &info);
	same_bytes(b, m, T);
	kvp_release(m);
	kvp_release(mine);
	a->space = plain_a;
	b->space = plain_b;
	engine_free(a);
	engine_free(b);
}

static bool says(struct kvp_admin *admin, const char *request, const char *text)
{
	char *answer = NULL;
	bool there;

	EQUAL(kvp_admin_request(admin, request, WAIT_MS, 0, &answer), 0);
	there = strstr(answer, text) != NULL;
	if (!there)
		fprintf(stderr, "%s: %s\n", request, answer);
	free(answer);
	return there;
}

/* The administrator sees the salt of a block's chain, and the checker finds nothing wrong. */
static void inspected(void)
{
	struct engine *e = engine_new("inspected", KVP_LAYOUT_LCND, 7);
	struct kvp_space *plain = e->space;
	struct kvp_digest key[2];
	struct kvp_admin *admin;
	char request[128];

	EQUAL(kvp_admin_open(NULL, &admin), 0);
	store(e, 2 * T, 0);
	for (uint32_t with = 0; with < 2; with++) {
		if (with) {
			salted(e, user);
			store(e, 2 * T, 0);
		}
		EQUAL(kvp_chunk_keys(e->space, e->tokens, 2 * T, key, 2), 2);
		for (uint32_t i = 0; i < 2; i++) {
			snprintf(request, sizeof(request),
				"{\"verb\": \"inspect\", \"key\": \"%016llx%016llx\"}",
				(unsigned long long)key[i].hi, (unsigned long long)key[i].lo);
			CHECK(says(admin, request, with ? USER_SALT : "\"salt\":null"));
		}
	}
	/* which fails if anything is wrong */
	CHECK(says(admin, "{\"verb\": \"check\", \"payloads\": true}", ""));
	kvp_admin_close(admin);
	e->space = plain;
	engine_free(e);
}

/* The largest block there is, whose recipe is then larger than that of any other. */
static void with_the_largest_blocks(void)
{
	struct engine *e = engine_new("largest", KVP_LAYOUT_LCND, 9);
	struct kvp_space_desc d = model("largest", KVP_LAYOUT_LCND);
	struct kvp_space *first = e->space, *plain;
	struct kvp_prefix_info info;
	struct kvp_prefix *m;

	d.block_tokens = 512;
	EQUAL(kvp_space_open(e->client, &d, WAIT_MS, &plain), 0);
	EQUAL(kvp_space_salted(plain, user, &e->space), 0);
	for (uint32_t n = 1024; n > 500; n -= 512 - 8) {
		store(e, n, KVP_PUT_PARTIAL);
		m = find_soon(e, n, n, &info);
		same_bytes(e, m, n);
		kvp_release(m);
	}
	EQUAL(kvp_delete(e->space, e->tokens, 1024, WAIT_MS), 2);
	inspected();
	e->space = first;
	kvp_space_close(plain);
	engine_free(e);
}

/* Users' prompts under salts of their own, more than there is room for: what is found is right. */
static void many_users(void)
{
	struct engine *e = engine_new("users", KVP_LAYOUT_LCND, 8);
	struct kvp_space *plain = e->space;
	uint32_t found = 0;

	for (uint32_t i = 0; i < 600; i++) {
		uint8_t salt[32] = { 0 };
		struct kvp_prefix_info info;
		struct kvp_prefix *m;
		uint32_t who = i % 31;

		memcpy(salt + 12, &who, sizeof(who));
		salt[0] = 1;
		salted(e, salt);
		fill(e, 8);
		for (size_t k = 0; k < (size_t)N * TOKEN_BYTES; k += 64)
			e->kv[k] ^= (uint8_t)(who * 31 + k / 64);
		m = find(e, N, 0, &info);
		if (info.n_tokens)
			same_bytes(e, m, info.n_tokens);
		found += info.n_tokens > 0;
		kvp_release(m);
		if (i % 3 == 2)
			CHECK(kvp_delete(e->space, e->tokens, (i % 24) * T, WAIT_MS) >= 0);
		else
			CHECK(kvp_put(e->space, e->tokens, N - i % T, 0, &e->view,
				      &(struct kvp_put_opts){ .size = sizeof(struct kvp_put_opts),
					      .flags = KVP_PUT_PARTIAL,
					      .timeout_ms = WAIT_MS },
				      NULL) >= 0);
		EQUAL(kvp_flush(e->client, WAIT_MS), 0);
		kvp_space_close(e->space);
		e->space = plain;
	}
	printf("found %u times\n", found);
	CHECK(found > 100);
	engine_free(e);
	inspected();
}

int main(void)
{
	static const struct live_test tests[] = {
		{ "nothing in common", nothing_in_common },
		{ "keys differ", keys_differ },
		{ "written in place", written_in_place },
		{ "forked", forked },
		{ "handed over", handed_over },
		{ "claims apart", claims_apart },
		{ "inspected", inspected },
		{ "with the largest blocks", with_the_largest_blocks },
		{ "many users", many_users },
	};

	return live_main(tests, sizeof(tests) / sizeof(tests[0]));
}
