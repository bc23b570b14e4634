/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data plane for tests of the control plane: keeps tenants and sessions, hands out real memfds,
 * and caches nothing. Administration requests answer with what it was told, so that a test can see
 * which calls the control plane made.
 */
#include "daemon/dataplane.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "daemon/figures.h"
#include "shm/kvp_seg.h"

#define MAX_SESSIONS 4096u

static uint32_t under_way; /* requests of administrators */
static uint32_t rows_written;

struct fake_tenant {
	char name[64];
	bool used;
	uint64_t share;
	uint32_t max_sessions;
};

struct kvpd_ledger {
	struct kvpd_ledger_params params;
	struct fake_tenant tenants[KVPD_MAX_TENANTS + 1];
	struct {
		uint32_t tenant; /* 0: free */
		struct kvpd_peer peer;
	} sessions[MAX_SESSIONS];
	uint32_t attached, detached, abandoned, reconfigured, asked_extents;
	bool evicted;
};

int kvpd_ledger_new(const struct kvpd_ledger_params *params, struct kvpd_ledger **ret_ledger)
{
	struct kvpd_ledger *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->params = *params;
	*ret_ledger = l;
	return 0;
}

int kvpd_ledger_start(struct kvpd_ledger *ledger)
{
	(void)ledger;
	return 0;
}

struct kvpd_ledger *kvpd_ledger_free(struct kvpd_ledger *ledger)
{
	free(ledger);
	return NULL;
}

int kvpd_tenant_open(struct kvpd_ledger *l, const char *name, const struct kvpd_limits *limits,
	uint32_t *ret_tenant)
{
	uint64_t shares = limits->share;
	uint32_t unused = 0;

	for (uint32_t i = 1; i <= KVPD_MAX_TENANTS; i++) {
		if (l->tenants[i].used && !strcmp(l->tenants[i].name, name)) {
			*ret_tenant = i;
			return 0;
		}
		if (l->tenants[i].used)
			shares += l->tenants[i].share;
		else if (!unused)
			unused = i;
	}
	if (!unused)
		return -EUSERS;
	if (shares > l->params.config->memory)
		return -ENOSPC;
	snprintf(l->tenants[unused].name, sizeof(l->tenants[unused].name), "%s", name);
	l->tenants[unused].used = true;
	l->tenants[unused].share = limits->share;
	l->tenants[unused].max_sessions = limits->max_sessions;
	*ret_tenant = unused;
	return 0;
}

int kvpd_tenant_abandon(struct kvpd_ledger *l, uint32_t tenant)
{
	if (tenant > KVPD_MAX_TENANTS || !l->tenants[tenant].used)
		return -ENOENT;
	l->tenants[tenant].used = false;
	l->abandoned++;
	return 0;
}

int kvpd_session_attach(struct kvpd_ledger *l, uint32_t tenant, const struct kvpd_peer *peer,
	struct kvpd_attach *ret_attach)
{
	kvp_autoclose int rw = -1, page = -1, wake = -1;
	uint32_t i = 1, same = 0;
	int r;

	for (uint32_t s = 1; s < MAX_SESSIONS; s++)
		same += l->sessions[s].tenant == tenant;
	if (same >= l->tenants[tenant].max_sessions)
		return -EUSERS;
	while (i < MAX_SESSIONS && l->sessions[i].tenant)
		i++;
	if (i == MAX_SESSIONS)
		return -EUSERS;
	r = kvp_seg_create("fake-catalog", 1 << 20, 0, &rw);
	if (r == 0)
		r = kvp_seg_create("fake-page", 1 << 20, 0, &page);
	if (r < 0)
		return r;
	wake = eventfd(0, EFD_CLOEXEC);
	if (wake < 0)
		return -errno;
	l->sessions[i].tenant = tenant;
	l->sessions[i].peer = *peer;
	l->attached++;
	*ret_attach = (struct kvpd_attach){
		.session = i,
		.catalog_fd = kvp_take_fd(&rw),
		.page_fd = kvp_take_fd(&page),
		.wake_fd = kvp_take_fd(&wake),
		.catalog_bytes = 1 << 20,
		.page_bytes = 1 << 20,
	};
	return 0;
}

int kvpd_session_detach(struct kvpd_ledger *l, uint32_t session)
{
	if (session >= MAX_SESSIONS || !l->sessions[session].tenant)
		return -ENOENT;
	l->sessions[session].tenant = 0;
	l->detached++;
	return 0;
}

int kvpd_sessions_unused(
	struct kvpd_ledger *l, const uint32_t *sessions, uint32_t n, bool ret_unused[])
{
	(void)l, (void)sessions;
	memset(ret_unused, 0, n * sizeof(*ret_unused));
	return 0;
}

/* One in each call. */
int kvpd_session_extents(struct kvpd_ledger *l, uint32_t session, uint32_t *from,
	void (*each)(void *ctx, const struct kvp_msg_extent *extent, int fd), void *ctx)
{
	const struct kvp_msg_extent e = {
		.extent = *from,
		.generation = 1,
		.kind = KVP_EXTENT_VAULT,
		.bytes = 4096,
	};
	int fd, r = kvp_seg_create("fake-extent", 4096, 0, &fd);

	(void)l, (void)session;
	if (r < 0)
		return r;
	each(ctx, &e, fd);
	*from = (*from + 1) % 3;
	return 0;
}

int kvpd_extent_get(struct kvpd_ledger *l, uint32_t session, uint32_t extent,
	struct kvp_msg_extent *ret_extent, int *ret_fd)
{
	l->asked_extents++;
	if (!session || extent >= 3)
		return -ENOENT;
	*ret_extent = (struct kvp_msg_extent){ .extent = extent, .generation = 1, .bytes = 4096 };
	return kvp_seg_create("fake-extent", 4096, 0, ret_fd);
}

int kvpd_space_open(struct kvpd_ledger *l, uint32_t session, const struct kvp_space_canon *canon,
	char *ret_reason, size_t reason_bytes, struct kvp_msg_space *ret_space)
{
	(void)session;
	if (!strcmp(canon->model, "slow") && !l->evicted)
		return -EINPROGRESS;
	if (canon->version != 1) {
		snprintf(ret_reason, reason_bytes, "canonical form version %u", canon->version);
		return -EINVAL;
	}
	*ret_space = (struct kvp_msg_space){ .space = 5, .generation = 6 };
	return 0;
}

bool kvpd_space_calibrated(const struct kvp_space_canon *canon)
{
	(void)canon;
	return false;
}

int kvpd_space_calibration(const struct kvpd_ledger *l, const struct kvp_space_canon *canon)
{
	(void)l, (void)canon;
	return -1;
}

int kvpd_space_close(struct kvpd_ledger *l, uint32_t session, const struct kvp_msg_id *id)
{
	(void)l, (void)session, (void)id;
	return -ENOENT;
}

/*
 * A test asks for events this way: 1 = expel me, 2 = an extent for the others, 3 = retire it. Which
 * one, the generation says.
 */
int kvpd_arena_ack(struct kvpd_ledger *l, uint32_t session, const struct kvp_msg_id *id)
{
	struct kvpd_event e = { .session = session, .fd = -1 };

	e.tenant = l->sessions[session].tenant;
	if (id->id == 1) {
		e.type = KVPD_EV_EXPEL;
		e.error = -EPROTO;
		snprintf(e.reason, sizeof(e.reason), "it asked for it");
	} else if (id->id == 2) {
		e.type = KVPD_EV_EXTENT;
		e.extent = (struct kvp_msg_extent){
			.extent = 9, .generation = id->generation, .bytes = 4096
		};
		if (kvp_seg_create("fake-extent", 4096, 0, &e.fd) < 0)
			return -ENOMEM;
	} else {
		e.type = KVPD_EV_RETIRE;
		e.extent = (struct kvp_msg_extent){ .extent = 9, .generation = id->generation };
	}
	l->params.post(l->params.ctx, &e);
	return 0;
}

int kvpd_retire_ack(struct kvpd_ledger *l, uint32_t session, const struct kvp_msg_id *id)
{
	(void)l, (void)session, (void)id;
	return 0;
}

struct kvpd_figures_walk {
	const char *only;
	struct kvpd_figures f;
	bool begun;
};

int kvpd_figures_begin(const char *only, uint32_t what, struct kvpd_figures_walk **ret_walk)
{
	struct kvpd_figures_walk *w = calloc(1, sizeof(*w));

	(void)what;
	if (!w)
		return -ENOMEM;
	w->only = only;
	*ret_walk = w;
	return 0;
}

void kvpd_figures_end(struct kvpd_figures_walk *w, struct kvpd_figures *ret_figures)
{
	*ret_figures = w->f;
	free(w);
}

static int read_figures(struct kvpd_ledger *l, const char *only, struct kvpd_figures *ret_figures)
{
	struct kvpd_figures f = { .epoch = l->params.epoch };

	f.tenant = calloc(KVPD_MAX_TENANTS, sizeof(*f.tenant));
	if (!f.tenant)
		return -ENOMEM;
	for (uint32_t i = 1; i <= KVPD_MAX_TENANTS; i++) {
		struct kvpd_tenant_figures *t = &f.tenant[f.n_tenants];

		if (!l->tenants[i].used || (only && strcmp(only, l->tenants[i].name)))
			continue;
		t->id = i;
		t->share_bytes = l->tenants[i].share;
		snprintf(t->name, sizeof(t->name), "%s", l->tenants[i].name);
		f.n_tenants++;
	}
	if (only && !f.n_tenants) {
		kvpd_figures_fini(&f);
		return -ENOENT;
	}
	*ret_figures = f;
	return 0;
}

int kvpd_figures_step(struct kvpd_ledger *l, struct kvpd_figures_walk *w)
{
	bool again = !w->begun;

	w->begun = true;
	return again ? -EINPROGRESS : read_figures(l, w->only, &w->f);
}

struct kvpd_request {
	json_t *json, *answer;
	uint32_t rows;
};

int kvpd_admin_begin(json_t *request, struct kvpd_request **ret_request)
{
	struct kvpd_request *q = calloc(1, sizeof(*q));

	if (!q)
		return -ENOMEM;
	q->json = json_incref(request);
	*ret_request = q;
	under_way++;
	return 0;
}

json_t *kvpd_admin_end(struct kvpd_request *q)
{
	json_t *answer = q->answer;

	under_way--;
	json_decref(q->json);
	free(q);
	return answer;
}

int kvpd_admin_step(struct kvpd_ledger *l, struct kvpd_request *q)
{
	const char *verb = json_string_value(json_object_get(q->json, "verb"));

	/* What it was told. */
	if (!strcmp(verb, "check")) {
		q->answer = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "attached",
			(int)l->attached, "detached", (int)l->detached, "abandoned",
			(int)l->abandoned, "reconfigured", (int)l->reconfigured, "asked_extents",
			(int)l->asked_extents, "under_way", (int)under_way, "rows_written",
			(int)rows_written);
		return 0;
	}
	/* A long one: it goes on until somebody asks for `evict`. */
	if (!strcmp(verb, "drain")) {
		if (!l->evicted)
			return -EINPROGRESS;
		q->answer = json_pack("{s:b}", "drained", true);
		return 0;
	}
	if (!strcmp(verb, "evict")) {
		l->evicted = true;
		q->answer = json_object();
		return 0;
	}
	/* Large: more than one part, and more than a socket holds. */
	if (!strcmp(verb, "blocks")) {
		q->rows = 100000;
		q->answer = json_pack("{s:i}", "total", (int)q->rows);
		return 0;
	}
	return -EOPNOTSUPP;
}

const char *kvpd_admin_list(const struct kvpd_request *q, uint32_t *ret_rows)
{
	*ret_rows = q->rows;
	return q->rows ? "blocks" : NULL;
}

json_t *kvpd_admin_row(const struct kvpd_request *q, uint32_t row)
{
	(void)q;
	rows_written++;
	return json_pack("[i]", (int)row);
}

int kvpd_relieve(struct kvpd_ledger *l, uint64_t bytes, uint64_t *ret_coming)
{
	(void)l;
	(void)bytes;
	*ret_coming = 0;
	return 0;
}

bool kvpd_faults_check(const char *faults)
{
	(void)faults;
	return true;
}

int kvpd_limits_check(
	const struct kvpd_config *config, const struct kvpd_limits *limits, uint64_t *ret_least)
{
	(void)config;
	*ret_least = 4 << 20;
	return limits->share < *ret_least ? -ENOSPC : 0;
}

int kvpd_tenant_least(struct kvpd_ledger *l, uint32_t tenant, uint64_t *ret_least)
{
	(void)l;
	(void)tenant;
	*ret_least = 4 << 20;
	return 0;
}

int kvpd_reconfigure(struct kvpd_ledger *l, const struct kvpd_config *config)
{
	(void)config;
	l->reconfigured++;
	return 0;
}
