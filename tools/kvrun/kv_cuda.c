/* SPDX-License-Identifier: Apache-2.0 */
/* A cache on a GPU: pages are leased blocks, slots of kvpool's, or memory of our own. */
#include "tools/kvrun/kvr_kv_cuda.h"
#include "tools/kvrun/kvr_attend_cuda.h"
#include "tools/kvrun/kvr_flight.h"
#include "tools/kvrun/kvr_link.h"

#include "libclient/kvpool_cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* As in kv_pool.c. A worker that is being started, and memory that is being mapped, take longer. */
#define WAIT_GRANT_MS  250u
#define WAIT_EXTENT_MS 5000u
#define WAIT_FLUSH_MS  5000u
#define WAIT_WARM_MS   5000u
#define WAIT_DEVICE_MS 5000u
#define PAUSE_MS       5u
#define WARM_TRIES     100u
#define LOAD_TRIES     3u
#define STAGE_BYTES    (UINT64_C(16) << 20)

/* One block of the sequence: leased, unless it has one of the other two. */
struct page {
	uint64_t at;
	struct kvp_grant *grant;
	int own;
	uint64_t published; /* the value of `line` at which it is; 0: it is not */
};

struct cuda_kv {
	struct kvr_kv kv; /* first: the engine's handle */
	const struct kvr_model *model;
	struct kvr_cuda_opts opts;
	struct kvr_gpu *gpu;
	struct kvr_attend_cuda attend;
	struct kvr_link link;
	struct kvp_cuda *cuda;     /* NULL: no daemon so far */
	struct kvp_timeline *line; /* of gpu->stream */
	int waited;                /* for the daemon's device, once */

	/* of the sequence */
	struct kvp_prefix *match; /* holds the lease on the blocks that are read in place */
	struct kvp_prefix *claim; /* the right to compute the missing blocks; given up on its own */
	uint32_t matched;         /* whole blocks in the match */
	int publish;              /* the chain up to the last block is published or will be */
	int dirty;                /* commits since the last flush */
	struct page *page;        /* [attend.pages] */
	uint32_t n_pages;
	uint64_t *spare; /* [attend.pages]: pages of our own that no sequence has */
	uint32_t n_spare;
	uint64_t *found; /* [attend.pages]: where matched blocks lie */
	struct kvr_pool_report report;
};

static struct cuda_kv *cuda_of(struct kvr_kv *kv)
{
	return (struct cuda_kv *)kv;
}

static void pause_ms(uint32_t ms)
{
	const struct timespec t = { .tv_nsec = (long)ms * 1000000 };

	nanosleep(&t, NULL);
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- the daemon ---- */

static int join_space(struct cuda_kv *c)
{
	const struct kvr_config *m = &c->model->config;
	char layout[128];
	struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.model = c->model->name,
		.layout = KVP_LAYOUT_OPAQUE,
		.block_tokens = c->kv.geom.block_tokens,
		.layout_name = layout,
		.block_bytes = kvr_attend_cuda_page_bytes(&c->attend),
	};

	snprintf(layout, sizeof(layout),
		"kvrun [layer][K,V][head][token][dim] %s %ux%ux%u %s %.17g",
		kvr_dtype_name(c->kv.geom.dtype), m->layers, m->kv_heads, m->head_dim,
		m->rope_pairs == KVR_ROPE_HALF_SPLIT ? "half" : "neighbours", m->rope_theta);
	memcpy(desc.weights_digest, &c->model->digest_lo, 8);
	memcpy(desc.weights_digest + 8, &c->model->digest_hi, 8);
	return kvr_link_join(&c->link, &desc, desc.block_bytes);
}

/* The daemon's number of our GPU, or KVP_CUDA_NO_DEVICE. */
static uint32_t device_number(const struct cuda_kv *c)
{
	struct kvp_cuda_props props = { .size = sizeof(props) };

	return kvp_cuda_info(c->cuda, &props) == 0 ? props.device : KVP_CUDA_NO_DEVICE;
}

/* A device whose worker is not there yet might be ours: its worker knows. */
static int devices_are_coming(const struct cuda_kv *c)
{
	struct kvp_device_props props = { .size = sizeof(props) };

	for (uint32_t i = 0; i < KVP_CLIENT_DEVICES; i++)
		if (kvp_device_info(c->link.client, i, &props) == 0 &&
			props.state != KVP_DEVICE_IS_UP)
			return 1;
	return 0;
}

static int find_device(struct cuda_kv *c)
{
	for (uint32_t ms = 0; device_number(c) == KVP_CUDA_NO_DEVICE; ms += PAUSE_MS) {
		/* The last look is for one that came up between the two. */
		if (c->waited || ms >= WAIT_DEVICE_MS || !devices_are_coming(c)) {
			c->waited = 1;
			if (device_number(c) != KVP_CUDA_NO_DEVICE)
				return 1;
			snprintf(c->link.why, sizeof(c->link.why),
				"the daemon has no memory on cuda:%u that is up: see devices in "
				"kvpoold.yaml(5), and kvctl device list",
				c->opts.ordinal);
			return 0;
		}
		pause_ms(PAUSE_MS);
	}
	return 1;
}

static int open_cuda(struct cuda_kv *c)
{
	uint64_t page = (kvr_attend_cuda_page_bytes(&c->attend) + 4095) & ~UINT64_C(4095);
	struct kvp_cuda_opts opts = {
		.size = sizeof(opts),
		.context = c->gpu->cu.ctx,
		.stage_bytes = 2 * page > STAGE_BYTES ? 2 * page : STAGE_BYTES,
		.error = c->link.why,
		.error_bytes = sizeof(c->link.why),
	};
	int r = kvp_cuda_open(c->link.client, &opts, &c->cuda);

	if (r == 0)
		r = kvp_timeline_new(c->link.client, &c->line);
	if (r < 0) {
		if (!c->link.why[0])
			snprintf(c->link.why, sizeof(c->link.why), "%s", strerror(-r));
		c->cuda = kvp_cuda_close(c->cuda);
	}
	return r;
}

/* 1: there is a daemon, and it has memory on our GPU. */
static int join(struct cuda_kv *c)
{
	if (c->opts.off || !join_space(c))
		return 0;
	if (!c->cuda && open_cuda(c) < 0)
		return 0;
	return find_device(c);
}

/* ---- pages ---- */

static int append(struct cuda_kv *c, struct page p)
{
	c->page[c->n_pages] = p;
	return kvr_attend_cuda_page(&c->attend, c->n_pages++, p.at);
}

static int append_own(struct cuda_kv *c)
{
	struct page p = { .own = 1 };

	if (c->n_spare > 0) {
		p.at = c->spare[--c->n_spare];
	} else {
		int r = kvr_gpu_alloc(c->gpu, kvr_attend_cuda_page_bytes(&c->attend), &p.at);

		if (r < 0)
			return r;
	}
	c->report.blocks_private++;
	return append(c, p);
}

/* A slot on the device. The first one takes longest: memory is made, mapped here and acknowledged. */
static int reserve(struct cuda_kv *c, uint32_t wait_ms, struct kvp_grant **ret_grant)
{
	uint64_t end = now_ms() + wait_ms;

	for (;;) {
		int r = kvp_cuda_reserve(c->link.space, c->cuda, PAUSE_MS, NULL, ret_grant);

		if ((r != -EAGAIN && r != -ENODEV && r != -ETIMEDOUT) || now_ms() >= end)
			return r;
		pause_ms(PAUSE_MS);
	}
}

static int append_slot(struct cuda_kv *c)
{
	struct page p = { .at = 0 };
	int r = reserve(c, WAIT_GRANT_MS, &p.grant);

	if (r < 0)
		return r;
	p.at = kvp_grant_device_addr(p.grant);
	if (!p.at) {
		kvp_grant_release(p.grant);
		return -EAGAIN;
	}
	c->report.blocks_slots++;
	return append(c, p);
}

/*
 * Blocks after the last published one can no longer be published. An engine that waits for our claim must not
 * wait in vain.
 */
static void stop_publishing(struct cuda_kv *c)
{
	c->publish = 0;
	kvp_release(c->claim);
	c->claim = NULL;
}

/* The stream has come to its end, or the device is lost: nothing here is read or written any more. */
static void end_sequence(struct cuda_kv *c)
{
	if (c->n_pages > 0)
		kvr_gpu_wait(c->gpu);
	for (uint32_t i = 0; i < c->n_pages; i++) {
		struct page *p = &c->page[i];

		if (p->published)
			kvp_grant_release_after(p->grant, c->line, p->published);
		else
			kvp_grant_release(p->grant);
		if (p->own)
			c->spare[c->n_spare++] = p->at;
	}
	c->n_pages = 0;
	stop_publishing(c);
	kvp_release(c->match);
	c->match = NULL;
	c->matched = 0;
}

/* ---- what is cached ---- */

static int find_prefix(
	struct cuda_kv *c, const uint32_t *tokens, uint32_t n, struct kvp_prefix_info *ret_info)
{
	const struct kvr_flight_opts opts = {
		.space = c->link.space,
		.flags = KVP_MATCH_DEVICE | (c->opts.reuse_tail ? 0 : KVP_MATCH_NO_TAIL),
		.device = device_number(c),
		.claim = c->opts.store,
		.attached = 1,
	};
	int r;

	if (opts.device >= KVP_CLIENT_DEVICES)
		return -ENODEV;
	r = kvr_flight_match(&opts, tokens, n, &c->match, &c->claim, ret_info);
	if (r == 0)
		c->matched = ret_info->n_tokens / c->kv.geom.block_tokens;
	return r;
}

/*
 * Has the first n blocks of the match copied to the device and finds out where they lie, 0: not there. Asks
 * again while the worker is being started or memory is being mapped here.
 */
static int to_device(struct cuda_kv *c, uint32_t n)
{
	struct kvp_warm_opts opts = { .size = sizeof(opts) };
	struct kvp_ticket ticket;

	for (uint32_t tries = 0;; tries++) {
		int there = kvp_cuda_addrs(c->match, c->cuda, 0, n, 0, c->found), why = 0;

		if (there < 0 || (uint32_t)there == n || tries == WARM_TRIES)
			return there < 0 ? there : 0;
		opts.first = (uint32_t)there;
		opts.n = n - opts.first;
		if (kvp_cuda_warm(c->match, c->cuda, &opts, &ticket) < 0 ||
			kvp_ticket_wait(c->link.client, ticket, WAIT_WARM_MS, &why) < 0)
			return 0;
		if (why && why != -EAGAIN && why != -ENODEV)
			tries = WARM_TRIES - 1; /* look once more at what has come */
		else if (tries > 0)
			pause_ms(PAUSE_MS);
	}
}

/* Copies block `i` of the match to memory that we may write. */
static int load(struct cuda_kv *c, uint32_t i, uint64_t to)
{
	const struct kvp_cuda_piece piece = {
		.block = i,
		.bytes = kvr_attend_cuda_page_bytes(&c->attend),
		.device_addr = to,
	};
	int r = -EAGAIN;

	for (uint32_t tries = 0; r == -EAGAIN && tries < LOAD_TRIES; tries++) {
		r = kvp_cuda_load(c->match, c->cuda, &piece, 1, c->gpu->stream);
		if (r == -EAGAIN && kvr_gpu_wait(c->gpu) < 0)
			return -ENODEV;
	}
	return r < 0 ? r : r == 1 ? 0 : -ESTALE;
}

/* Block `i` of the match as the sequence's next. 0: it cannot be had; 1; an error of the device. */
static int take_block(struct cuda_kv *c, uint32_t i)
{
	int r;

	if (c->found[i]) {
		c->report.blocks_read++;
		c->report.blocks_device++;
		r = append(c, (struct page){ .at = c->found[i] });
		return r < 0 ? r : 1;
	}
	r = append_own(c);
	if (r < 0)
		return r;
	if (load(c, i, c->page[i].at) == 0)
		return 1;
	c->spare[c->n_spare++] = c->page[--c->n_pages].at;
	c->report.blocks_private--;
	return 0;
}

static int cuda_grow(struct kvr_kv *kv, uint32_t index)
{
	struct cuda_kv *c = cuda_of(kv);

	if (index < c->n_pages) /* a tail that cuda_start has taken over */
		return 0;
	if (index >= c->matched && c->publish) {
		int r = append_slot(c);

		if (r == 0 || c->gpu->why.text[0])
			return r;
		stop_publishing(c);
	}
	return append_own(c);
}

/* The tokens behind the last whole block that match too, into a block of our own. */
static int take_tail(struct cuda_kv *c, uint32_t n, uint32_t *ret_reused)
{
	uint32_t index = c->n_pages;
	int r;

	if (n == 0)
		return 0;
	r = cuda_grow(&c->kv, index);
	if (r == 0 && load(c, index, c->page[index].at) == 0)
		*ret_reused = index * c->kv.geom.block_tokens + n;
	return r; /* a copy that failed leaves a block to compute, present already */
}

/* Takes over what can be had of `usable` matched tokens. */
static int take(struct cuda_kv *c, uint32_t usable, uint32_t *ret_reused)
{
	uint32_t size = c->kv.geom.block_tokens, whole = usable / size, i = 0;
	int r = 1;

	if (whole > 0 && to_device(c, whole) < 0)
		return 0;
	for (; r > 0 && i < whole; i++)
		r = take_block(c, i);
	if (r < 0)
		return r;
	*ret_reused = c->n_pages * size;
	return c->opts.reuse_tail && c->n_pages == whole ? take_tail(c, usable % size, ret_reused)
							 : 0;
}

static int cuda_start(
	struct kvr_kv *kv, const uint32_t *tokens, uint32_t n, uint32_t limit, uint32_t *ret_reused)
{
	struct cuda_kv *c = cuda_of(kv);
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint32_t size = kv->geom.block_tokens, usable, reused = 0;
	int r = 0;

	end_sequence(c);
	c->report = (struct kvr_pool_report){ .attached = join(c) };
	if (!c->opts.reuse_tail)
		n -= n % size;
	if (c->report.attached && find_prefix(c, tokens, n, &info) == 0) {
		c->publish = c->opts.store;
		usable = info.n_tokens + info.tail_tokens;
		r = take(c, usable < limit ? usable : limit, &reused);
	}
	if (r == 0)
		*ret_reused = reused;
	return r;
}

/* ---- the sequence ---- */

static int cuda_attend(struct kvr_kv *kv, uint32_t layer, uint32_t first, uint32_t n,
	const float *q, const float *k, const float *v, float *out)
{
	return kvr_attend_cuda_run(&cuda_of(kv)->attend, layer, first, n, q, k, v, out);
}

/* Blocks here are no memory of this process. */
static void *cuda_block(struct kvr_kv *kv, uint32_t index)
{
	(void)kv, (void)index;
	return NULL;
}

static int commit(struct cuda_kv *c, uint32_t index, const uint32_t *tokens, uint32_t n)
{
	struct kvp_ref parent = kvp_ref_root();
	struct page *p = &c->page[index];
	uint64_t value;
	int r = 0;

	if (index > 0 && index <= c->matched)
		r = kvp_match_ref(c->match, index, &parent);
	else if (index > 0)
		r = kvp_grant_ref(c->page[index - 1].grant, &parent);
	if (r == 0)
		r = kvp_cuda_mark(c->cuda, c->line, c->gpu->stream, &value);
	if (r == 0)
		r = kvp_commit_after(p->grant, parent, tokens, n, c->claim, 0, c->line, value);
	if (r == 0)
		p->published = value;
	return r;
}

static void cuda_seal(struct kvr_kv *kv, uint32_t index, const uint32_t *tokens, uint32_t n)
{
	struct cuda_kv *c = cuda_of(kv);

	if (!c->publish || index < c->matched)
		return;
	if (!c->page[index].grant || commit(c, index, tokens, n) < 0) {
		stop_publishing(c);
		return;
	}
	c->report.published++;
	c->dirty = 1;
}

static void flush(struct cuda_kv *c)
{
	if (c->dirty)
		kvp_flush(c->link.client, WAIT_FLUSH_MS);
	c->dirty = 0;
}

static void cuda_end(struct kvr_kv *kv)
{
	end_sequence(cuda_of(kv));
}

static void cuda_free(struct kvr_kv *kv)
{
	struct cuda_kv *c = cuda_of(kv);

	end_sequence(c);
	flush(c);
	kvp_timeline_free(c->line);
	kvp_cuda_close(c->cuda);
	kvr_link_done(&c->link);
	while (c->n_spare > 0)
		kvr_gpu_free(c->gpu, c->spare[--c->n_spare]);
	kvr_attend_cuda_done(&c->attend);
	kvr_gpu_close(c->gpu);
	free(c->page);
	free(c->spare);
	free(c->found);
	free(c);
}

static const struct kvr_kv_ops cuda_ops = {
	.start = cuda_start,
	.grow = cuda_grow,
	.block = cuda_block,
	.attend = cuda_attend,
	.seal = cuda_seal,
	.end = cuda_end,
	.free = cuda_free,
};

static int allocate(struct cuda_kv *c)
{
	c->page = calloc(c->attend.pages, sizeof(*c->page));
	c->spare = calloc(c->attend.pages, sizeof(*c->spare));
	c->found = calloc(c->attend.pages, sizeof(*c->found));
	return c->page && c->spare && c->found ? 0 : -ENOMEM;
}

int kvr_kv_cuda_new(const struct kvr_model *model, const struct kvr_geom *geom,
	const struct kvr_cuda_opts *opts, struct kvr_error *err, struct kvr_kv **ret_kv)
{
	struct kvp_grant *grant;
	struct cuda_kv *c;
	int r;

	if (!kvr_geom_valid(geom))
		return kvr_fail(err, -EINVAL, "blocks of no such geometry");
	c = calloc(1, sizeof(*c));
	if (!c)
		return kvr_fail(err, -ENOMEM, "no memory");
	c->kv = (struct kvr_kv){ .ops = &cuda_ops, .geom = *geom };
	c->model = model;
	c->opts = *opts;
	r = kvr_gpu_open(opts->ordinal, err, &c->gpu);
	if (r == 0)
		r = kvr_attend_cuda_init(&c->attend, c->gpu, &model->config, geom, err);
	if (r == 0 && (kvr_link_init(&c->link, opts->socket) < 0 || allocate(c) < 0))
		r = kvr_fail(err, -ENOMEM, "no memory");
	if (r < 0) {
		cuda_free(&c->kv);
		return r;
	}
	/* Memory for slots is made while the engine starts, not while the first prompt waits. */
	if (join(c) && opts->store && reserve(c, WAIT_EXTENT_MS, &grant) == 0)
		kvp_grant_release(grant);
	*ret_kv = &c->kv;
	return 0;
}

void kvr_kv_cuda_report(struct kvr_kv *kv, struct kvr_pool_report *ret_report)
{
	struct cuda_kv *c = cuda_of(kv);

	flush(c);
	*ret_report = c->report;
	snprintf(ret_report->why, sizeof(ret_report->why), "%s", c->link.why);
}

const char *kvr_kv_cuda_why(struct kvr_kv *kv)
{
	return cuda_of(kv)->gpu->why.text;
}
