/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operation of the driver table failing, hanging and slow, under the real daemon with a real client:
 * whoever asked for a copy hears how it ended, everybody else is served from DRAM meanwhile, a worker that
 * hangs or dies is ended and replaced, and then all is as it should be. A line for each; last how many
 * operations of the table have no case. faults [OPERATION...]: these only.
 */
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/device.h"

#define CALLS   40u /* stores and matches in DRAM while the fault lasts */
#define TIMEOUT "timeout_ms: 700"

/* When the operation is called for the first time. */
enum when { AT_COPY, AT_RESTART, AT_DETACH };

static const struct operation {
	const char *member; /* of struct kvpd_driver_ops */
	const char *rule;   /* what the driver `fault` calls it */
	enum when when;
	int fail;      /* what a client hears where it fails; 0: that it is all there */
	bool replaced; /* where it fails the worker is replaced */
} operations[] = {
	{ "open", "open", AT_COPY, -ENODEV, true },
	/* The worker ends with its process; a driver that cannot be closed holds nobody up. */
	{ "close", "close", AT_DETACH, 0, false },
	{ "caps", "caps", AT_COPY, -ENODEV, true },
	/* The tenant does not grow there for the time being: no room. */
	{ "seg_make", "make", AT_COPY, -ENOSPC, false },
	{ "seg_take", "take", AT_RESTART, -ENODEV, true },
	{ "seg_drop", "drop", AT_DETACH, 0, false },
	{ "seg_sum", "sum", AT_COPY, -EIO, false },
	{ "host_add", "add", AT_COPY, -EIO, false },
	{ "host_drop", "hostdrop", AT_DETACH, 0, false },
	{ "submit", "submit", AT_COPY, -EIO, false },
	{ "poll", "poll", AT_COPY, -EAGAIN, true },
	/* What else wakes the worker has it look, too. */
	{ "event", "event", AT_COPY, -EAGAIN, false },
	{ "usage", "usage", AT_COPY, 0, false },
	/* Not of the table: a batch's own outcome, which poll() tells. */
	{ NULL, "copy", AT_COPY, -EIO, false },
};
#define N_OPERATIONS (sizeof(operations) / sizeof(operations[0]))

static const char *const whats[] = { "fail:5", "hang", "slow:150" };
enum { FAILS, HANGS, IS_SLOW, N_WHATS };

static const char *case_name = "";

static void wrong(const char *what)
{
	fprintf(stderr, "%s: %s\n", case_name, what);
	exit(1);
}

static const char *errno_name(int error)
{
	static const struct {
		int error;
		const char *name;
	} names[] = { { 0, "all of it" }, { -EAGAIN, "-EAGAIN" }, { -EIO, "-EIO" },
		{ -ENODEV, "-ENODEV" }, { -ENOSPC, "-ENOSPC" }, { -ENOENT, "a miss" } };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].error == error)
			return names[i].name;
	return "something else";
}

/* A block that was moved into an extent which this client has not mapped yet is a miss for a moment. */
static bool found_soon(struct dev_world *w, const uint32_t *tokens)
{
	for (uint32_t i = 0; i < E2E_WAIT_MS; i++) {
		if (e2e_fetch_all(&w->e, tokens, 4 * E2E_BT) == 4 * E2E_BT)
			return true;
		usleep(1000);
	}
	return false;
}

/* What an engine that knows nothing of devices does meanwhile. */
static uint32_t serve(struct dev_world *w, uint32_t base)
{
	uint32_t tokens[4 * E2E_BT], n = 0;

	for (; n < CALLS; n++) {
		for (uint32_t i = 0; i < 4 * E2E_BT; i++)
			tokens[i] = base + n * 1000 + i;
		if (e2e_store(&w->e, tokens, 4 * E2E_BT, E2E_WAIT_MS, false) != 4)
			wrong("a prompt cannot be stored in DRAM meanwhile");
		if (kvp_flush(w->e.client, E2E_WAIT_MS) != 0 || !found_soon(w, tokens))
			wrong("what was stored in DRAM is not found");
	}
	return n;
}

/* A slot there is granted, or it is said why not; the call waits no longer than it was told to. */
static void ask_for_slot(struct dev_world *w)
{
	struct kvp_grant *g = NULL;
	int r = kvp_reserve_on(w->e.space, 0, 50, NULL, &g);

	if (r == 0)
		kvp_grant_release(g);
	else if (r != -EAGAIN && r != -ETIMEDOUT && r != -ENODEV)
		wrong("a slot there is refused for a reason that says nothing");
}

/* Asks for the copy, has others served while it is under way, and waits for its end. */
static int ask_and_serve(struct dev_world *w, struct dev_prompt *p, uint32_t *served)
{
	struct kvp_ticket ticket;
	int why = 0, n, r = kvp_warm(p->match, NULL, &ticket);

	if (r < 0)
		wrong("the question itself was refused");
	ask_for_slot(w);
	*served += serve(w, 50000000 + *served * 1000);
	n = kvp_ticket_wait(w->e.client, ticket, E2E_WAIT_MS, &why);
	if (n < 0)
		wrong("the client was not answered");
	if ((n == (int)DEV_BLOCKS) != (why == 0))
		wrong("a part of the prompt, and no reason");
	return why;
}

static bool may_hear(const struct operation *o, int what, int why)
{
	/* The device is starting or down, or its worker went under the copy. */
	if (why == 0 || why == -EAGAIN || (what != IS_SLOW && why == -ENODEV))
		return true;
	return what == FAILS ? why == o->fail : what == HANGS && why == -EIO;
}

static int provoke(
	struct dev_world *w, const struct operation *o, struct dev_prompt *p, uint32_t *served)
{
	pid_t worker;
	int why;

	if (o->when == AT_COPY)
		return ask_and_serve(w, p, served);
	if (!dev_warm_all(w, p))
		wrong("the first copy does not come");
	if (o->when == AT_RESTART) {
		worker = e2e_worker(w->daemon.pid);
		if (!worker)
			wrong("there is no worker");
		kill(worker, SIGKILL);
		/* Another prompt, so that there is something to copy. */
		dev_release(p);
		dev_put(w, p, 2);
		return ask_and_serve(w, p, served);
	}
	dev_release(p);
	json_decref(dev_ask(w, "device-drain"));
	*served += serve(w, 50000000);
	dev_put(w, p, 2);
	why = ask_and_serve(w, p, served);
	if (why != -ENODEV)
		wrong("a device that is emptied takes something");
	if (!dev_await(w, "device-detach", "detached"))
		wrong("it is not detached");
	json_decref(dev_ask(w, "device-attach"));
	return why;
}

static void one(const struct operation *o, int what)
{
	static struct dev_prompt p;
	struct dev_world w = { 0 };
	char rule[160], name[64];
	uint32_t served = 0;
	uint64_t restarts;
	int why;

	snprintf(name, sizeof(name), "%s %s", o->member ? o->member : o->rule, whats[what]);
	case_name = name;
	/*
	 * In one life of the worker: the next one has a sound device again. What costs no worker its
	 * life goes wrong once.
	 */
	snprintf(rule, sizeof(rule), "driver: fault, " TIMEOUT ", faults: '%s=%s%s#%d'", o->rule,
		whats[what], what == FAILS && !o->replaced ? "@1" : "", o->when == AT_RESTART);
	dev_begin(&w, rule, "");
	dev_put(&w, &p, 1);
	why = provoke(&w, o, &p, &served);
	if (!may_hear(o, what, why) && !(o->when == AT_DETACH && why == -ENODEV)) {
		fprintf(stderr, "%s: the client heard %s (%d)\n", name, errno_name(why), why);
		exit(1);
	}
	if (!dev_warm_all(&w, &p) || dev_read(&w, &p) != (int)DEV_BLOCKS)
		wrong("what is copied afterwards is not there");
	restarts = dev_figure(&w, "restarts_total");
	if (what == HANGS && !restarts && strcmp(o->rule, "close") != 0)
		wrong("a worker that hangs was not replaced");
	if (what == FAILS && o->replaced && !restarts)
		wrong("the worker was not replaced");
	dev_release(&p);
	dev_end(&w);
	printf("%-10s %-8s daemon alive, client got %s; %u calls served meanwhile; workers %llu\n",
		o->member ? o->member : o->rule, whats[what], errno_name(why), served,
		(unsigned long long)restarts + 1);
	fflush(stdout);
}

/* Members of struct kvpd_driver_ops in the header that have no case here. */
static int uncovered(const char *header)
{
	FILE *f = fopen(header, "r");
	char line[400], member[64];
	bool inside = false;
	int n = 0, seen = 0;

	if (!f)
		e2e_die(header, errno);
	while (fgets(line, sizeof(line), f)) {
		const char *at = strstr(line, "(*");
		bool has = false;

		if (!strncmp(line, "struct kvpd_driver_ops {", 24))
			inside = true;
		if (inside && !strncmp(line, "};", 2))
			break;
		if (!inside || !at || sscanf(at, "(*%63[a-z_])(", member) != 1)
			continue;
		seen++;
		for (size_t i = 0; i < N_OPERATIONS; i++)
			has = has ||
			      (operations[i].member && !strcmp(operations[i].member, member));
		if (!has)
			fprintf(stderr, "%s has no case\n", member);
		n += !has;
	}
	fclose(f);
	return seen ? n : -1;
}

int main(int argc, char **argv)
{
	int n;

	if (!getenv("KVPOOL_DEVICE") || !getenv("DRIVER_H"))
		e2e_die("KVPOOL_DEVICE names the worker, DRIVER_H the table's header", EINVAL);
	for (size_t i = 0; i < N_OPERATIONS; i++) {
		bool wanted = argc == 1;

		for (int k = 1; k < argc; k++)
			wanted = wanted || !strcmp(argv[k], operations[i].rule);
		for (int what = 0; wanted && what < N_WHATS; what++)
			one(&operations[i], what);
	}
	n = uncovered(getenv("DRIVER_H"));
	printf("uncovered operations %d\n", n);
	return n != 0;
}
