/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl's side of a conversation with the daemon: requests, answers, and errors. */
#include "tools/kvctl/kvctl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libclient/kvpool_admin.h"

#define ANSWER_MAX ((size_t)256 << 20)

static const char *where(const struct kvctl *ctl)
{
	const char *env = getenv("KVPOOL_SOCKET");

	if (ctl->socket)
		return ctl->socket;
	return env && *env ? env : KVP_DEFAULT_SOCKET;
}

static const char *why_nobody(int error)
{
	switch (error) {
	case -ENOENT:
	case -ECONNREFUSED:
		return "no kvpoold listens there; start it, or name its socket with --socket";
	case -EACCES:
		return "this user may not open the socket";
	case -EPERM:
		return "only root and members of its admin_group may administer it";
	case -EPROTO:
		return "what listens there is no kvpoold";
	case -EPROTONOSUPPORT:
		return "it is of another release than this kvctl";
	case -ETIMEDOUT:
		return "it does not answer; --timeout waits longer";
	case -ESHUTDOWN:
		return "it is shutting down";
	default:
		return strerror(-error);
	}
}

static int open_admin(struct kvctl *ctl)
{
	struct kvp_open_opts opts = {
		.size = sizeof(opts), .socket = ctl->socket, .default_timeout_ms = ctl->timeout_ms
	};

	return ctl->admin ? 0 : kvp_admin_open(&opts, &ctl->admin);
}

static int ask(struct kvctl *ctl, json_t *request, json_t **ret_answer)
{
	char *text = NULL, *question = json_dumps(request, JSON_COMPACT);
	json_error_t at;
	int r = question ? 0 : -ENOMEM;

	json_decref(request);
	if (r == 0)
		r = kvp_admin_request(ctl->admin, question, ctl->timeout_ms, ANSWER_MAX, &text);
	free(question);
	*ret_answer = text ? json_loads(text, 0, &at) : NULL;
	if (text && !*ret_answer)
		r = -EPROTO;
	free(text);
	return r;
}

int kvctl_try(struct kvctl *ctl, json_t *request, json_t **ret_answer)
{
	*ret_answer = NULL;
	if (open_admin(ctl) < 0) {
		json_decref(request);
		return -ENOTCONN;
	}
	return ask(ctl, request, ret_answer);
}

int kvctl_ask(struct kvctl *ctl, json_t *request, json_t **ret_answer)
{
	int r = open_admin(ctl);

	*ret_answer = NULL;
	if (r == 0)
		r = ask(ctl, request, ret_answer);
	else
		json_decref(request);
	/* Without an answer it was not the request that failed. */
	if (!ctl->admin || (r < 0 && !*ret_answer))
		exit(kvctl_fail(ctl, NULL, KVCTL_NOBODY, "%s: %s", where(ctl), why_nobody(r)));
	return r;
}

json_t *kvctl_request(const char *verb, const json_t *given)
{
	json_t *request = json_pack("{s:s}", "verb", verb);

	if (given)
		json_object_update(request, (json_t *)given);
	return request;
}

int kvctl_fail(struct kvctl *ctl, const char *command, int status, const char *format, ...)
{
	char text[1024], shown[1024];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	kvctl_printable(text, (int)sizeof(shown), shown, sizeof(shown));
	if (ctl->json) {
		json_t *o = json_pack("{s:s, s:i}", "error", shown, "exit", status);

		kvctl_print_json(o);
		json_decref(o);
	} else {
		fprintf(stderr, "kvctl: %s%s%s\n", command ? command : "", command ? ": " : "",
			shown);
	}
	return status;
}

int kvctl_refused(struct kvctl *ctl, const char *command, int error, const json_t *answer)
{
	const char *text = kvctl_text(answer, "error");

	return kvctl_fail(ctl, command, KVCTL_BAD, "%s", *text ? text : strerror(-error));
}

void kvctl_nap_ms(uint32_t ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L }, NULL);
}

void kvctl_print_json(const json_t *document)
{
	/* Fractions as the daemon wrote them. */
	json_dumpf(document, stdout, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(12));
	putchar('\n');
}
