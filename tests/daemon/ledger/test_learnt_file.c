/* SPDX-License-Identifier: Apache-2.0 */
/* Files of what was learnt of precision: what they keep, and what they make of what others left there. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/ledger/learnt_file.h"
#include "daemon/log.h"

static char folder[64];
static char path[128], aside[160];

/* In memory where that is possible: some thousand saves wait for the disk. */
static int begin(void **unused)
{
	(void)unused;
	kvpd_log_init(KVPD_LOG_ERR); /* what is refused is said in a warning */
	snprintf(folder, sizeof(folder), "/dev/shm/kvpool-learnt-XXXXXX");
	if (!mkdtemp(folder)) {
		snprintf(folder, sizeof(folder), "/tmp/kvpool-learnt-XXXXXX");
		if (!mkdtemp(folder))
			return -1;
	}
	snprintf(path, sizeof(path), "%s/one.db", folder);
	snprintf(aside, sizeof(aside), "%s.refused", path);
	return 0;
}

static int end(void **unused)
{
	char command[80];

	(void)unused;
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

static int forget(void **unused)
{
	(void)unused;
	unlink(path);
	unlink(aside);
	rmdir(aside);
	return 0;
}

static struct kvpd_learnt_file *open_one(void)
{
	struct kvpd_learnt_file *f = NULL;

	assert_int_equal(kvpd_learnt_open(folder, "one", true, &f), 0);
	return f;
}

/* Of a model that its first letter names: 8 layers, 2 heads of 64 channels. */
static struct kvpd_learnt row(char model, uint32_t layer, uint32_t context, uint32_t width)
{
	struct kvpd_learnt r = {
		.layer = layer,
		.context_tokens = context,
		.shape = { 8, 2, 64 },
		.width = width,
		.origin = KVP_ORIGIN_MEASURED,
		.quality = .75f,
		.scores = 20,
	};

	snprintf(r.id, sizeof(r.id), "%032x", (unsigned)model);
	snprintf(r.model, sizeof(r.model), "model %c", model);
	return r;
}

static void save(const struct kvpd_learnt *rows, size_t n)
{
	struct kvpd_learnt_file *f = open_one();

	assert_int_equal(kvpd_learnt_save(f, rows, n), 0);
	kvpd_learnt_close(f);
}

static int find(char model, uint32_t context, struct kvpd_learnt *ret)
{
	struct kvpd_learnt want = row(model, 0, context, KVP_WIDTH_2);
	struct kvpd_learnt_file *f = open_one();
	int r = kvpd_learnt_find(f, &want, true, ret);

	kvpd_learnt_close(f);
	return r;
}

static size_t rows_there(void)
{
	struct kvpd_learnt_file *f = open_one();
	struct kvpd_learnt *rows;
	size_t n = 0;

	assert_int_equal(kvpd_learnt_read(f, KVPD_LEARNT_ROWS, &rows, &n), 0);
	for (size_t i = 0; i < n; i++)
		assert_true(kvpd_learnt_good(&rows[i]));
	free(rows);
	kvpd_learnt_close(f);
	return n;
}

/* what was learnt of a model, its layers and its context lengths is there when the file is opened again. */
static void what_was_learnt_is_kept(void **unused)
{
	struct kvpd_learnt rows[3] = { row('a', KVPD_LEARNT_ALL, 4096, KVP_WIDTH_4),
		row('a', 0, 4096, KVP_WIDTH_4), row('a', 7, 4096, KVP_WIDTH_4) };
	struct kvpd_learnt *got, found;
	struct kvpd_learnt_file *f;
	struct stat st;
	size_t n = 0;

	(void)unused;
	assert_int_equal(kvpd_learnt_open(folder, "one", false, &f), -ENOENT);
	rows[2].quality = .5f;
	save(rows, 3);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);

	f = open_one();
	assert_int_equal(kvpd_learnt_read(f, 2, &got, &n), -E2BIG);
	assert_int_equal(kvpd_learnt_read(f, 3, &got, &n), 0);
	kvpd_learnt_close(f);
	assert_int_equal(n, 3);
	for (size_t i = 0; i < n; i++) {
		const struct kvpd_learnt *is =
			&rows[(i + 0) % 3]; /* the whole first, then layer 7 */

		is = i == 0 ? &rows[0] : i == 1 ? &rows[2] : &rows[1];
		assert_string_equal(got[i].id, is->id);
		assert_string_equal(got[i].model, is->model);
		assert_int_equal(got[i].layer, is->layer);
		assert_int_equal(got[i].context_tokens, is->context_tokens);
		assert_memory_equal(&got[i].shape, &is->shape, sizeof(is->shape));
		assert_int_equal(got[i].width, is->width);
		assert_true(got[i].quality == is->quality);
		assert_int_equal(got[i].scores, is->scores);
	}
	free(got);
	assert_int_equal(find('a', 4096, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_4);
	assert_int_equal(found.origin, KVP_ORIGIN_MEASURED);
	/* The same again takes the place of what was there. */
	rows[0].width = KVP_WIDTH_3;
	save(rows, 1);
	assert_int_equal(rows_there(), 3);
	assert_int_equal(find('a', 4096, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_3);
}

/* of a model's own context lengths the nearest; the newest where none is known yet. */
static void the_nearest_context_is_found(void **unused)
{
	struct kvpd_learnt r, found;

	(void)unused;
	assert_int_equal(find('a', 1024, &found), -ENOENT);
	r = row('a', KVPD_LEARNT_ALL, 0, KVP_WIDTH_3);
	save(&r, 1);
	assert_int_equal(find('a', 16, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_3); /* better than nothing */
	r = row('a', KVPD_LEARNT_ALL, 256, KVP_WIDTH_2);
	save(&r, 1);
	assert_int_equal(find('a', 16, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_2);
	r = row('a', KVPD_LEARNT_ALL, 65536, KVP_WIDTH_8);
	save(&r, 1);
	r = row('a', KVPD_LEARNT_ALL, 8192, KVP_WIDTH_4);
	save(&r, 1);
	assert_int_equal(find('a', 512, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_2);
	assert_int_equal(found.context_tokens, 256);
	assert_int_equal(find('a', 131072, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_8);
	assert_int_equal(find('a', 16384, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_4);
	assert_int_equal(find('a', 0, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_4);
	r = row('a', KVPD_LEARNT_ALL, 65536, KVP_WIDTH_8);
	save(&r, 1);
	assert_int_equal(find('a', 0, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_8);
}

/* of ten candidates, whatever their order, the nearest; of a model without any, none. */
static void the_nearest_of_ten_is_found(void **unused)
{
	static const uint32_t order[] = { 7, 2, 9, 0, 4, 1, 8, 3, 6, 5 };
	struct kvpd_learnt found = { 0 };

	(void)unused;
	for (uint32_t i = 0; i < 10; i++) {
		struct kvpd_learnt r =
			row('a', KVPD_LEARNT_ALL, 16u << order[i], order[i] % KVP_WIDTHS);

		save(&r, 1);
	}
	for (uint32_t i = 0; i < 13; i++) {
		assert_int_equal(find('a', 4u << i, &found), 0);
		assert_int_equal(found.context_tokens, i < 2 ? 16u : i > 11 ? 16u << 9 : 4u << i);
		assert_int_equal(found.width, (i < 2 ? 0 : i > 11 ? 9 : i - 2) % KVP_WIDTHS);
	}
	assert_int_equal(forget(NULL), 0);
	assert_int_equal(find('a', 16, &found), -ENOENT);
}

/* a model that nobody has run begins as its nearest neighbour, and is recorded as such. */
static void a_new_model_begins_as_its_neighbour(void **unused)
{
	struct kvpd_learnt near = row('n', KVPD_LEARNT_ALL, 1024, KVP_WIDTH_4),
			   far = row('f', KVPD_LEARNT_ALL, 1024, KVP_WIDTH_8), found,
			   want = row('w', 0, 0, KVP_WIDTH_3);
	struct kvpd_learnt_file *f;

	(void)unused;
	far.shape = (struct kvp_model_shape){ 80, 64, 256 };
	save(&far, 1);
	save(&near, 1);
	assert_int_equal(find('w', 0, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_4);
	assert_int_equal(found.origin, KVP_ORIGIN_INHERITED);
	assert_string_equal(found.model, "model w");
	assert_int_equal(rows_there(), 3);
	/* A guess breeds no guess: to an unlike model the measured one is the nearest, whatever was guessed since. */
	want.shape = far.shape;
	f = open_one();
	assert_int_equal(kvpd_learnt_find(f, &want, true, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_8);
	/* No fewer bits than the space may have. */
	want = row('v', 0, 0, KVP_WIDTH_8);
	assert_int_equal(kvpd_learnt_find(f, &want, true, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_8);
	kvpd_learnt_close(f);
	assert_int_equal(rows_there(), 4);
	/* What is measured ends the guess. */
	want = row('w', KVPD_LEARNT_ALL, 512, KVP_WIDTH_2);
	save(&want, 1);
	assert_int_equal(rows_there(), 4);
	assert_int_equal(find('w', 0, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_2);
	assert_int_equal(found.origin, KVP_ORIGIN_MEASURED);
}

static void tenants_learn_nothing_of_each_other(void **unused)
{
	struct kvpd_learnt r = row('a', KVPD_LEARNT_ALL, 256, KVP_WIDTH_8);
	static const char *const bad[] = { "", ".one", "-one", "a/b", "../one", "a b", "\xc3\xa4" };
	struct kvpd_learnt_file *f;

	(void)unused;
	save(&r, 1);
	assert_int_equal(kvpd_learnt_open(folder, "two", true, &f), 0);
	assert_int_equal(kvpd_learnt_find(f, &r, true, &r), -ENOENT);
	kvpd_learnt_close(f);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(kvpd_learnt_open(folder, bad[i], true, &f), -EINVAL);
}

/* ---- bounds ---------------------------------------------------------------------------------- */

static void rows_out_of_bounds_are_refused(void **unused)
{
	struct kvpd_learnt good = row('a', 7, 256, KVP_WIDTH_2), bad[12];
	struct kvpd_learnt_file *f = open_one();

	(void)unused;
	for (size_t i = 0; i < 12; i++)
		bad[i] = good;
	bad[0].id[0] = 'G';
	bad[1].id[31] = 0;
	bad[2].model[0] = 0;
	memset(bad[3].model, 'x', sizeof(bad[3].model));
	bad[4].layer = 8;
	bad[5].context_tokens = 255;
	bad[6].shape.layers = KVP_MAX_LAYERS + 1;
	bad[7].shape.kv_heads = 0;
	bad[8].width = KVP_WIDTHS;
	bad[9].origin = KVP_ORIGIN_DEFAULT;
	bad[10].quality = 1.5f;
	bad[11].scores = UINT64_MAX;
	assert_true(kvpd_learnt_good(&good));
	for (size_t i = 0; i < 12; i++) {
		struct kvpd_learnt both[2] = { good, bad[i] };

		assert_int_equal(kvpd_learnt_save(f, both, 2), -EINVAL);
		assert_int_equal(kvpd_learnt_import(f, both, 2), -EINVAL);
	}
	kvpd_learnt_close(f);
	assert_int_equal(rows_there(), 0);
	assert_int_equal(kvpd_learnt_context(0), 0);
	assert_int_equal(kvpd_learnt_context(1), 1);
	assert_int_equal(kvpd_learnt_context(4097), 8192);
	assert_int_equal(kvpd_learnt_context(UINT32_MAX), 1u << 28);
}

/* As many rows as there may be, of 64 models in 256 layers. */
static struct kvpd_learnt *many(uint32_t from)
{
	struct kvpd_learnt *rows = calloc(KVPD_LEARNT_ROWS, sizeof(*rows));

	assert_non_null(rows);
	for (uint32_t i = 0; i < KVPD_LEARNT_ROWS; i++) {
		rows[i] = row('a', i % 256, 256, KVP_WIDTH_4);
		rows[i].shape.layers = 256;
		snprintf(rows[i].id, sizeof(rows[i].id), "%032x", from + i / 256);
	}
	return rows;
}

static void a_full_file_forgets_what_is_oldest(void **unused)
{
	struct kvpd_learnt *rows = many(1000), *more = many(2000), found;
	struct kvpd_learnt_file *f = open_one();

	(void)unused;
	for (uint32_t i = 0; i < 64; i++)
		assert_int_equal(kvpd_learnt_save(f, rows + i * 256, 256), 0);
	kvpd_learnt_close(f);
	assert_int_equal(rows_there(), KVPD_LEARNT_ROWS);
	f = open_one();
	assert_int_equal(kvpd_learnt_import(f, more, 1), -ENOSPC);
	assert_int_equal(kvpd_learnt_import(f, rows, KVPD_LEARNT_ROWS), 0); /* in place */
	kvpd_learnt_close(f);
	assert_int_equal(rows_there(), KVPD_LEARNT_ROWS);
	/* What was imported is of one age; of that, too, no more goes than has to. */
	more[0].layer = KVPD_LEARNT_ALL;
	save(more, 1);
	assert_int_equal(rows_there(), KVPD_LEARNT_ROWS);
	snprintf(found.id, sizeof(found.id), "%s", more[0].id);
	f = open_one();
	assert_int_equal(kvpd_learnt_find(f, &more[0], true, &found), 0);
	kvpd_learnt_close(f);
	free(rows);
	free(more);
}

/* Who opens spaces of ever new models has guesses made, and nothing that was measured forgotten for them. */
static void guesses_go_first(void **unused)
{
	struct kvpd_learnt *rows = many(1000), found, *got;
	struct kvpd_learnt_file *f = open_one();
	size_t n = 0, measured = 0;

	(void)unused;
	rows[0].layer = KVPD_LEARNT_ALL;
	for (uint32_t i = 0; i < 64; i++)
		assert_int_equal(kvpd_learnt_save(f, rows + i * 256, i < 63 ? 256 : 254), 0);
	kvpd_learnt_close(f);
	for (char model = 'p'; model < 'z'; model++) {
		assert_int_equal(find(model, 256, &found), 0);
		assert_int_equal(found.origin, KVP_ORIGIN_INHERITED);
	}
	f = open_one();
	assert_int_equal(kvpd_learnt_read(f, KVPD_LEARNT_ROWS, &got, &n), 0);
	kvpd_learnt_close(f);
	assert_int_equal(n, KVPD_LEARNT_ROWS);
	for (size_t i = 0; i < n; i++)
		measured += got[i].origin == KVP_ORIGIN_MEASURED;
	assert_int_equal(measured, KVPD_LEARNT_ROWS - 2);
	free(got);
	free(rows);
}

static void an_import_is_all_or_nothing(void **unused)
{
	struct kvpd_learnt r = row('a', KVPD_LEARNT_ALL, 256, KVP_WIDTH_8),
			   in[3] = { row('a', KVPD_LEARNT_ALL, 256, KVP_WIDTH_2),
				   row('b', 1, 0, KVP_WIDTH_2), row('b', 1, 0, KVP_WIDTH_4) },
			   found;
	struct kvpd_learnt_file *f;

	(void)unused;
	save(&r, 1);
	f = open_one();
	assert_int_equal(kvpd_learnt_import(f, in, 3), -EEXIST);
	kvpd_learnt_close(f);
	assert_int_equal(rows_there(), 1);
	assert_int_equal(find('a', 256, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_8);
	f = open_one();
	assert_int_equal(kvpd_learnt_import(f, in, 2), 0);
	kvpd_learnt_close(f);
	assert_int_equal(rows_there(), 2);
	assert_int_equal(find('a', 256, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_2);
}

/* ---- what others left there ------------------------------------------------------------------ */

static uint8_t *slurp(size_t *ret_n)
{
	int fd = open(path, O_RDONLY);
	uint8_t *data;
	struct stat st;

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	data = malloc((size_t)st.st_size);
	assert_non_null(data);
	assert_int_equal(read(fd, data, (size_t)st.st_size), st.st_size);
	close(fd);
	*ret_n = (size_t)st.st_size;
	return data;
}

static void leave(const void *data, size_t n)
{
	int fd;

	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, n), n);
	close(fd);
}

static void leave_sql(const char *sql)
{
	sqlite3 *db;

	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
		fail_msg("%s: %s", sql, sqlite3_errmsg(db));
	sqlite3_close(db);
	assert_int_equal(chmod(path, 0600), 0);
}

/* It is moved aside, and what comes instead works. */
static void assert_refused(const char *what)
{
	struct kvpd_learnt r = row('z', KVPD_LEARNT_ALL, 256, KVP_WIDTH_8), found;
	struct stat st;

	assert_int_not_equal(lstat(aside, &st), 0);
	if (rows_there())
		fail_msg("%s: believed", what);
	if (lstat(aside, &st) < 0)
		fail_msg("%s: not moved aside", what);
	save(&r, 1);
	assert_int_equal(find('z', 256, &found), 0);
	forget(NULL);
}

/* a damaged file is refused. */
static void what_is_no_file_of_ours_is_refused(void **unused)
{
	struct kvpd_learnt r = row('a', KVPD_LEARNT_ALL, 256, KVP_WIDTH_8);
	static const char text[] =
		"thresholds: none, but many letters, so that it is no empty file";
	static const char *const additions[] = {
		"CREATE TABLE more(x)",
		"CREATE TRIGGER t AFTER INSERT ON learnt BEGIN DELETE FROM learnt; END",
		"CREATE VIEW v AS SELECT * FROM learnt",
		"CREATE INDEX i ON learnt(serial)",
		"PRAGMA application_id = 7",
		"PRAGMA user_version = 2",
	};
	char big[160];

	(void)unused;
	leave(text, sizeof(text));
	assert_refused("text");
	leave_sql("CREATE TABLE learnt(id, layer, context)");
	assert_refused("another table");
	for (size_t i = 0; i < sizeof(additions) / sizeof(additions[0]); i++) {
		save(&r, 1);
		leave_sql(additions[i]);
		assert_refused(additions[i]);
	}
	assert_int_equal(symlink("/etc/hostname", path), 0);
	assert_refused("a link");
	assert_int_equal(mkdir(path, 0700), 0);
	assert_refused("a folder");
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_refused("a pipe");
	save(&r, 1);
	assert_int_equal(chmod(path, 0620), 0);
	assert_refused("others may write it");
	save(&r, 1);
	snprintf(big, sizeof(big), "%s.2", path);
	assert_int_equal(link(path, big), 0);
	assert_refused("it has another name");
	unlink(big);
	save(&r, 1);
	assert_int_equal(truncate(path, (off_t)KVPD_LEARNT_BYTES + 4096), 0);
	assert_refused("too large");
	/* What others may only read is made ours. */
	save(&r, 1);
	assert_int_equal(chmod(path, 0644), 0);
	assert_int_equal(rows_there(), 1);
}

/* What an administrator puts there while the file is open has done nothing wrong. */
static void a_file_that_comes_instead_is_left_alone(void **unused)
{
	struct kvpd_learnt r = row('a', KVPD_LEARNT_ALL, 256, KVP_WIDTH_8), found;
	struct kvpd_learnt_file *f;
	char other[160];

	(void)unused;
	save(&r, 1);
	snprintf(other, sizeof(other), "%s.2", path);
	assert_int_equal(rename(path, other), 0);
	r.width = KVP_WIDTH_2;
	save(&r, 1);
	f = open_one();
	assert_int_equal(rename(other, path), 0);
	r.width = KVP_WIDTH_4;
	assert_int_equal(kvpd_learnt_save(f, &r, 1), -EACCES);
	kvpd_learnt_close(f);
	assert_int_not_equal(access(aside, F_OK), 0);
	assert_int_equal(find('a', 256, &found), 0);
	assert_int_equal(found.width, KVP_WIDTH_8);
}

/* Rows that a sound file has and kvpoold never writes. */
static void rows_that_are_not_ours_are_refused(void **unused)
{
	struct kvpd_learnt r = row('a', KVPD_LEARNT_ALL, 256, KVP_WIDTH_8);
	static const char *const changes[] = {
		"UPDATE learnt SET bits = 5",
		"UPDATE learnt SET bits = 4294967300",
		"UPDATE learnt SET quality = 9e999",
		"UPDATE learnt SET layers = 0",
		"UPDATE learnt SET model = ''",
		"UPDATE learnt SET model = printf('%1000s', 'x')",
		"UPDATE learnt SET id = 'one'",
		"UPDATE learnt SET context = 3",
		"UPDATE learnt SET scores = -1",
		"UPDATE learnt SET origin = 2",
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		struct kvpd_learnt_file *f;
		struct kvpd_learnt *rows;
		struct stat st;
		size_t n;

		save(&r, 1);
		leave_sql(changes[i]);
		f = open_one();
		assert_int_equal(kvpd_learnt_read(f, KVPD_LEARNT_ROWS, &rows, &n), -EBADMSG);
		kvpd_learnt_close(f);
		assert_int_equal(lstat(aside, &st), 0);
		assert_int_equal(rows_there(), 0);
		forget(NULL);
	}
	save(&r, 1);
	leave_sql("UPDATE learnt SET serial = 9223372036854775807");
	{
		struct kvpd_learnt_file *f = open_one();

		assert_int_equal(kvpd_learnt_save(f, &r, 1), -EBADMSG);
		kvpd_learnt_close(f);
	}
	save(&r, 1);
}

/* Reads and writes; what finds the damage says so, and what comes after it works. */
static void use_damaged(const struct kvpd_learnt *rows)
{
	struct kvpd_learnt_file *f = open_one();
	struct kvpd_learnt *got = NULL;
	size_t n = 0;
	int r = kvpd_learnt_read(f, KVPD_LEARNT_ROWS, &got, &n);

	assert_true(r == 0 || r == -EBADMSG);
	for (size_t i = 0; i < n; i++)
		assert_true(kvpd_learnt_good(&got[i]));
	free(got);
	kvpd_learnt_close(f);
	f = open_one();
	r = kvpd_learnt_save(f, rows, 1);
	assert_true(r == 0 || r == -EBADMSG);
	kvpd_learnt_close(f);
	save(rows, 1);
}

/* Whatever is wrong with it, it ends in what is good, or in nothing; A-063. */
static void damaged_files_do_no_harm(void **unused)
{
	struct kvpd_learnt rows[40];
	uint32_t refused = 0;
	uint8_t *data;
	size_t n;

	(void)unused;
	for (uint32_t i = 0; i < 40; i++)
		rows[i] = row((char)('a' + i % 8), i / 8, 256, KVP_WIDTH_4);
	save(rows, 40);
	data = slurp(&n);
	assert_true(n >= 8192);
	for (size_t at = 1; at < n; at += at < 128 ? 1 : 211) {
		data[at] ^= 0xff;
		leave(data, n);
		data[at] ^= 0xff;
		use_damaged(rows);
		refused += access(aside, F_OK) == 0;
		forget(NULL);
	}
	assert_true(refused > 20);
	refused = 0;
	for (size_t bytes = 1; bytes < n; bytes += bytes < 128 ? 9 : 509) {
		leave(data, bytes);
		assert_int_equal(rows_there(), 0);
		refused += access(aside, F_OK) == 0;
		forget(NULL);
	}
	assert_true(refused > 20);
	leave("", 0); /* as if the machine had stopped when it was made */
	assert_int_equal(rows_there(), 0);
	assert_int_not_equal(access(aside, F_OK), 0);
	free(data);
}

static uid_t owner_of(const char *at)
{
	struct stat st;

	assert_int_equal(stat(at, &st), 0);
	return st.st_uid;
}

/* Root's is given to whom it is for; but no folder that has another use, as that of a slip in the configuration has. */
static void only_a_folder_for_it_is_given(void **unused)
{
	char why[KVPD_LEARNT_WHY], at[80], inside[96], *real = NULL;

	(void)unused;
	if (geteuid() != 0)
		skip();
	snprintf(at, sizeof(at), "%s/given", folder);
	snprintf(inside, sizeof(inside), "%s/something", at);
	assert_int_equal(mkdir(at, 0700), 0);
	assert_int_equal(mkdir(inside, 0700), 0);
	assert_int_equal(kvpd_learnt_folder(at, 8, why, &real), -EINVAL);
	assert_non_null(strstr(why, "chown"));
	assert_int_equal(owner_of(at), 0);
	assert_int_equal(rmdir(inside), 0);
	/* As /tmp is: it stays root's. */
	assert_int_equal(chmod(at, 01777), 0);
	assert_int_equal(kvpd_learnt_folder(at, 8, why, &real), -EINVAL);
	assert_int_equal(owner_of(at), 0);
	assert_int_equal(chmod(at, 0700), 0);
	assert_int_equal(kvpd_learnt_folder(at, 8, why, &real), 0);
	free(real);
	assert_int_equal(owner_of(at), 8);
	/* What it has by then is its own. */
	assert_int_equal(mkdir(inside, 0700), 0);
	assert_int_equal(kvpd_learnt_folder(at, 8, why, &real), 0);
	free(real);
}

static void a_folder_of_others_is_refused(void **unused)
{
	char why[KVPD_LEARNT_WHY], at[80], *real = NULL;

	(void)unused;
	snprintf(at, sizeof(at), "%s/state", folder);
	assert_int_equal(kvpd_learnt_folder(at, geteuid(), why, &real), 0);
	assert_non_null(strstr(real, "/state"));
	free(real);
	assert_int_equal(chmod(at, 0777), 0);
	assert_int_equal(kvpd_learnt_folder(at, geteuid(), why, &real), -EINVAL);
	assert_non_null(strstr(why, "others"));
	assert_int_equal(chmod(at, 0700), 0);
	if (geteuid() == 0) {
		assert_int_equal(chown(at, 7, 7), 0);
		assert_int_equal(kvpd_learnt_folder(at, 8, why, &real), -EINVAL);
		/* Root's is given to whom it is for. */
		assert_int_equal(chown(at, 0, 0), 0);
		assert_int_equal(kvpd_learnt_folder(at, 8, why, &real), 0);
		free(real);
		assert_int_equal(kvpd_learnt_folder(at, 8, why, &real), 0);
		free(real);
	}
	assert_int_equal(kvpd_learnt_folder("/proc/no/such", geteuid(), why, &real), -ENOENT);
}

/* ---- others at the same time ----------------------------------------------------------------- */

static void who_holds_the_file_is_not_waited_for_long(void **unused)
{
	struct kvpd_learnt r = row('a', KVPD_LEARNT_ALL, 256, KVP_WIDTH_8);
	struct kvpd_learnt_file *f;
	sqlite3 *db;

	(void)unused;
	save(&r, 1);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
	assert_int_equal(kvpd_learnt_open(folder, "one", true, &f), -EBUSY);
	assert_int_equal(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
	assert_int_equal(rows_there(), 1);
}

/* Saves all rows anew with another quality, again and again. */
static void write_for_ever(int told)
{
	struct kvpd_learnt rows[64];

	for (uint32_t round = 0;; round++) {
		struct kvpd_learnt_file *f;

		for (uint32_t i = 0; i < 64; i++) {
			rows[i] = row('a', i, 256, KVP_WIDTH_4);
			rows[i].shape.layers = 64;
			rows[i].quality = (float)(round % 1000) / 1000;
		}
		if (kvpd_learnt_open(folder, "one", true, &f) < 0 ||
			kvpd_learnt_save(f, rows, 64) < 0 || write(told, "", 1) != 1)
			_exit(1);
		kvpd_learnt_close(f);
	}
}

/* SIGKILL at any moment leaves what some save had written, whole. */
static void a_killed_writer_leaves_what_was_whole(void **unused)
{
	(void)unused;
	for (uint32_t round = 0; round < 8; round++) {
		struct kvpd_learnt_file *f;
		struct kvpd_learnt *rows;
		int status, p[2];
		size_t n = 0;
		pid_t pid;
		char c;

		assert_int_equal(pipe(p), 0);
		pid = fork();
		assert_true(pid >= 0);
		if (!pid)
			write_for_ever(p[1]);
		close(p[1]);
		assert_int_equal(read(p[0], &c, 1), 1);
		usleep(1000 * round);
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status));
		close(p[0]);
		f = open_one();
		assert_int_equal(kvpd_learnt_read(f, KVPD_LEARNT_ROWS, &rows, &n), 0);
		kvpd_learnt_close(f);
		assert_int_equal(n, 64);
		for (size_t i = 1; i < n; i++)
			assert_true(rows[i].quality == rows[0].quality);
		free(rows);
		assert_int_not_equal(access(aside, F_OK), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(what_was_learnt_is_kept, forget),
		cmocka_unit_test_teardown(the_nearest_context_is_found, forget),
		cmocka_unit_test_teardown(the_nearest_of_ten_is_found, forget),
		cmocka_unit_test_teardown(a_new_model_begins_as_its_neighbour, forget),
		cmocka_unit_test_teardown(tenants_learn_nothing_of_each_other, forget),
		cmocka_unit_test_teardown(rows_out_of_bounds_are_refused, forget),
		cmocka_unit_test_teardown(a_full_file_forgets_what_is_oldest, forget),
		cmocka_unit_test_teardown(guesses_go_first, forget),
		cmocka_unit_test_teardown(an_import_is_all_or_nothing, forget),
		cmocka_unit_test_teardown(what_is_no_file_of_ours_is_refused, forget),
		cmocka_unit_test_teardown(a_file_that_comes_instead_is_left_alone, forget),
		cmocka_unit_test_teardown(rows_that_are_not_ours_are_refused, forget),
		cmocka_unit_test_teardown(damaged_files_do_no_harm, forget),
		cmocka_unit_test_teardown(only_a_folder_for_it_is_given, forget),
		cmocka_unit_test_teardown(a_folder_of_others_is_refused, forget),
		cmocka_unit_test_teardown(who_holds_the_file_is_not_waited_for_long, forget),
		cmocka_unit_test_teardown(a_killed_writer_leaves_what_was_whole, forget),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
