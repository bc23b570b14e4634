/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is what a hostile client does with its session page: entries for the submission ring,
 * words written anywhere, rounds of the ledger in between. The ledger runs without threads. After
 * each input every invariant must hold.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/dataplane.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "shm/kvp_ring.h"
#include "shm/kvp_seg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MIB         (UINT64_C(1) << 20)
#define MAX_ACTIONS 400

struct world {
	struct kvpd_ledger *ledger;
	struct kvpd_attach at;
	struct kvp_session_page *page;
	uint32_t sq_tail;
	struct kvp_msg_id arena; /* to be acknowledged */
	bool has_arena;
};

struct input {
	const uint8_t *at;
	size_t left;
};

static void take(struct input *in, void *out, size_t n)
{
	size_t have = n < in->left ? n : in->left;

	memset(out, 0, n);
	memcpy(out, in->at, have);
	in->at += have;
	in->left -= have;
}

static int on_event(void *ctx, const struct kvpd_event *event)
{
	struct world *w = ctx;

	if (event->type == KVPD_EV_ARENA) {
		w->arena = (struct kvp_msg_id){ event->extent.extent, event->extent.generation };
		w->has_arena = true;
	}
	if (event->fd >= 0)
		close(event->fd);
	return 0;
}

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void open_space(struct world *w)
{
	struct kvp_space_canon canon = {
		.version = 1,
		.dtype = KVP_DTYPE_F8,
		.block_tokens = 16,
		.n_layers = 1,
		.layers = { { .kv_heads = 1, .k_dim = 4 } },
	};
	struct kvp_msg_space space;
	char reason[64];

	must(kvpd_space_open(w->ledger, w->at.session, &canon, reason, sizeof(reason), &space) ==
		0);
}

static void start(struct world *w)
{
	struct kvpd_config config = {
		.memory = 16 * MIB,
		.extent = 16384,
		.populate_threads = 1,
		.hugepages = KVPD_NEVER,
		.mlock = KVPD_NEVER,
		.numa_node = -1,
		.realtime = KVPD_NEVER,
		.claim_ttl_ms = 1,
	};
	struct kvpd_limits limits = {
		.share = 6 * MIB,
		.max_blocks = 16,
		.recipe_blocks = 8,
		.arena = 8192,
		.max_sessions = 1,
		.tail_index = true,
	};
	struct kvpd_ledger_params p = {
		.config = &config, .epoch = 1, .owner = geteuid(), .post = on_event, .ctx = w
	};
	struct kvpd_peer peer = { .pid = 1, .name = "fuzz" };
	uint32_t tenant;
	void *page;

	must(kvpd_ledger_new(&p, &w->ledger) == 0);
	must(kvpd_tenant_open(w->ledger, "t", &limits, &tenant) == 0);
	must(kvpd_session_attach(w->ledger, tenant, &peer, &w->at) == 0);
	must(kvp_seg_map(w->at.page_fd, w->at.page_bytes, KVP_MAP_WRITE, &page) == 0);
	w->page = page;
	open_space(w);
}

static void turn(struct world *w)
{
	struct kvpd_session *s = kvpd_session_find(w->ledger, w->at.session);
	uint32_t work;
	int timeout;

	kvpd_session_activate(s);
	must(kvpd_ledger_round(w->ledger, &work, &timeout));
	if (w->has_arena) {
		w->has_arena = false;
		must(kvpd_arena_ack(w->ledger, w->at.session, &w->arena) == 0);
	}
}

/* Values near what is legal reach further than random ones. */
static void push(struct world *w, struct input *in)
{
	uint8_t b[12];
	struct kvp_sqe e = { 0 };

	take(in, b, sizeof(b));
	e.op = b[0] % (KVP_OP_MAX_ + 1);
	e.grant = b[1];
	e.grant_generation = b[2] % 4;
	e.space = b[3] & 1;
	e.tokens = b[4] % 18;
	e.count = b[5];
	e.flags = b[6] & 1;
	e.parent_kind = b[7] % 4;
	e.parent_id = b[8];
	e.parent_birth = b[9] % 4;
	e.next_lo = b[10];
	e.next_hi = b[11] & 1;
	e.until = b[11] & 2 ? kvp_until(b[11] >> 2 & 3, b[11] >> 4) : 0;
	e.serial = w->sq_tail;
	kvp_sq_push(w->page, &w->sq_tail, &e);
}

static void poke(struct world *w, struct input *in)
{
	uint32_t at;
	uint64_t value;

	take(in, &at, sizeof(at));
	take(in, &value, sizeof(value));
	/* The header belongs to nobody's later reading; everything behind it does. */
	at = 192 + at % (uint32_t)(sizeof(*w->page) - 200);
	memcpy((uint8_t *)w->page + at, &value, sizeof(value));
}

/* As `kvctl check` does it. */
static void check(struct world *w)
{
	json_t *json = json_pack("{s:s}", "verb", "check");
	struct kvpd_request *q = NULL;
	json_t *answer;
	int r;

	must(json && kvpd_admin_begin(json, &q) == 0);
	json_decref(json);
	while ((r = kvpd_admin_step(w->ledger, q)) == -EINPROGRESS)
		;
	answer = kvpd_admin_end(q);
	if (r < 0 || !json_is_true(json_object_get(answer, "clean"))) {
		json_dumpf(answer, stderr, JSON_INDENT(2));
		abort();
	}
	json_decref(answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct world w = { 0 };

	start(&w);
	for (int i = 0; i < MAX_ACTIONS && in.left; i++) {
		uint8_t what;

		take(&in, &what, 1);
		if (what < 160)
			push(&w, &in);
		else if (what < 200)
			poke(&w, &in);
		else if (what < 240)
			turn(&w);
		else if (what < 248)
			kvp_store_release(&w.page->done[what % 4].value, (uint64_t)what % 8 * 2);
		else
			kvp_store_release(&w.page->cq_head, kvp_load_relaxed(&w.page->cq_tail));
	}
	turn(&w);
	check(&w);
	must(kvpd_session_detach(w.ledger, w.at.session) == 0);
	check(&w);
	kvpd_ledger_free(w.ledger);
	kvp_seg_unmap(w.page, w.at.page_bytes);
	close(w.at.page_fd);
	close(w.at.catalog_fd);
	close(w.at.wake_fd);
	return 0;
}
