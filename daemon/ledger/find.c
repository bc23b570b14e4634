/* SPDX-License-Identifier: Apache-2.0 */
/* The block that an administrator names by digits of its key. */
#include "daemon/ledger/find.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/ledger/admin.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/tenant.h"

#define DIGITS_MIN 8u
#define DIGITS_MAX 32u
#define CANDIDATES 64u

void kvpd_key_text(struct kvp_key key, char out[KVPD_KEY_TEXT])
{
	snprintf(out, KVPD_KEY_TEXT, "%016" PRIx64 "%016" PRIx64, key.hi, key.lo);
}

static int digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
				      : -1;
}

static bool parse(const char *text, struct kvpd_find *f)
{
	size_t n = text ? strlen(text) : 0;

	if (n < DIGITS_MIN || n > DIGITS_MAX)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t *want = i < 16 ? &f->want.hi : &f->want.lo;
		uint64_t *mask = i < 16 ? &f->mask.hi : &f->mask.lo;
		unsigned shift = 4 * (15 - i % 16);

		if (digit(text[i]) < 0)
			return false;
		*want |= (uint64_t)digit(text[i]) << shift;
		*mask |= UINT64_C(15) << shift;
	}
	f->whole = n == DIGITS_MAX;
	f->key = f->want;
	return true;
}

/* Of all tenants that the request is about. */
static bool look_up(struct kvpd_request *q, struct kvpd_tenant **ret_tenant, uint32_t *ret_id)
{
	const struct kvpd_find *f = &q->find;
	kvp_block_id id[CANDIDATES];
	struct kvpd_tenant *t;

	for (q->tenant = 1; (t = kvpd_request_tenant(q)); q->tenant++) {
		uint32_t n = kvp_index_candidates(
			t->view.index, t->view.index_buckets, f->key.lo, id, CANDIDATES);

		for (uint32_t i = 0; i < n; i++) {
			if (!kvp_key_equal(kvpd_block_key(t, id[i]), f->key))
				continue;
			*ret_tenant = t;
			*ret_id = id[i];
			return true;
		}
	}
	return false;
}

/* False: the portion is over. */
static bool walk(struct kvpd_request *q)
{
	struct kvpd_find *f = &q->find;
	struct kvpd_tenant *t;

	for (; (t = kvpd_request_tenant(q)); q->tenant++, q->at = 0) {
		for (; q->at < t->layout.max_blocks; q->at++) {
			struct kvp_key key;

			if (q->at % KVPD_ADMIN_STRIDE == 0 && kvpd_request_over(q))
				return false;
			if (kvpd_block_state(t, q->at) == KVP_BLOCK_FREE)
				continue;
			key = kvpd_block_key(t, q->at);
			if ((key.hi & f->mask.hi) != f->want.hi ||
				(key.lo & f->mask.lo) != f->want.lo)
				continue;
			/* One that went and came again elsewhere is the same. */
			f->found += !f->found || !kvp_key_equal(key, f->key);
			f->key = key;
		}
	}
	return true;
}

int kvpd_find_block(struct kvpd_request *q, struct kvpd_tenant **ret_tenant, uint32_t *ret_id)
{
	const char *want = kvpd_request_text(q, "key");
	struct kvpd_find *f = &q->find;

	if (!f->begun && !parse(want, f))
		return kvpd_request_fail(q, -EINVAL, "key: 8 to 32 hexadecimal digits are wanted");
	f->begun = true;
	if (!f->whole) {
		if (!walk(q))
			return -EINPROGRESS;
		if (f->found > 1)
			return kvpd_request_fail(q, -EINVAL,
				"key %s: %u blocks begin so; give more digits", want, f->found);
		f->whole = f->found == 1;
	}
	if (!f->whole || !look_up(q, ret_tenant, ret_id))
		return kvpd_request_fail(q, -ENOENT, "no block has the key %s", want);
	return 0;
}
