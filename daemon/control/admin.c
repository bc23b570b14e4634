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
#include "daemon/control/text.h"
#include "daemon/log.h"
#include "daemon/memory.h"
#include "shm/kvp_msg.h"

#define STEP_PARTS 4u  /* sent before others have their turn: a chunk of the text each */
#define STEP_ROWS  16u /* written */

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
	struct kvpd_figures figures; /* when the walk has ended */
	/* When either has ended, if the answer has a list: its rows are written in steps, too. */
	const char *list;
	uint32_t rows, row;
	struct kvpd_text text;
};

/* What the ledger counts: as kvpd_admin_step(), but a list is still to be written. */
static int step_figures(struct kvpd_control *c, struct kvpd_asked *asked, json_t **ret_answer)
{
	struct kvpd_figures *f = &asked->figures;
	int r = kvpd_figures_step(c->ledger, asked->walk);
	char text[256];
	int64_t rows;

	if (r == -EINPROGRESS)
		return r;
	kvpd_figures_end(asked->walk, f);
	asked->walk = NULL;
	if (r == -ENOENT) {
		*ret_answer = json_object();
		snprintf(text, sizeof(text), "there is no tenant '%s'",
			json_string_value(json_object_get(asked->json, "tenant")));
		kvpd_put_text(*ret_answer, "error", text);
	}
	if (r < 0)
		return r;
	rows = kvpd_figures_rows(f, asked->verb);
	if (rows >= 0) {
		asked->list = asked->verb;
		asked->rows = (uint32_t)rows;
		return -EINPROGRESS;
	}
	*ret_answer = kvpd_figures_json(f, &c->rates, asked->verb, 0);
	if (*ret_answer && !strcmp(asked->verb, "status"))
		json_object_set_new(*ret_answer, "daemon", daemon_status(c));
	return *ret_answer ? 0 : -ENOMEM;
}

/* What the ledger itself is asked for: likewise. */
static int step_request(struct kvpd_control *c, struct kvpd_asked *asked, json_t **ret_answer)
{
	int r = kvpd_admin_step(c->ledger, asked->request);

	if (r == -EINPROGRESS)
		return r;
	if (r == 0)
		asked->list = kvpd_admin_list(asked->request, &asked->rows);
	if (asked->list)
		return -EINPROGRESS;
	*ret_answer = kvpd_admin_end(asked->request);
	asked->request = NULL;
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

	if (!asked)
		return;
	conn->asked = NULL;
	if (asked->request)
		json_decref(kvpd_admin_end(asked->request));
	if (asked->walk)
		kvpd_figures_end(asked->walk, &asked->figures);
	kvpd_figures_fini(&asked->figures);
	kvpd_text_fini(&asked->text);
	json_decref(asked->json);
	free(asked);
}

/* ---- requests ------------------------------------------------------------------------------ */

static bool changes_something(const char *verb)
{
	static const char *const verbs[] = { "pin", "unpin", "evict", "drain", "device-drain",
		"device-detach", "device-attach", "space-set", "thresholds-import" };

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

/* Sends the text, or why there is none. */
static void reply_text(struct kvpd_conn *conn, struct kvpd_text *text, int status, int error)
{
	if (error < 0) {
		kvpd_text_fini(text);
		kvpd_conn_error(conn, conn->answer_tag, error,
			error == -EMSGSIZE ? "the answer is too large; ask with a limit"
					   : strerror(-error));
		return;
	}
	conn->answer = *text;
	conn->answer_status = status;
	kvpd_admin_continue(conn);
}

static void reply(struct kvpd_conn *conn, json_t *answer, int status)
{
	struct kvpd_text text = { 0 };
	int r;

	if (!answer)
		answer =
			status < 0 ? json_pack("{s:s}", "error", strerror(-status)) : json_object();
	r = kvpd_text_json(&text, answer);
	json_decref(answer);
	reply_text(conn, &text, status, r);
}

static int write_row(struct kvpd_control *c, struct kvpd_asked *asked)
{
	json_t *row = asked->request ? kvpd_admin_row(asked->request, asked->row)
				     : kvpd_figures_json(
					       &asked->figures, &c->rates, asked->verb, asked->row);
	int r = asked->row ? kvpd_text_put(&asked->text, ",") : 0;

	r = r < 0 ? r : kvpd_text_json(&asked->text, row);
	json_decref(row);
	asked->row++;
	return r;
}

/* The end of the list, and what else the answer has. */
static int write_end(struct kvpd_asked *asked)
{
	json_t *others = asked->request ? kvpd_admin_end(asked->request) : json_object();
	int r = kvpd_text_put(&asked->text, "]");

	asked->request = NULL;
	r = r < 0 ? r : kvpd_text_members(&asked->text, others);
	json_decref(others);
	return r;
}

/* Some rows of a list, whose text grows; the last one ends it. */
static void list_on(struct kvpd_conn *conn)
{
	struct kvpd_asked *asked = conn->asked;
	struct kvpd_text *text = &asked->text, whole;
	int r = 0;

	if (!text->n) {
		r = kvpd_text_put(text, "{\"");
		r = r < 0 ? r : kvpd_text_put(text, asked->list);
		r = r < 0 ? r : kvpd_text_put(text, "\":[");
	}
	for (uint32_t k = 0; r == 0 && k < STEP_ROWS && asked->row < asked->rows; k++)
		r = write_row(conn->control, asked);
	if (r == 0 && asked->row < asked->rows) {
		kvpd_source_raise(&conn->source, KVPD_AGAIN);
		return;
	}
	r = r < 0 ? r : write_end(asked);
	whole = *text;
	*text = (struct kvpd_text){ 0 };
	kvpd_admin_drop(conn);
	reply_text(conn, &whole, 0, r);
}

void kvpd_admin_step_on(struct kvpd_conn *conn)
{
	struct kvpd_asked *asked = conn->asked;
	json_t *answer = NULL;
	int status;

	if (asked->list) {
		list_on(conn);
		return;
	}
	status = asked->walk ? step_figures(conn->control, asked, &answer)
			     : step_request(conn->control, asked, &answer);
	if (status == -EINPROGRESS) {
		kvpd_source_raise(&conn->source, KVPD_AGAIN);
		return;
	}
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
		char text[KVPD_TEXT_CHUNK];
	} part;

	for (uint32_t i = 0; conn->answer.first && i < STEP_PARTS; i++) {
		const struct kvpd_text_chunk *chunk = conn->answer.first;
		int r;

		part.head.last = !chunk->next;
		part.head.status = chunk->next ? 0 : conn->answer_status;
		memcpy(part.text, chunk->bytes, chunk->n);
		r = kvp_msg_send(conn->fd, KVP_MSG_ADMIN_PART, conn->answer_tag, &part,
			sizeof(part.head) + chunk->n, NULL, 0);
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
		kvpd_text_drop(&conn->answer);
	}
	kvpd_conn_watch(conn);
}
