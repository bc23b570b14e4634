/* SPDX-License-Identifier: Apache-2.0 */
/* A tenant's file of what was learnt: who may have written it, what is in it, and SQL. */
#include "daemon/ledger/learnt_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/log.h"
#include "policy/kvp_zones.h"
#include "shm/kvp_seg.h"

#define PAGE_BYTES  4096u
#define HEAP_BYTES  (16 << 20) /* of SQLite, at most: this thread's jobs are one at a time */
#define PATIENCE_MS 200        /* for whoever else has the file open */
#define APP_ID      0x6b767074 /* in the file's header: "kvpt" */
#define VERSION     1
#define SERIAL_MAX  (INT64_MAX / 2)

/* The key is a model's, a layer's and a context's; `serial` says which of two rows is newer. */
static const char schema[] =
	"CREATE TABLE learnt(id TEXT NOT NULL, layer INTEGER NOT NULL, context INTEGER NOT NULL, "
	"model TEXT NOT NULL, layers INTEGER NOT NULL, kv_heads INTEGER NOT NULL, "
	"head_dim INTEGER NOT NULL, bits INTEGER NOT NULL, origin INTEGER NOT NULL, "
	"quality REAL NOT NULL, scores INTEGER NOT NULL, serial INTEGER NOT NULL, "
	"PRIMARY KEY(id, layer, context)) STRICT, WITHOUT ROWID";

#define COLUMNS \
	"id, layer, context, model, layers, kv_heads, head_dim, bits, origin, quality, scores"

struct kvpd_learnt_file {
	sqlite3 *db;
	char tenant[KVPD_LEARNT_NAME];
	char path[PATH_MAX];
};

/* ---- bounds ---------------------------------------------------------------------------------- */

bool kvpd_learnt_name_good(const char *tenant)
{
	size_t n = strlen(tenant);

	return n && n < KVPD_LEARNT_NAME && tenant[0] != '.' && tenant[0] != '-' &&
	       strspn(tenant,
		       "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

uint32_t kvpd_learnt_context(uint32_t tokens)
{
	uint32_t class = tokens ? 1 : 0;

	while (class < tokens && class < KVP_ZONE_TOKENS_MAX)
		class *= 2;
	return class < KVP_ZONE_TOKENS_MAX ? class : KVP_ZONE_TOKENS_MAX;
}

bool kvpd_learnt_good(const struct kvpd_learnt *r)
{
	size_t digits = strspn(r->id, "0123456789abcdef");

	return digits == KVPD_LEARNT_ID - 1 && !r->id[digits] && r->model[0] &&
	       strnlen(r->model, sizeof(r->model)) < sizeof(r->model) && r->shape.layers &&
	       r->shape.layers <= KVP_MAX_LAYERS && r->shape.kv_heads &&
	       r->shape.kv_heads <= 65536 && r->shape.head_dim && r->shape.head_dim <= 65536 &&
	       (r->layer < r->shape.layers || r->layer == KVPD_LEARNT_ALL) &&
	       r->context_tokens == kvpd_learnt_context(r->context_tokens) &&
	       r->width < KVP_WIDTHS && r->origin <= KVP_ORIGIN_INHERITED && r->quality >= 0 &&
	       r->quality <= 1 && r->scores <= INT64_MAX;
}

/* ---- the folder ------------------------------------------------------------------------------ */

static int refuse_folder(char *why, const char *path, const char *what, int error)
{
	snprintf(why, KVPD_LEARNT_WHY, "%.96s %s", path, what);
	return error;
}

static bool is_empty(int folder)
{
	int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	bool empty = dir != NULL;
	struct dirent *e;

	if (!dir && fd >= 0)
		close(fd);
	while (empty && (e = readdir(dir)))
		empty = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
	if (dir)
		closedir(dir);
	return empty;
}

/* NULL: it is the owner's by now, and nobody else may write there. */
static const char *judge_folder(int fd, struct stat *st, uid_t owner)
{
	if (st->st_mode & (S_IWGRP | S_IWOTH))
		return "may be written by others; chmod 700";
	if (st->st_uid == owner)
		return NULL;
	if (st->st_uid || geteuid())
		return "is not the user's that kvpoold runs as";
	/* A slip in the configuration must not give away what is there for something else. */
	if (!is_empty(fd))
		return "is root's and has something in it; chown it to the user that kvpoold runs "
		       "as";
	return fchown(fd, owner, (gid_t)-1) == 0 ? NULL : "cannot be given to kvpoold's user";
}

int kvpd_learnt_folder(const char *path, uid_t owner, char *why, char **ret_folder)
{
	const char *wrong;
	struct stat st;
	char *real;

	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return refuse_folder(why, path, strerror(errno), -errno);
	real = realpath(path, NULL);
	kvp_autoclose int fd =
		real ? open(real, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
	if (fd < 0 || fstat(fd, &st) < 0) {
		int r = -errno;

		free(real);
		return refuse_folder(why, path, strerror(-r), r);
	}
	wrong = judge_folder(fd, &st, owner);
	if (wrong) {
		free(real);
		return refuse_folder(why, path, wrong, -EINVAL);
	}
	*ret_folder = real;
	return 0;
}

/* ---- a file that may be another one's -------------------------------------------------------- */

static struct kvpd_ratelimit limit = KVPD_RATELIMIT(10, 5);

static int failed(const struct kvpd_learnt_file *f, const char *what, int error)
{
	kvpd_log_limited(&limit, KVPD_LOG_WARNING, NULL,
		"what was learnt of precision for tenant %s: %s: %s", f->tenant, f->path, what);
	return error;
}

/* Without its journal, which would be taken for that of the file that comes instead. */
static int move_aside(const struct kvpd_learnt_file *f, const char *what)
{
	static const char *const journals[] = { "-journal", "-wal", "-shm" };
	char to[PATH_MAX + 16];

	for (size_t i = 0; i < sizeof(journals) / sizeof(journals[0]); i++) {
		snprintf(to, sizeof(to), "%s%s", f->path, journals[i]);
		if (unlink(to) < 0 && errno != ENOENT)
			return failed(f, "its journal cannot be removed", -EACCES);
	}
	snprintf(to, sizeof(to), "%s.refused", f->path);
	if (rename(f->path, to) < 0 && errno != ENOENT)
		return failed(f, "it is not good, and cannot be moved aside", -EACCES);
	kvpd_log_limited(&limit, KVPD_LOG_WARNING, NULL,
		"what was learnt of precision for tenant %s is forgotten: %s %s; it is %s now",
		f->tenant, f->path, what, to);
	return -EBADMSG;
}

/* NULL: this user's own, and nobody else's. */
static const char *look_at(int fd)
{
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return "cannot be opened as a file";
	if (!S_ISREG(st.st_mode))
		return "is no file";
	if (st.st_uid != geteuid() || st.st_nlink != 1 || st.st_mode & (S_IWGRP | S_IWOTH))
		return "may be written by others";
	if ((uint64_t)st.st_size > KVPD_LEARNT_BYTES)
		return "is larger than kvpoold writes it";
	if (st.st_mode & 077 && fchmod(fd, 0600) < 0)
		return "may be read by others";
	return NULL;
}

/* There is a file that SQLite may open; or -ENOENT. */
static int find_file(struct kvpd_learnt_file *f, bool make)
{
	int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
	const char *wrong;
	kvp_autoclose int fd = open(f->path, flags);

	if (fd < 0 && errno == ENOENT && !make)
		return -ENOENT;
	if (fd < 0 && errno == ENOENT)
		fd = open(f->path, flags | O_CREAT | O_EXCL, 0600);
	/* What these say lies in the file; all else in the machine. */
	if (fd < 0 && errno != ELOOP && errno != EISDIR && errno != EACCES && errno != ENXIO)
		return failed(f, strerror(errno), -errno);
	wrong = look_at(fd);
	return wrong ? move_aside(f, wrong) : 0;
}

/* ---- SQL ------------------------------------------------------------------------------------- */

/* Of a result code; 0 for those that are none. */
static int judge(struct kvpd_learnt_file *f, int code)
{
	/* The folder may be full or read-only; a file that could be opened is so by what its header says. */
	if (code == SQLITE_READONLY)
		return move_aside(f, "says that it may not be written");
	switch (code & 0xff) {
	case SQLITE_OK:
	case SQLITE_ROW:
	case SQLITE_DONE:
		return 0;
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB:
	case SQLITE_FORMAT:
	case SQLITE_SCHEMA:
	case SQLITE_MISMATCH:
	case SQLITE_CONSTRAINT:
	case SQLITE_ERROR: /* our statements do not fit its schema */
		return move_aside(f, sqlite3_errstr(code));
	case SQLITE_NOMEM:
		return failed(f, sqlite3_errstr(code), -ENOMEM);
	case SQLITE_FULL:
	case SQLITE_TOOBIG:
		return failed(f, sqlite3_errstr(code), -ENOSPC);
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
		return failed(f, sqlite3_errstr(code), -EBUSY);
	case SQLITE_PERM:
	case SQLITE_READONLY:
	case SQLITE_CANTOPEN:
	case SQLITE_AUTH:
		return failed(f, sqlite3_errstr(code), -EACCES);
	default:
		return failed(f, sqlite3_errstr(code), -EIO);
	}
}

static int run(struct kvpd_learnt_file *f, const char *sql)
{
	return judge(f, sqlite3_exec(f->db, sql, NULL, NULL, NULL));
}

static int prepare(struct kvpd_learnt_file *f, const char *sql, sqlite3_stmt **ret_stmt)
{
	return judge(f, sqlite3_prepare_v2(f->db, sql, -1, ret_stmt, NULL));
}

/* The first column of the only row, compared as text. */
static int expect(struct kvpd_learnt_file *f, const char *sql, const char *text)
{
	sqlite3_stmt *s = NULL;
	const char *is = NULL;
	bool same;
	int r = prepare(f, sql, &s), code;

	if (r < 0)
		return r;
	code = sqlite3_step(s);
	if (code == SQLITE_ROW)
		is = (const char *)sqlite3_column_text(s, 0);
	same = is && !strcmp(is, text);
	if (same)
		code = sqlite3_step(s);
	sqlite3_finalize(s);
	r = judge(f, code);
	if (r == 0 && (!same || code != SQLITE_DONE))
		r = move_aside(f, "is not what kvpoold writes, or damaged");
	return r;
}

static int make_table(struct kvpd_learnt_file *f)
{
	char sql[sizeof(schema) + 128];

	snprintf(sql, sizeof(sql),
		"BEGIN IMMEDIATE; %s; PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT",
		schema, APP_ID, VERSION);
	return run(f, sql);
}

/* Nothing that is in the file is carried out. */
static int be_careful(struct kvpd_learnt_file *f)
{
	static const int off[] = { SQLITE_DBCONFIG_ENABLE_TRIGGER, SQLITE_DBCONFIG_ENABLE_VIEW,
		SQLITE_DBCONFIG_TRUSTED_SCHEMA };
	char sql[256];
	int code = sqlite3_db_config(f->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);

	for (size_t i = 0; code == SQLITE_OK && i < sizeof(off) / sizeof(off[0]); i++)
		code = sqlite3_db_config(f->db, off[i], 0, NULL);
	if (code != SQLITE_OK)
		return judge(f, code);
	sqlite3_limit(f->db, SQLITE_LIMIT_LENGTH, 1 << 20);
	sqlite3_limit(f->db, SQLITE_LIMIT_ATTACHED, 0);
	sqlite3_busy_timeout(f->db, PATIENCE_MS);
	snprintf(sql, sizeof(sql),
		"PRAGMA cell_size_check=1; PRAGMA mmap_size=0; PRAGMA journal_mode=DELETE; "
		"PRAGMA synchronous=EXTRA; PRAGMA temp_store=MEMORY; PRAGMA cache_size=-1024; "
		"PRAGMA max_page_count=%u",
		(unsigned)(KVPD_LEARNT_BYTES / PAGE_BYTES));
	return run(f, sql);
}

static int has_tables(struct kvpd_learnt_file *f, bool *ret_has)
{
	sqlite3_stmt *s = NULL;
	int r = prepare(f, "SELECT 1 FROM sqlite_schema LIMIT 1", &s), code;

	if (r < 0)
		return r;
	code = sqlite3_step(s);
	sqlite3_finalize(s);
	*ret_has = code == SQLITE_ROW;
	return judge(f, code);
}

static int check_file(struct kvpd_learnt_file *f)
{
	char number[16];
	bool has = false;
	int r = be_careful(f);

	if (r == 0)
		r = has_tables(f, &has);
	if (r == 0 && !has)
		r = make_table(f);
	snprintf(number, sizeof(number), "%d", APP_ID);
	if (r == 0)
		r = expect(f, "PRAGMA application_id", number);
	snprintf(number, sizeof(number), "%d", VERSION);
	if (r == 0)
		r = expect(f, "PRAGMA user_version", number);
	if (r == 0)
		r = expect(f, "SELECT sql FROM sqlite_schema", schema);
	return r == 0 ? expect(f, "PRAGMA quick_check(1)", "ok") : r;
}

struct kvpd_learnt_file *kvpd_learnt_close(struct kvpd_learnt_file *f)
{
	if (f) {
		sqlite3_close(f->db);
		free(f);
	}
	return NULL;
}

static int open_file(struct kvpd_learnt_file *f, bool make)
{
	int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX |
		    SQLITE_OPEN_PRIVATECACHE;
	int r = find_file(f, make);

	sqlite3_hard_heap_limit64(HEAP_BYTES);
	if (r == 0)
		r = judge(f, sqlite3_open_v2(f->path, &f->db, flags, "unix"));
	/* What makes it impossible to write may be the file's own fault, or not: judge(). */
	if (r == 0)
		r = judge(f, sqlite3_extended_result_codes(f->db, 1));
	if (r == 0)
		r = check_file(f);
	if (r < 0) {
		sqlite3_close(f->db);
		f->db = NULL;
	}
	return r;
}

int kvpd_learnt_open(
	const char *folder, const char *tenant, bool make, struct kvpd_learnt_file **ret_file)
{
	struct kvpd_learnt_file *f;
	int r;

	if (!kvpd_learnt_name_good(tenant))
		return -EINVAL;
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	snprintf(f->tenant, sizeof(f->tenant), "%s", tenant);
	r = snprintf(f->path, sizeof(f->path), "%s/%s.db", folder, tenant) < (int)sizeof(f->path)
		    ? 0
		    : -EINVAL;
	if (r == 0)
		r = open_file(f, make);
	/* What was there has been moved aside: once more, without it. */
	if (r == -EBADMSG)
		r = open_file(f, make);
	if (r < 0) {
		kvpd_learnt_close(f);
		return r;
	}
	*ret_file = f;
	return 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

static int bind_row(sqlite3_stmt *s, const struct kvpd_learnt *row)
{
	const int64_t numbers[] = { row->shape.layers, row->shape.kv_heads, row->shape.head_dim,
		kvp_width_bits(row->width), row->origin };
	int code = sqlite3_bind_text(s, 1, row->id, -1, SQLITE_STATIC);

	if (code == SQLITE_OK)
		code = sqlite3_bind_int64(s, 2, row->layer);
	if (code == SQLITE_OK)
		code = sqlite3_bind_int64(s, 3, row->context_tokens);
	if (code == SQLITE_OK)
		code = sqlite3_bind_text(s, 4, row->model, -1, SQLITE_STATIC);
	for (int i = 0; code == SQLITE_OK && i < 5; i++)
		code = sqlite3_bind_int64(s, 5 + i, numbers[i]);
	if (code == SQLITE_OK)
		code = sqlite3_bind_double(s, 10, (double)row->quality);
	return code == SQLITE_OK ? sqlite3_bind_int64(s, 11, (int64_t)row->scores) : code;
}

static int put_rows(
	struct kvpd_learnt_file *f, const struct kvpd_learnt *rows, size_t n, int64_t serial)
{
	sqlite3_stmt *s = NULL;
	int r = prepare(f,
		"INSERT OR REPLACE INTO learnt(" COLUMNS ", serial) "
		"VALUES(?,?,?,?,?,?,?,?,?,?,?,?)",
		&s);
	int code = SQLITE_DONE;

	for (size_t i = 0; r == 0 && code == SQLITE_DONE && i < n; i++) {
		sqlite3_reset(s);
		code = bind_row(s, &rows[i]);
		if (code == SQLITE_OK)
			code = sqlite3_bind_int64(s, 12, serial);
		if (code == SQLITE_OK)
			code = sqlite3_step(s);
	}
	sqlite3_finalize(s);
	return r < 0 ? r : judge(f, code);
}

/* Guesses end where something was measured. */
static int end_guesses(struct kvpd_learnt_file *f, const struct kvpd_learnt *rows, size_t n)
{
	sqlite3_stmt *s = NULL;
	int r = prepare(f, "DELETE FROM learnt WHERE id = ? AND origin = 1", &s);
	int code = SQLITE_DONE;

	for (size_t i = 0; r == 0 && code == SQLITE_DONE && i < n; i++) {
		if (rows[i].origin != KVP_ORIGIN_MEASURED ||
			(i && !strcmp(rows[i].id, rows[i - 1].id)))
			continue;
		sqlite3_reset(s);
		code = sqlite3_bind_text(s, 1, rows[i].id, -1, SQLITE_STATIC);
		if (code == SQLITE_OK)
			code = sqlite3_step(s);
	}
	sqlite3_finalize(s);
	return r < 0 ? r : judge(f, code);
}

/* What a statement that has one number for an answer says. */
static int ask_number(struct kvpd_learnt_file *f, const char *sql, int64_t *ret_n)
{
	sqlite3_stmt *s = NULL;
	int r = prepare(f, sql, &s), code;

	if (r < 0)
		return r;
	code = sqlite3_step(s);
	if (code == SQLITE_ROW)
		*ret_n = sqlite3_column_int64(s, 0);
	sqlite3_finalize(s);
	return judge(f, code);
}

static int count_rows(struct kvpd_learnt_file *f, uint64_t *ret_n)
{
	int64_t n = 0;
	int r = ask_number(f, "SELECT count(*) FROM learnt", &n);

	*ret_n = (uint64_t)n;
	return r;
}

/* Later than all that is there. */
static int next_serial(struct kvpd_learnt_file *f, int64_t *ret_serial)
{
	int64_t last = 0;
	int r = ask_number(f, "SELECT coalesce(max(serial), 0) FROM learnt", &last);

	if (r == 0 && (last < 0 || last > SERIAL_MAX))
		r = move_aside(f, "counts beyond what kvpoold can have written");
	if (r == 0)
		*ret_serial = last + 1;
	return r;
}

/* `whole`: more rows than there may be are an error; else guesses go, and then the oldest. */
static int write_rows(
	struct kvpd_learnt_file *f, const struct kvpd_learnt *rows, size_t n, bool whole)
{
	char sql[192];
	int64_t serial = 0;
	uint64_t now = 0;
	int r = run(f, "BEGIN IMMEDIATE");

	if (r == 0)
		r = next_serial(f, &serial);
	if (r == 0)
		r = end_guesses(f, rows, n);
	if (r == 0)
		r = put_rows(f, rows, n, serial);
	if (r == 0)
		r = count_rows(f, &now);
	if (r == 0 && now > KVPD_LEARNT_ROWS && whole)
		r = -ENOSPC;
	snprintf(sql, sizeof(sql),
		"DELETE FROM learnt WHERE (id, layer, context) IN (SELECT id, layer, context "
		"FROM learnt ORDER BY origin = 0, serial, layer, id, context LIMIT %u)",
		now > KVPD_LEARNT_ROWS ? (unsigned)(now - KVPD_LEARNT_ROWS) : 0);
	if (r == 0 && now > KVPD_LEARNT_ROWS)
		r = run(f, sql);
	if (r == 0)
		r = run(f, "COMMIT");
	if (r < 0 && !sqlite3_get_autocommit(f->db))
		(void)sqlite3_exec(f->db, "ROLLBACK", NULL, NULL, NULL);
	return r;
}

static bool all_good(const struct kvpd_learnt *rows, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!kvpd_learnt_good(&rows[i]))
			return false;
	return n <= KVPD_LEARNT_ROWS;
}

int kvpd_learnt_save(struct kvpd_learnt_file *f, const struct kvpd_learnt *rows, size_t n)
{
	return all_good(rows, n) ? write_rows(f, rows, n, false) : -EINVAL;
}

static int by_key(const void *a, const void *b)
{
	const struct kvpd_learnt *x = a, *y = b;
	int r = strcmp(x->id, y->id);

	if (!r)
		r = (x->layer > y->layer) - (x->layer < y->layer);
	return r ? r
		 : (x->context_tokens > y->context_tokens) -
			       (x->context_tokens < y->context_tokens);
}

int kvpd_learnt_import(struct kvpd_learnt_file *f, struct kvpd_learnt *rows, size_t n)
{
	if (!all_good(rows, n))
		return -EINVAL;
	if (n)
		qsort(rows, n, sizeof(*rows), by_key);
	for (size_t i = 1; i < n; i++)
		if (!by_key(&rows[i - 1], &rows[i]))
			return -EEXIST;
	return write_rows(f, rows, n, true);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void take_text(sqlite3_stmt *s, int column, char *out, size_t bytes)
{
	const char *text = (const char *)sqlite3_column_text(s, column);
	size_t n = text ? (size_t)sqlite3_column_bytes(s, column) : 0;

	/* Too long, or with a NUL in it: then it is not good. */
	if (n >= bytes || (text && strlen(text) != n))
		n = 0;
	memcpy(out, text ? text : "", n);
	out[n] = 0;
}

/* So that no number becomes a good one by being cut. */
static uint32_t take_u32(sqlite3_stmt *s, int column)
{
	sqlite3_int64 v = sqlite3_column_int64(s, column);

	return v < 0 || v > UINT32_MAX ? UINT32_MAX : (uint32_t)v;
}

static bool take_row(sqlite3_stmt *s, struct kvpd_learnt *row)
{
	*row = (struct kvpd_learnt){
		.layer = take_u32(s, 1),
		.context_tokens = take_u32(s, 2),
		.shape = { take_u32(s, 4), take_u32(s, 5), take_u32(s, 6) },
		.width = kvp_width_of_bits(take_u32(s, 7)),
		.origin = take_u32(s, 8),
		.quality = (float)sqlite3_column_double(s, 9),
		.scores = (uint64_t)sqlite3_column_int64(s, 10),
	};
	take_text(s, 0, row->id, sizeof(row->id));
	take_text(s, 3, row->model, sizeof(row->model));
	return kvpd_learnt_good(row);
}

int kvpd_learnt_read(
	struct kvpd_learnt_file *f, size_t max, struct kvpd_learnt **ret_rows, size_t *ret_n)
{
	struct kvpd_learnt *rows = NULL;
	sqlite3_stmt *s = NULL;
	uint64_t room = 0;
	size_t n = 0;
	int r = count_rows(f, &room), code = SQLITE_DONE;

	if (r == 0 && (room > KVPD_LEARNT_ROWS || room > max))
		r = room > KVPD_LEARNT_ROWS ? move_aside(f, "has too many rows") : -E2BIG;
	rows = r == 0 ? calloc(room + 1, sizeof(*rows)) : NULL;
	if (r == 0 && !rows)
		r = -ENOMEM;
	if (r == 0)
		r = prepare(f,
			"SELECT " COLUMNS
			" FROM learnt ORDER BY serial DESC, id, layer DESC, context",
			&s);
	while (r == 0 && (code = sqlite3_step(s)) == SQLITE_ROW && n < room)
		if (!take_row(s, &rows[n++]))
			r = move_aside(f, "has rows that kvpoold does not write");
	sqlite3_finalize(s);
	if (r == 0)
		r = judge(f, code);
	if (r < 0) {
		free(rows);
		return r;
	}
	*ret_rows = rows;
	*ret_n = n;
	return 0;
}

/* ---- finding --------------------------------------------------------------------------------- */

/* The store knows a model by its id, and no layer that stands for all: a space's row is that of layer 0 there. */
static struct kvp_threshold_record record_of(const struct kvpd_learnt *row)
{
	struct kvp_threshold_record r = {
		.context_tokens = row->context_tokens,
		.shape = row->shape,
		.threshold = { KVP_THRESHOLD_HOT_MIN, KVP_THRESHOLD_HOT_MIN, row->width },
		.origin = row->origin,
		.quality = row->quality,
	};

	memcpy(r.model, row->id, sizeof(row->id));
	return r;
}

/* What was measured, into a store whose order of age is that of the file; *last: the newest. */
static int load(struct kvpd_learnt_file *f, const char *sql, const char *id,
	struct kvp_threshold_store *store, struct kvp_threshold_record *last)
{
	sqlite3_stmt *s = NULL;
	struct kvpd_learnt row;
	int r = prepare(f, sql, &s), code = SQLITE_OK;

	if (r == 0)
		code = sqlite3_bind_text(s, 1, id, -1, SQLITE_STATIC);
	while (r == 0 && (code == SQLITE_OK || code == SQLITE_ROW) &&
		(code = sqlite3_step(s)) == SQLITE_ROW) {
		if (!take_row(s, &row)) {
			r = move_aside(f, "has rows that kvpoold does not write");
			break;
		}
		*last = record_of(&row);
		r = kvp_threshold_store_put(store, last);
	}
	sqlite3_finalize(s);
	return r < 0 ? r : judge(f, code);
}

/* Rows whose context is not known are the nearest to none. */
static int find_own(struct kvpd_learnt_file *f, const struct kvpd_learnt *want,
	struct kvp_threshold_store *store, struct kvp_threshold_record *ret)
{
	static const char *const sql[] = {
		"SELECT " COLUMNS " FROM learnt WHERE id = ? AND layer = 256 AND origin = 0 "
		"AND context > 0 ORDER BY serial",
		"SELECT " COLUMNS
		" FROM learnt WHERE id = ? AND layer = 256 AND origin = 0 ORDER BY serial",
	};
	struct kvp_threshold_record last = { 0 };
	int r = 0;

	_Static_assert(KVPD_LEARNT_ALL == 256, "in SQL, here and below");
	for (int i = want->context_tokens ? 0 : 1; r == 0 && i < 2 && !last.model[0]; i++)
		r = load(f, sql[i], want->id, store, &last);
	if (r < 0)
		return r;
	if (!last.model[0])
		return -ENOENT;
	if (want->context_tokens)
		return kvp_threshold_nearest(store, want->id, 0, want->context_tokens, ret);
	*ret = last;
	return 0;
}

static int find_near(struct kvpd_learnt_file *f, const struct kvpd_learnt *want,
	struct kvp_threshold_store *store, struct kvp_threshold_record *ret)
{
	struct kvp_threshold_record last;
	int r = load(f,
		"SELECT * FROM (SELECT " COLUMNS
		", serial FROM learnt WHERE id <> ? AND layer = 256 AND origin = 0 "
		"ORDER BY serial DESC LIMIT 1024) ORDER BY serial",
		want->id, store, &last);

	_Static_assert(KVPD_LEARNT_NEIGHBOURS == 1024, "in SQL");
	if (r == 0)
		r = kvp_threshold_bootstrap(
			store, want->id, &want->shape, 0, want->context_tokens, ret);
	return r == 0 && ret->origin != KVP_ORIGIN_INHERITED ? -ENOENT : r;
}

int kvpd_learnt_find(struct kvpd_learnt_file *f, const struct kvpd_learnt *want, bool neighbours,
	struct kvpd_learnt *ret_row)
{
	struct kvp_threshold_store *store = kvp_threshold_store_new(KVPD_LEARNT_NEIGHBOURS);
	struct kvp_threshold_record found = { 0 };
	struct kvpd_learnt row = *want;
	int r = store ? 0 : -ENOMEM;

	row.layer = KVPD_LEARNT_ALL;
	row.quality = 0;
	row.scores = 0;
	row.origin = KVP_ORIGIN_MEASURED;
	if (r == 0 && !kvpd_learnt_good(&row))
		r = -EINVAL;
	if (r == 0)
		r = find_own(f, want, store, &found);
	if (r == -ENOENT && neighbours)
		r = find_near(f, want, store, &found);
	kvp_threshold_store_free(store);
	if (r < 0)
		return r;
	row.origin = found.origin;
	row.quality = found.quality;
	if (found.origin == KVP_ORIGIN_MEASURED)
		row.context_tokens = found.context_tokens;
	if (found.threshold.archive_width < row.width)
		row.width = found.threshold.archive_width;
	r = found.origin == KVP_ORIGIN_INHERITED ? kvpd_learnt_save(f, &row, 1) : 0;
	if (r == 0)
		*ret_row = row;
	return r;
}
