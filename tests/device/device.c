/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRIES    3000 /* of 20 ms */
#define SLEEP_US 20000

void dev_start(struct dev_world *w, const char *device, const char *more)
{
	char text[1200];
	struct kvt_daemon_opts opts = {
		.share = 64 << 20, .memory = 256 << 20, .max_blocks = 4000, .more = text
	};

	snprintf(text, sizeof(text), "devices:\n  - {name: one, %sworker: \"%s\", %s}\n%s",
		strstr(device, "bytes:") ? "" : "bytes: 1MiB, segment: 64KiB, ",
		getenv("KVPOOL_DEVICE"), device, more);
	e2e_start(&w->daemon, &opts);
}

void dev_attach(struct dev_world *w, const char *socket)
{
	char path[200];
	int r;

	snprintf(path, sizeof(path), "%s/%s", w->daemon.dir, socket ? socket : "kvpool.sock");
	r = e2e_attach(&w->e, path);
	if (r < 0)
		e2e_die("attach", r);
}

void dev_begin(struct dev_world *w, const char *device, const char *more)
{
	dev_start(w, device, more);
	dev_attach(w, NULL);
}

void dev_end(struct dev_world *w)
{
	e2e_detach(&w->e);
	if (e2e_clean(w->daemon.socket, 0) < 0)
		e2e_die("something is left", EBUSY);
	kvt_daemon_stop(&w->daemon);
}

static void lease(struct dev_world *w, struct dev_prompt *p)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };

	for (int i = 0; i < TRIES; i++) {
		int r = kvp_match(w->e.space, p->tokens, DEV_TOKENS, NULL, &p->match);

		if (r < 0)
			e2e_die("match", r);
		kvp_match_info(p->match, &info);
		if (info.n_blocks == DEV_BLOCKS)
			return;
		kvp_release(p->match);
		e2e_sleep_us(SLEEP_US);
	}
	e2e_die("blocks that were stored are not found", ENOENT);
}

void dev_put(struct dev_world *w, struct dev_prompt *p, uint32_t number)
{
	int r;

	for (uint32_t i = 0; i < DEV_TOKENS; i++)
		p->tokens[i] = number * 100000 + i;
	r = e2e_store(&w->e, p->tokens, DEV_TOKENS, E2E_WAIT_MS, false);
	if (r < 0)
		e2e_die("store", r);
	lease(w, p);
}

void dev_release(struct dev_prompt *p)
{
	kvp_release(p->match);
	p->match = NULL;
}

int dev_warm(struct dev_world *w, struct dev_prompt *p, int *ret_why)
{
	struct kvp_ticket ticket;
	int r = kvp_warm(p->match, NULL, &ticket);

	*ret_why = 0;
	return r < 0 ? r : kvp_ticket_wait(w->e.client, ticket, E2E_WAIT_MS, ret_why);
}

bool dev_warm_all(struct dev_world *w, struct dev_prompt *p)
{
	for (int i = 0; i < TRIES; i++) {
		int why;

		if (dev_warm(w, p, &why) == (int)DEV_BLOCKS)
			return true;
		e2e_sleep_us(SLEEP_US);
	}
	return false;
}

int dev_read(struct dev_world *w, const struct dev_prompt *p)
{
	const void *there[DEV_BLOCKS];
	int n = 0;

	(void)w;
	for (int i = 0; i < TRIES; i++) {
		n = kvp_device_payloads(p->match, 0, 0, DEV_BLOCKS, 0, there);
		if (n == (int)DEV_BLOCKS)
			break;
		e2e_sleep_us(SLEEP_US); /* some of it is being mapped, perhaps */
	}
	for (int i = 0; i < n; i++)
		if (!e2e_derived(p->tokens, ((uint32_t)i + 1) * E2E_BT, there[i]))
			return -1;
	return n < 0 ? 0 : n;
}

/* ---- administrators ------------------------------------------------------------------------- */

json_t *dev_ask(struct dev_world *w, const char *verb)
{
	char request[128];
	json_t *answer;
	int r;

	snprintf(request, sizeof(request),
		"{\"verb\": \"%s\", \"device\": \"one\", \"kept\": true}", verb);
	answer = e2e_ask(w->daemon.socket, request, &r);
	if (r < 0)
		e2e_die(verb, r);
	return answer;
}

json_t *dev_row(struct dev_world *w)
{
	json_t *answer = dev_ask(w, "devices");
	json_t *row = json_incref(json_array_get(json_object_get(answer, "devices"), 0));

	json_decref(answer);
	return row;
}

uint64_t dev_figure(struct dev_world *w, const char *name)
{
	json_t *row = dev_row(w);
	uint64_t v = (uint64_t)json_integer_value(json_object_get(row, name));

	json_decref(row);
	return v;
}

bool dev_await(struct dev_world *w, const char *verb, const char *state)
{
	for (int i = 0; i < TRIES; i++) {
		json_t *answer = !strcmp(verb, "devices") ? dev_row(w) : dev_ask(w, verb);
		bool is = !strcmp(json_string_value(json_object_get(answer, "state")), state);

		json_decref(answer);
		if (is)
			return true;
		e2e_sleep_us(SLEEP_US);
	}
	return false;
}
