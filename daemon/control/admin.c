/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of administrators: JSON in, JSON out, in parts. docs/admin.md lists the verbs. */
#include "daemon/control/admin.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/answer.h"
#include "daemon/clock.h"
#include "daemon/control/conn.h"
#include "daemon/control/figures.h"
#include "daemon/control/heap.h"
#include "daemon/control/payer.h"
#include "daemon/control/peer.h"
#include "daemon/control/state.h"
#include "daemon/log.h"
#include "daemon/memory.h"
#include "shm/kvp_msg.h"

#define ANSWER_MAX  (64u << 20) /* bytes of JSON in one answer */
#define ANSWER_PART 32768u
#define STEP_PARTS  4u /* sent before others have their turn */

bool kvpd_admin_allowed(struct kvpd_conn *conn)
{
	const struct kvpd_control *c = conn->control;

	if (conn->who.uid == 0)
		return true;
	return c->has_admin_gid && kvpd_peer_in_group(conn->fd, &conn->who, c->admin_gid) == 1;
}

/* ---- what the control thread knows itself -------------------------------------------------- */

/* Any 63 bits: as a string, since many readers of JSON round what is beyond 2^53. */
static const char *epoch_text(const struct kvpd_control *c, char buf[24])
{
	snprintf(buf, 24, "%" PRIu64, c->epoch);
	return buf;
}

static json_t *version(const struct kvpd_control *c)
{
	char epoch[24];

	return json_pack("{s:s, s:i, s:s}", "version", KVPD_VERSION, "abi", (int)KVP_ABI_VERSION,
		"epoch", epoch_text(c, epoch));
}

/* What there is for it, as it sees it itself; a group only where one limits it. */
static json_t *memory_status(void)
{
	const struct kvpd_group *g;
	struct kvpd_memory m;
	json_t *o;

	kvpd_memory_read("", &m);
	g = kvpd_memory_lowest(&m);
	o = json_pack("{s:I, s:I, s:I}", "total_bytes", (json_int_t)m.total, "available_bytes",
		(json_int_t)m.available, "missing_bytes",
		(json_int_t)kvpd_memory_missing(&m, false));
	if (o && (m.total || g))
		json_object_set_new(
			o, "most_bytes", json_integer((json_int_t)kvpd_memory_most(&m)));
	if (o && g)
		json_object_set_new(o, "group",
			json_pack("{s:s, s:I, s:I}", "path", g->path, "limit_bytes",
				(json_int_t)g->limit, "left_bytes", (json_int_t)g->left));
	return o;
}

static json_t *daemon_status(const struct kvpd_control *c)
{
	struct kvpd_heap heap;
	char epoch[24];
	json_t *o;

	kvpd_heap_read(&heap);
	o = json_pack("{s:s, s:i, s:i, s:s, s:s, s:s, s:i, s:i, s:i, s:I, s:I, s:I, s:I}",
		"version", KVPD_VERSION, "pid", (int)getpid(), "uid", (int)getuid(), "config",
		c->config->path ? c->config->path : "", "runtime_dir", c->config->runtime_dir,
		"epoch", epoch_text(c, epoch), "connections", (int)c->n_conns, "pending",
		(int)c->n_pending, "sessions", (int)c->n_guests, "accepted_total",
		(json_int_t)c->accepted, "refused_total", (json_int_t)c->refused,
		"protocol_errors_total", (json_int_t)c->broken, "turns_total",
		(json_int_t)c->turns);
	if (o)
		json_object_set_new(o, "memory", memory_status());
	if (o)
		json_object_set_new(o, "heap",
			json_pack("{s:s, s:I, s:I, s:I}", "allocator", heap.allocator,
				"allocated_bytes", (json_int_t)heap.allocated, "resident_bytes",
				(json_int_t)heap.resident, "mapped_bytes",
				(json_int_t)heap.mapped));
	return o;
}

/* ---- what the ledger is asked for ---------------------------------------------------------- */

struct kvpd_asked {
	json_t *json;
	const char *verb; /* in it */
	/* One of these. */
	struct kvpd_request *request;
	struct kvpd_figures_walk *walk;
};

static json_t *figures_answer(
	struct kvpd_control *c, const struct kvpd_asked *asked, const struct kvpd_figures *f)
{
	json_t *answer = kvpd_figures_json(f, &c->rates, asked->verb);

	if (answer && !strcmp(asked->verb, "status"))
		json_object_set_new(answer, "daemon", daemon_status(c));
	return answer;
}

/* What the ledger counts: as kvpd_admin_step(). */
static int step_figures(struct kvpd_control *c, struct kvpd_asked *asked, json_t **ret_answer)
{
	struct kvpd_figures f;
	char text[256];
	int r = kvpd_figures_step(c->ledger, asked->walk);

	if (r == -EINPROGRESS)
		return r;
	kvpd_figures_end(asked->walk, &f);
	asked->walk = NULL;
	if (r == 0) {
		*ret_answer = figures_answer(c, asked, &f);
		r = *ret_answer ? 0 : -ENOMEM;
	} else if (r == -ENOENT) {
		*ret_answer = json_object();
		snprintf(text, sizeof(text), "there is no tenant '%s'",
			json_string_value(json_object_get(asked->json, "tenant")));
		kvpd_put_text(*ret_answer, "error", text);
	}
	kvpd_figures_fini(&f);
	return r;
}

static int ask(struct kvpd_conn *conn, json_t *json, const char *verb)
{
	const char *tenant = json_string_value(json_object_get(json, "tenant"));
	struct kvpd_asked *asked = calloc(1, sizeof(*asked));
	uint32_t what;
	int r;

	if (!asked)
		return -ENOMEM;
	*asked = (struct kvpd_asked){ .json = json_incref(json), .verb = verb };
	r = kvpd_figures_verb(verb, &what) ? kvpd_figures_begin(tenant, what, &asked->walk)
					   : kvpd_admin_begin(json, &asked->request);
	conn->asked = asked;
	if (r < 0)
		kvpd_admin_drop(conn);
	return r;
}

void kvpd_admin_drop(struct kvpd_conn *conn)
{
	struct kvpd_asked *asked = conn->asked;
	struct kvpd_figures f;

	if (!asked)
		return;
	conn->asked = NULL;
	if (asked->request)
		json_decref(kvpd_admin_end(asked->request));
	if (asked->walk) {
		kvpd_figures_end(asked->walk, &f);
		kvpd_figures_fini(&f);
	}
	json_decref(asked->json);
	free(asked);
}

/* ---- requests ------------------------------------------------------------------------------ */

static bool changes_something(const char *verb)
{
	static const char *const verbs[] = { "pin", "unpin", "evict", "drain" };

	for (unsigned i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (!strcmp(verb, verbs[i]))
			return true;
	return false;
}

/* -EINPROGRESS: conn->asked has begun; else the result, and there is perhaps an answer. */
static int serve(struct kvpd_conn *conn, json_t *request, json_t **ret_answer)
{
	struct kvpd_control *c = conn->control;
	const char *verb = json_string_value(json_object_get(request, "verb"));
	int r;

	if (!kvpd_admin_allowed(conn)) {
		*ret_answer = json_pack("{s:s}", "error", "no longer among the administrators");
		return -EPERM;
	}
	if (!verb) {
		*ret_answer = json_pack("{s:s}", "error", "a request is an object with a \"verb\"");
		return -EINVAL;
	}
	if (changes_something(verb))
		kvpd_log_who(KVPD_LOG_NOTICE,
			&(struct kvpd_who){ .pid = conn->who.pid, .uid = conn->who.uid },
			"administrator (uid %u, process %d): %.64s", (unsigned)conn->who.uid,
			(int)conn->who.pid, verb);
	if (!strcmp(verb, "version")) {
		*ret_answer = version(c);
		return 0;
	}
	r = ask(conn, request, verb);
	return r < 0 ? r : -EINPROGRESS;
}

/*
 * Sorted: the same question has the same answer, byte for byte. Twelve digits: a nanosecond of an
 * hour, and none that only say how a double is made.
 */
#define DUMP (JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(12))

static int to_text(json_t *answer, int status, char **ret_text, size_t *ret_bytes)
{
	size_t need;
	char *text;

	if (!answer) {
		answer =
			status < 0 ? json_pack("{s:s}", "error", strerror(-status)) : json_object();
		if (!answer)
			return -ENOMEM;
	}
	need = json_dumpb(answer, NULL, 0, DUMP);
	text = need && need <= ANSWER_MAX ? malloc(need) : NULL;
	if (text && json_dumpb(answer, text, need, DUMP) != need) {
		free(text);
		text = NULL;
	}
	json_decref(answer);
	if (!text)
		return need > ANSWER_MAX ? -EMSGSIZE : -ENOMEM;
	*ret_text = text;
	*ret_bytes = need;
	return 0;
}

static void reply(struct kvpd_conn *conn, json_t *answer, int status)
{
	int r = to_text(answer, status, &conn->answer, &conn->answer_bytes);

	if (r < 0) {
		kvpd_conn_error(conn, conn->answer_tag, r,
			r == -EMSGSIZE ? "the answer is too large; ask with a limit"
				       : strerror(-r));
		return;
	}
	conn->answer_sent = 0;
	conn->answer_status = status;
	kvpd_admin_continue(conn);
}

void kvpd_admin_step_on(struct kvpd_conn *conn)
{
	struct kvpd_asked *asked = conn->asked;
	json_t *answer = NULL;
	int status;

	status = asked->walk ? step_figures(conn->control, asked, &answer)
			     : kvpd_admin_step(conn->control->ledger, asked->request);
	if (status == -EINPROGRESS) {
		kvpd_source_raise(&conn->source, KVPD_AGAIN);
		return;
	}
	if (asked->request)
		answer = kvpd_admin_end(asked->request);
	asked->request = NULL;
	kvpd_admin_drop(conn);
	reply(conn, answer, status);
}

void kvpd_admin_packet(struct kvpd_conn *conn, const struct kvp_packet *packet)
{
	json_error_t where;
	json_t *answer = NULL;
	json_t *request = json_loadb(
		(const char *)packet->body, packet->h.len, JSON_REJECT_DUPLICATES, &where);
	int status = -EINVAL;

	conn->answer_tag = packet->h.tag;
	if (request)
		status = serve(conn, request, &answer);
	else
		answer = json_pack("{s:s}", "error", where.text);
	json_decref(request);
	if (status == -EINPROGRESS)
		kvpd_admin_step_on(conn);
	else
		reply(conn, answer, status);
}

void kvpd_admin_continue(struct kvpd_conn *conn)
{
	struct {
		struct kvp_msg_admin_part head;
		char text[ANSWER_PART];
	} part;

	for (uint32_t i = 0; conn->answer && i < STEP_PARTS; i++) {
		size_t left = conn->answer_bytes - conn->answer_sent;
		size_t n = left < sizeof(part.text) ? left : sizeof(part.text);
		int r;

		part.head.last = n == left;
		part.head.status = n == left ? conn->answer_status : 0;
		memcpy(part.text, conn->answer + conn->answer_sent, n);
		r = kvp_msg_send(conn->fd, KVP_MSG_ADMIN_PART, conn->answer_tag, &part,
			sizeof(part.head) + n, NULL, 0);
		if (r == -ENOBUFS || r == -ENOMEM)
			kvpd_conn_hold(conn);
		if (r == -EAGAIN || r == -ENOBUFS || r == -ENOMEM) {
			if (!conn->stuck_since_ns)
				kvpd_conn_stuck(conn, kvpd_now_ns());
			kvpd_conn_watch(conn);
			return;
		}
		if (r < 0) {
			kvpd_conn_close(conn);
			return;
		}
		kvpd_conn_stuck(conn, 0);
		conn->held_ms = 0;
		conn->answer_sent += n;
		if (conn->answer_sent == conn->answer_bytes) {
			free(conn->answer);
			conn->answer = NULL;
		}
	}
	kvpd_conn_watch(conn);
}
