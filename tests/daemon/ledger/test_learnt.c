/* SPDX-License-Identifier: Apache-2.0 */
/* What quality windows have learnt, kept in files: ledgers that begin where earlier ones ended. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "daemon/ledger/learnt_file.h"
#include "daemon/ledger/ledger.h"
#include "tests/daemon/ledger/coded.h"

static char folder[64], path[96];

/* 1: a disk that hangs from now on, as SQLite sees it; 2: somebody waits for it, and does so for ever. */
static _Atomic(int) disk_hangs;

static void reach_disk(void)
{
	if (!disk_hangs)
		return;
	disk_hangs = 2;
	for (;;)
		pause();
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
	reach_disk();
	return (int)syscall(SYS_fdatasync, fd);
}

__attribute__((visibility("default"))) int fsync(int fd)
{
	reach_disk();
	return (int)syscall(SYS_fsync, fd);
}

static int begin(void **unused)
{
	(void)unused;
	snprintf(folder, sizeof(folder), "/tmp/kvpool-learnt-XXXXXX");
	if (!mkdtemp(folder))
		return -1;
	snprintf(path, sizeof(path), "%s/one.db", folder);
	return 0;
}

static int end(void **unused)
{
	char command[80];

	(void)unused;
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

/* A ledger that keeps things there, or nowhere. */
static struct dp_client *start(struct dp_world *w, const char *state_dir)
{
	struct kvpd_limits limits;

	dp_defaults(w, &limits);
	w->config.state_dir = (char *)(uintptr_t)state_dir;
	limits.share = SHARE;
	limits.max_blocks = 4096;
	limits.recipe_tokens = 4096 * T;
	limits.quality_target = 90;
	dp_start(w, &limits);
	return dp_attach(w, w->tenant);
}

static uint32_t open_model(struct dp_client *c, const char *name)
{
	struct kvp_space_canon canon = coded_model(name, "tq2");

	return coded_open(c, &canon);
}

/* As if an engine had reported it so often. */
static void report(struct dp_client *c, uint32_t space, double score, uint32_t times)
{
	for (uint32_t i = 0; i < times; i++) {
		struct kvp_sqe sqe = { .op = KVP_OP_QUALITY,
			.space = (uint16_t)space,
			.count = (uint32_t)(score * KVP_QUALITY_WHOLE) };

		dp_push(c, &sqe);
	}
	dp_flush(c);
}

/* Of the space of this number: a count, or a word. */
static json_t *member(struct dp_world *w, uint32_t space, const char *name)
{
	json_t *answer, *row, *v = NULL;
	size_t i;

	assert_int_equal(dp_admin(w, "{\"verb\": \"spaces\"}", &answer), 0);
	json_array_foreach(json_object_get(answer, "spaces"), i, row)
		if (json_integer_value(json_object_get(row, "space")) == space &&
			!strcmp(json_string_value(json_object_get(row, "tenant")), "one"))
			v = json_incref(json_object_get(row, name));
	assert_non_null(v);
	json_decref(answer);
	return v;
}

static uint32_t count(struct dp_world *w, uint32_t space, const char *name)
{
	json_t *v = member(w, space, name);
	uint32_t n = (uint32_t)json_integer_value(v);

	json_decref(v);
	return n;
}

static uint32_t bits(struct dp_world *w, uint32_t space)
{
	return count(w, space, "coding_bits");
}

static bool began(struct dp_world *w, uint32_t space, const char *how)
{
	json_t *v = member(w, space, "quality_start");
	bool is = !strcmp(json_string_value(v), how);

	json_decref(v);
	return is;
}

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
}

static void wait_began(struct dp_world *w, uint32_t space, const char *how)
{
	for (uint32_t ms = 0; !began(w, space, how); ms += 2) {
		assert_true(ms < DP_WAIT_MS);
		nap();
	}
}

/* The first question, and its answer when it is there. */
static int ask(struct dp_world *w, const char *request, json_t **ret)
{
	char again[128];
	json_t *q = json_loads(request, 0, NULL), *first;
	int r = dp_admin(w, request, &first);

	snprintf(again, sizeof(again),
		"{\"verb\": \"%s\", \"tenant\": \"one\", \"asked\": %" JSON_INTEGER_FORMAT "}",
		json_string_value(json_object_get(q, "verb")),
		json_integer_value(json_object_get(first, "asked")));
	json_decref(q);
	*ret = first;
	if (r < 0)
		return r;
	for (uint32_t ms = 0; r == 0; ms += 2) {
		json_decref(*ret);
		r = dp_admin(w, again, ret);
		if (!json_object_get(*ret, "waiting"))
			break;
		assert_true(ms < DP_WAIT_MS);
		nap();
	}
	return r;
}

/* Rows of this model and layer (-1: all layers). */
static size_t rows_of(struct dp_world *w, const char *model, int layer)
{
	json_t *answer, *row;
	size_t i, n = 0;

	assert_int_equal(ask(w, "{\"verb\": \"thresholds\", \"tenant\": \"one\"}", &answer), 0);
	json_array_foreach(json_object_get(answer, "thresholds"), i, row) {
		const json_t *l = json_object_get(row, "layer");

		n += !strcmp(json_string_value(json_object_get(row, "model")), model) &&
		     (json_is_null(l) ? -1 : (int)json_integer_value(l)) == layer;
	}
	json_decref(answer);
	return n;
}

static void wait_row(struct dp_world *w, const char *model)
{
	for (uint32_t ms = 0; !rows_of(w, model, -1); ms += 2) {
		assert_true(ms < DP_WAIT_MS);
		nap();
	}
}

/* ---- windows --------------------------------------------------------------------------------- */

/* a window goes on where an earlier ledger's ended. A-075: another model begins as the nearest, and says so. */
static void windows_go_on(void **unused)
{
	struct dp_world w;
	struct dp_client *c = start(&w, folder);
	uint32_t m = open_model(c, "m"), n;

	(void)unused;
	assert_int_equal(bits(&w, m), 2);
	report(c, m, 0, 20);
	assert_int_equal(bits(&w, m), 3);
	report(c, m, 0, 20);
	assert_int_equal(bits(&w, m), 4);
	wait_row(&w, "m"); /* within a second or two, without an end */
	assert_true(began(&w, m, "default"));
	dp_stop(&w);

	c = start(&w, folder);
	m = open_model(c, "m");
	wait_began(&w, m, "measured");
	assert_int_equal(bits(&w, m), 4);
	n = open_model(c, "n");
	wait_began(&w, n, "inherited");
	assert_int_equal(bits(&w, n), 4);
	assert_int_equal(rows_of(&w, "n", -1), 1);
	/* From there on it is a window as any other. */
	report(c, m, 1, 20);
	assert_int_equal(bits(&w, m), 3);
	report(c, n, 0, 20);
	assert_int_equal(bits(&w, n), 8);
	dp_stop(&w); /* the last moment counts, too */

	c = start(&w, folder);
	m = open_model(c, "m");
	n = open_model(c, "n");
	wait_began(&w, m, "measured");
	wait_began(&w, n, "measured");
	assert_int_equal(bits(&w, m), 3);
	assert_int_equal(bits(&w, n), 8);
	dp_check(&w);
	dp_stop(&w);
}

/* An exact space has nothing to learn; and without a folder nothing is kept, and said so. */
static void without_a_folder_nothing_is_kept(void **unused)
{
	static const char request[] = "{\"verb\": \"thresholds\"}";
	struct kvp_space_canon exact = coded_model("m", NULL);
	struct dp_world w;
	struct dp_client *c = start(&w, NULL);
	uint32_t m = open_model(c, "m");
	json_t *answer;

	(void)unused;
	report(c, m, 0, 20);
	assert_int_equal(dp_admin(&w, request, &answer), -EOPNOTSUPP);
	assert_non_null(strstr(json_string_value(json_object_get(answer, "error")), "state_dir"));
	json_decref(answer);
	assert_true(began(&w, coded_open(c, &exact), ""));
	dp_stop(&w);
	c = start(&w, NULL);
	m = open_model(c, "m");
	assert_int_equal(bits(&w, m), 2);
	assert_true(began(&w, m, "default"));
	dp_stop(&w);
}

static void tenants_learn_nothing_of_each_other(void **unused)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c = start(&w, folder);
	uint32_t m = open_model(c, "m"), other, theirs;
	struct stat st;
	char at[96];

	(void)unused;
	report(c, m, 0, 40);
	limits = (struct kvpd_limits){ .share = 16 << 20,
		.max_blocks = 256,
		.recipe_tokens = 256 * T,
		.max_sessions = 8,
		.quality_target = 90 };
	dp_stop(&w);
	c = start(&w, folder);
	assert_int_equal(kvpd_tenant_open(w.ledger, "two", &limits, &other), 0);
	m = open_model(c, "m");
	wait_began(&w, m, "measured");
	c = dp_attach(&w, other);
	theirs = open_model(c, "m");
	report(c, theirs, 1, 20);
	/* It ends, and what it has learnt does not. */
	dp_detach(c);
	assert_int_equal(kvpd_tenant_abandon(w.ledger, other), 0);
	/* One thread serves all in turn: what was asked first has been answered when this is there. */
	snprintf(at, sizeof(at), "%s/two.db", folder);
	for (uint32_t ms = 0; access(at, F_OK); ms += 2) {
		assert_true(ms < DP_WAIT_MS);
		nap();
	}
	dp_stop(&w);
	assert_int_equal(stat(at, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	{
		struct kvpd_learnt_file *f;
		struct kvpd_learnt *rows;
		size_t n;

		assert_int_equal(kvpd_learnt_open(folder, "two", false, &f), 0);
		assert_int_equal(kvpd_learnt_read(f, 10, &rows, &n), 0);
		kvpd_learnt_close(f);
		assert_int_equal(n, 1);
		assert_int_equal(rows[0].width, KVP_WIDTH_2);
		free(rows);
	}
}

/* how long its sequences are a space learns from checks, and goes on from the nearest that is known. */
static void the_nearest_context_counts(void **unused)
{
	struct kvpd_learnt *rows, both[2];
	struct kvpd_learnt_file *f;
	struct dp_world w;
	struct dp_client *c = start(&w, folder);
	uint32_t m = open_model(c, "m"), first = 0;
	size_t n;

	(void)unused;
	report(c, m, 1, 20);
	dp_stop(&w);
	assert_int_equal(kvpd_learnt_open(folder, "one", false, &f), 0);
	assert_int_equal(kvpd_learnt_read(f, 10, &rows, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(rows[0].context_tokens, 0); /* nothing was checked */
	both[0] = both[1] = rows[0];
	free(rows);
	both[0].context_tokens = 64;
	both[0].width = KVP_WIDTH_3;
	both[1].context_tokens = 4096;
	both[1].width = KVP_WIDTH_4;
	assert_int_equal(kvpd_learnt_save(f, both, 1), 0);
	assert_int_equal(kvpd_learnt_save(f, both + 1, 1), 0);
	kvpd_learnt_close(f);

	c = start(&w, folder);
	m = open_model(c, "m");
	wait_began(&w, m, "measured");
	assert_int_equal(bits(&w, m), 4); /* the latest */
	for (; bits(&w, m) != 3; first += 50) {
		assert_true(first < 10000);
		coded_put_many(c, m, first, 50);
	}
	assert_true(began(&w, m, "measured"));
	for (; count(&w, m, "quality_samples") < 20; first += 50) {
		assert_true(first < 10000);
		coded_put_many(c, m, first, 50);
	}
	/* What was checked of its layers is kept as well. */
	dp_stop(&w);
	c = start(&w, folder);
	assert_true(rows_of(&w, "m", -1) >= 3);
	assert_true(rows_of(&w, "m", 0) >= 1);
	assert_true(rows_of(&w, "m", 1) >= 1);
	assert_int_equal(rows_of(&w, "m", 2), 0);
	dp_stop(&w);
}

/* the ledger goes on as if there were no file. */
static void a_damaged_file_is_moved_aside(void **unused)
{
	struct dp_world w;
	struct dp_client *c;
	char aside[112];
	uint32_t m;
	int fd;

	(void)unused;
	snprintf(aside, sizeof(aside), "%s.refused", path);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "SQLite format 3", 16), 16);
	close(fd);
	c = start(&w, folder);
	m = open_model(c, "m");
	for (uint32_t ms = 0; access(aside, F_OK); ms += 2) {
		assert_true(ms < DP_WAIT_MS);
		nap();
	}
	assert_int_equal(bits(&w, m), 2);
	report(c, m, 0, 20);
	wait_row(&w, "m");
	dp_stop(&w);
}

/* ---- administrators -------------------------------------------------------------------------- */

#define ROW                                                                                        \
	"{\"id\": \"00000000000000000000000000000001\", \"model\": \"x\", \"layer\": %s, "         \
	"\"context_tokens\": 64, \"layers\": 2, \"kv_heads\": 2, \"head_dim\": 64, \"bits\": %s, " \
	"\"quality_ratio\": 0.5, \"scores\": 20, \"origin\": \"measured\"}"

static int import(struct dp_world *w, const char *rows, json_t **ret)
{
	char request[2048];

	snprintf(request, sizeof(request),
		"{\"verb\": \"thresholds-import\", \"tenant\": \"one\", \"rows\": [%s], \"last\": "
		"true}",
		rows);
	return ask(w, request, ret);
}

static void imports_are_checked(void **unused)
{
	static const char *const wrong[][2] = { { "2", "4" }, { "256", "4" }, { "-1", "4" },
		{ "\"0\"", "4" }, { "0", "5" }, { "0", "4.0" }, { "0", "null" } };
	char rows[1024];
	json_t *answer;
	struct dp_world w;

	(void)unused;
	(void)start(&w, folder);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		int n = snprintf(rows, sizeof(rows), ROW ", ", "1", "4");

		snprintf(rows + n, sizeof(rows) - (size_t)n, ROW, wrong[i][0], wrong[i][1]);
		assert_int_equal(import(&w, rows, &answer), -EINVAL);
		json_decref(answer);
	}
	/* Only the file knows that these are the same. */
	snprintf(rows, sizeof(rows), ROW ", " ROW, "1", "4", "1", "3");
	assert_int_equal(import(&w, rows, &answer), -EEXIST);
	json_decref(answer);
	assert_int_equal(rows_of(&w, "x", 1), 0);
	snprintf(rows, sizeof(rows), ROW ", " ROW, "1", "4", "null", "3");
	assert_int_equal(import(&w, rows, &answer), 0);
	assert_int_equal(json_integer_value(json_object_get(answer, "imported")), 2);
	json_decref(answer);
	assert_int_equal(rows_of(&w, "x", 1), 1);
	assert_int_equal(rows_of(&w, "x", -1), 1);
	dp_stop(&w);
}

/* Whoever asks another question has the answer; what came before hears so. */
static void questions_do_not_mix(void **unused)
{
	static const char
		part[] = "{\"verb\": \"thresholds-import\", \"tenant\": \"one\", "
			 "\"rows\": []%s}",
		*const bad[] = {
			"{\"verb\": \"thresholds-import\", \"rows\": []}",
			"{\"verb\": \"thresholds-import\", \"tenant\": \"one\"}",
			"{\"verb\": \"thresholds-import\", \"tenant\": \"../one\", \"rows\": []}",
			"{\"verb\": \"thresholds-import\", \"tenant\": \"one\", \"rows\": 7}",
			"{\"verb\": \"thresholds-import\", \"tenant\": \"one\", \"rows\": [7]}",
			"{\"verb\": \"thresholds\", \"tenant\": \"/etc/x\"}",
		};
	char request[160], more[48];
	json_t *answer;
	struct dp_world w;
	json_int_t number;

	(void)unused;
	(void)start(&w, folder);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(dp_admin(&w, bad[i], NULL), -EINVAL);
	snprintf(request, sizeof(request), part, "");
	assert_int_equal(dp_admin(&w, request, &answer), 0);
	number = json_integer_value(json_object_get(answer, "asked"));
	json_decref(answer);
	/* Not yet its last part; nor is it a list. */
	snprintf(request, sizeof(request),
		"{\"verb\": \"thresholds-import\", \"tenant\": \"one\", \"asked\": %d}",
		(int)number);
	assert_int_equal(dp_admin(&w, request, NULL), -EINVAL);
	snprintf(
		request, sizeof(request), "{\"verb\": \"thresholds\", \"asked\": %d}", (int)number);
	assert_int_equal(dp_admin(&w, request, NULL), -ESTALE);
	/* Nor another tenant's. */
	snprintf(request, sizeof(request),
		"{\"verb\": \"thresholds-import\", \"tenant\": \"two\", \"rows\": [], \"asked\": "
		"%d}",
		(int)number);
	assert_int_equal(dp_admin(&w, request, NULL), -ESTALE);
	assert_int_equal(rows_of(&w, "x", 1), 0);
	snprintf(more, sizeof(more), ", \"asked\": %d", (int)number);
	snprintf(request, sizeof(request), part, more);
	assert_int_equal(dp_admin(&w, request, NULL), -ESTALE);
	dp_stop(&w);
}

/* However small the parts are: the ledger has to let go of all of them at once. */
static void an_import_has_not_too_many_parts(void **unused)
{
	char request[160];
	json_t *answer;
	struct dp_world w;
	int number = 0, r = 0;
	uint32_t parts = 0;

	(void)unused;
	(void)start(&w, folder);
	for (; r == 0 && parts < 2000; parts++) {
		snprintf(request, sizeof(request),
			"{\"verb\": \"thresholds-import\", \"tenant\": \"one\", "
			"\"rows\": [], \"asked\": %d}",
			number);
		r = dp_admin(&w, request, &answer);
		number = (int)json_integer_value(json_object_get(answer, "asked"));
		json_decref(answer);
	}
	assert_int_equal(r, -E2BIG);
	assert_int_equal(parts, 1025);
	dp_stop(&w);
}

/* A disk that hangs is waited for, and not for ever: neither while it runs nor when it ends. */
static void a_disk_that_hangs_holds_up_no_end(void **unused)
{
	static const char list[] = "{\"verb\": \"thresholds\", \"tenant\": \"one\"}";
	struct dp_world w;
	struct dp_client *c = start(&w, folder);
	uint32_t m = open_model(c, "m"), n;
	json_t *answer;

	(void)unused;
	report(c, m, 0, 20);
	wait_row(&w, "m");
	disk_hangs = 1;
	report(c, m, 0, 20);
	for (uint32_t ms = 0; disk_hangs == 1; ms += 2) {
		assert_true(ms < DP_WAIT_MS);
		nap();
	}
	/* Spaces are opened and learn, and administrators are answered. */
	n = open_model(c, "n");
	report(c, n, 0, 20);
	assert_int_equal(bits(&w, n), 3);
	assert_int_equal(dp_admin(&w, list, &answer), 0);
	json_decref(answer);
	assert_int_equal(dp_admin(&w, list, &answer), -EBUSY);
	json_decref(answer);
	w.ledger->store_ns = 20000000;
	dp_stop(&w);
	disk_hangs = 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(windows_go_on, begin, end),
		cmocka_unit_test_setup_teardown(without_a_folder_nothing_is_kept, begin, end),
		cmocka_unit_test_setup_teardown(tenants_learn_nothing_of_each_other, begin, end),
		cmocka_unit_test_setup_teardown(the_nearest_context_counts, begin, end),
		cmocka_unit_test_setup_teardown(a_damaged_file_is_moved_aside, begin, end),
		cmocka_unit_test_setup_teardown(imports_are_checked, begin, end),
		cmocka_unit_test_setup_teardown(questions_do_not_mix, begin, end),
		cmocka_unit_test_setup_teardown(an_import_has_not_too_many_parts, begin, end),
		cmocka_unit_test_setup_teardown(a_disk_that_hangs_holds_up_no_end, begin, end),
	};

	return coded_run("learnt", tests, sizeof(tests) / sizeof(tests[0]));
}
