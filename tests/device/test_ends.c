/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ends or changes while blocks are on their way to a device and lie there: the configuration, a tenant,
 * the daemon. Nobody hangs, nothing is left, and a reader reads on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "tests/device/device.h"

#define TRIES 1500

static char *text_of(const struct dev_world *w, const char *name)
{
	char path[200], *text = calloc(1, 1 << 20);
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", w->daemon.dir, name);
	f = fopen(path, "r");
	assert_non_null(f);
	(void)!fread(text, 1, (1 << 20) - 1, f);
	fclose(f);
	return text;
}

/* Has the daemon read its configuration with `from` replaced, and waits until its log says so. */
static void reload(struct dev_world *w, const char *from, const char *to, const char *says)
{
	char path[200], *text = text_of(w, "kvpoold.yaml"), *at = strstr(text, from);
	bool said = false;
	FILE *f;

	assert_non_null(at);
	snprintf(path, sizeof(path), "%s/kvpoold.yaml", w->daemon.dir);
	f = fopen(path, "w");
	assert_non_null(f);
	fprintf(f, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
	assert_int_equal(fclose(f), 0);
	free(text);
	assert_int_equal(kill(w->daemon.pid, SIGHUP), 0);
	for (int i = 0; i < TRIES && !said; i++) {
		text = text_of(w, "log");
		said = strstr(text, says) != NULL;
		free(text);
		e2e_sleep_us(20000);
	}
	assert_true(said);
}

static void a_reload_changes_nothing_there(void **state)
{
	struct dev_world w = { 0 };
	struct dev_prompt *p = calloc(2, sizeof(*p));
	struct kvp_ticket ticket;
	int why;

	(void)state;
	dev_begin(&w, "driver: fault, faults: 'submit=slow:300', timeout_ms: 9000",
		"log_level: info\n");
	dev_put(&w, &p[0], 1);
	dev_put(&w, &p[1], 2);
	assert_true(dev_warm_all(&w, &p[0]));
	assert_int_equal(kvp_warm(p[1].match, NULL, &ticket), 0);
	reload(&w, "log_level: info", "log_level: debug", "configuration");
	assert_int_equal(kvp_ticket_wait(w.e.client, ticket, E2E_WAIT_MS, &why), DEV_BLOCKS);
	assert_int_equal(dev_read(&w, &p[0]), DEV_BLOCKS);
	/* What cannot change while it runs does not. */
	reload(&w, "timeout_ms: 9000", "timeout_ms: 8000", "devices");
	assert_int_equal(dev_read(&w, &p[0]), DEV_BLOCKS);
	assert_int_equal(dev_read(&w, &p[1]), DEV_BLOCKS);
	assert_int_equal(dev_figure(&w, "restarts_total"), 0);
	dev_release(&p[0]);
	dev_release(&p[1]);
	dev_end(&w);
	free(p);
}

/* Its client reads what it has leased; then all of it is given back. */
static void a_tenant_that_is_no_more(void **state)
{
	static const char with[] = "tenants:\n  - {name: a, socket: a.sock}\n";
	struct dev_world w = { 0 };
	struct dev_prompt *p = calloc(1, sizeof(*p));
	int i;

	(void)state;
	dev_start(&w, "driver: host", with);
	dev_attach(&w, "a.sock");
	dev_put(&w, p, 1);
	assert_true(dev_warm_all(&w, p));
	assert_int_equal(dev_read(&w, p), DEV_BLOCKS);
	reload(&w, with, "", "tenant 'a' ends");
	assert_int_equal(dev_read(&w, p), DEV_BLOCKS);
	dev_release(p);
	e2e_detach(&w.e);
	for (i = 0; i < TRIES && dev_figure(&w, "charged_bytes") + dev_figure(&w, "segments"); i++)
		e2e_sleep_us(20000);
	assert_true(i < TRIES);
	/* What it had there is anybody's. */
	dev_attach(&w, NULL);
	dev_put(&w, p, 1);
	assert_true(dev_warm_all(&w, p));
	dev_release(p);
	dev_end(&w);
	free(p);
}

static void a_tenant_without_a_share(void **state)
{
	struct dev_world w = { 0 };
	struct dev_prompt *p = calloc(1, sizeof(*p));
	int why;

	(void)state;
	dev_start(&w, "driver: host",
		"tenants:\n  - {name: b, socket: b.sock, devices: [{name: one, share: 0}]}\n");
	dev_attach(&w, "b.sock");
	dev_put(&w, p, 1);
	assert_true(dev_await(&w, "devices", "up"));
	assert_int_equal(dev_warm(&w, p, &why), 0);
	assert_int_equal(why, -ENODEV);
	assert_int_equal(e2e_fetch_all(&w.e, p->tokens, DEV_TOKENS), DEV_TOKENS);
	assert_int_equal(dev_figure(&w, "charged_bytes"), 0);
	dev_release(p);
	dev_end(&w);
	free(p);
}

/* In DRAM, as it was put. */
static void assert_readable(const struct dev_prompt *p)
{
	const void *here[DEV_BLOCKS];

	assert_int_equal(kvp_payloads(p->match, 0, DEV_BLOCKS, here), DEV_BLOCKS);
	for (uint32_t i = 0; i < DEV_BLOCKS; i++)
		assert_true(e2e_derived(p->tokens, (i + 1) * E2E_BT, here[i]));
}

static void await_no_worker(pid_t worker)
{
	int i;

	for (i = 0; i < TRIES && kill(worker, 0) == 0; i++)
		e2e_sleep_us(20000);
	assert_true(i < TRIES);
}

/* With copies under way that do not end: the worker hangs, and would for another minute. */
static void the_daemon_ends(void **state)
{
	const int signals[] = { SIGTERM, SIGKILL };

	(void)state;
	for (uint32_t k = 0; k < 2; k++) {
		struct dev_world w = { 0 };
		struct dev_prompt *p = calloc(1, sizeof(*p));
		struct kvp_ticket ticket;
		char error[500];
		int why, status;
		pid_t worker;

		dev_begin(&w, "driver: fault, faults: 'submit=hang@1', timeout_ms: 60000", "");
		dev_put(&w, p, 1);
		assert_true(dev_await(&w, "devices", "up"));
		worker = e2e_worker(w.daemon.pid);
		assert_true(worker > 0);
		assert_int_equal(kvp_warm(p->match, NULL, &ticket), 0);
		assert_int_equal(kvp_ticket_wait(w.e.client, ticket, 300, &why), -ETIMEDOUT);
		assert_int_equal(kill(w.daemon.pid, signals[k]), 0);
		assert_int_equal(
			kvp_ticket_wait(w.e.client, ticket, E2E_WAIT_MS, &why), -ESHUTDOWN);
		assert_int_equal(waitpid(w.daemon.pid, &status, 0), w.daemon.pid);
		w.daemon.pid = 0;
		if (signals[k] == SIGTERM)
			assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		await_no_worker(worker);
		assert_readable(p);
		dev_release(p);
		e2e_detach(&w.e);
		/* A new daemon begins anew; its worker hangs as well. */
		assert_int_equal(kvt_daemon_restart(&w.daemon, error, sizeof(error)), 0);
		dev_attach(&w, NULL);
		dev_put(&w, p, 2);
		dev_release(p);
		e2e_detach(&w.e);
		assert_int_equal(e2e_clean(w.daemon.socket, 0), 0);
		kvt_daemon_stop(&w.daemon);
		free(p);
	}
}

/*
 * A process that hangs in a driver may outlive SIGKILL. Here one is followed by this process, and so is not reaped before
 * this one has heard of its end.
 */
static void a_worker_that_outlives_its_kill(void **state)
{
	struct dev_world w = { 0 };
	struct dev_prompt *p = calloc(2, sizeof(*p));
	struct kvp_ticket ticket;
	int why, status;
	pid_t worker;

	(void)state;
	dev_begin(&w, "driver: fault, faults: 'submit=hang#0', timeout_ms: 700", "");
	dev_put(&w, &p[0], 1);
	assert_true(dev_await(&w, "devices", "up"));
	worker = e2e_worker(w.daemon.pid);
	assert_true(worker > 0);
	if (ptrace(PTRACE_SEIZE, worker, 0, 0) < 0) {
		dev_release(&p[0]);
		dev_end(&w);
		free(p);
		skip(); /* not allowed here */
	}
	assert_int_equal(kvp_warm(p[0].match, NULL, &ticket), 0);
	/* Who asked is told, and who asks next; DRAM is served, and the device can be let go of and taken again. */
	assert_int_equal(kvp_ticket_wait(w.e.client, ticket, E2E_WAIT_MS, &why), 0);
	assert_true(why < 0);
	assert_true(dev_await(&w, "devices", "down"));
	assert_int_equal(dev_warm(&w, &p[0], &why), 0);
	assert_int_equal(why, -ENODEV);
	assert_readable(&p[0]);
	dev_put(&w, &p[1], 2);
	assert_true(dev_await(&w, "device-detach", "detached"));
	json_decref(dev_ask(&w, "device-attach"));
	assert_true(dev_await(&w, "devices", "down"));
	/* Two workers at a time there never are. */
	assert_int_equal(dev_figure(&w, "pid"), 0);
	assert_int_equal(waitpid(worker, &status, __WALL), worker);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	assert_true(dev_warm_all(&w, &p[0]));
	assert_int_equal(dev_read(&w, &p[0]), DEV_BLOCKS);
	dev_release(&p[0]);
	dev_release(&p[1]);
	dev_end(&w);
	free(p);
}

/* What it wrote there stays as long as it is wanted; then its memory there is given back. */
static void a_client_that_wrote_there(void **state)
{
	struct dev_world w = { 0 };
	uint32_t tokens[E2E_BT];
	struct kvp_grant *g;
	int i;

	(void)state;
	dev_begin(&w, "driver: host", "");
	assert_true(dev_await(&w, "devices", "up"));
	for (i = 0; i < (int)E2E_BT; i++)
		tokens[i] = 1000 + (uint32_t)i;
	assert_int_equal(kvp_reserve_on(w.e.space, 0, E2E_WAIT_MS, NULL, &g), 0);
	e2e_derive(tokens, E2E_BT, kvp_grant_addr(g));
	assert_int_equal(kvp_commit(g, kvp_ref_root(), tokens, E2E_BT, NULL, 0), 0);
	assert_int_equal(kvp_flush(w.e.client, E2E_WAIT_MS), 0);
	kvp_grant_release(g);
	e2e_detach(&w.e);
	assert_int_equal(dev_figure(&w, "blocks"), 1);
	assert_true(dev_figure(&w, "charged_bytes") > 0);
	for (i = 0; i < TRIES && dev_figure(&w, "charged_bytes"); i++) {
		int status;

		json_decref(e2e_ask(w.daemon.socket, "{\"verb\": \"drain\"}", &status));
		e2e_sleep_us(20000);
	}
	assert_true(i < TRIES);
	assert_int_equal(e2e_clean(w.daemon.socket, 0), 0);
	kvt_daemon_stop(&w.daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_reload_changes_nothing_there),
		cmocka_unit_test(a_tenant_that_is_no_more),
		cmocka_unit_test(a_tenant_without_a_share),
		cmocka_unit_test(the_daemon_ends),
		cmocka_unit_test(a_worker_that_outlives_its_kill),
		cmocka_unit_test(a_client_that_wrote_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
