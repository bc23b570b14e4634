/* SPDX-License-Identifier: Apache-2.0 */
/* Reads traces in three formats into chains of densely numbered blocks. */
#include "tools/kvreplay/trace.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>
#include <xxhash.h>

#define MAX_LINE        (64u << 20)
#define MAX_FOLDERS     4u /* below the one that was named */
#define MAX_REFS        (UINT64_C(1) << 31)
#define MAX_REQUESTS    (UINT32_C(1) << 28)
#define MAX_SESSIONS    (UINT32_C(1) << 16)
#define MOONCAKE_TOKENS 512u
#define AGENT_TOKENS    64u

struct loader {
	struct trace *t;
	const struct trace_options *o;
	const char *path;
	uint64_t line;
	char *error;
	size_t error_len;
	uint64_t cap_requests, cap_refs, cap_blocks, cap_text;
	uint32_t *table; /* block numbers + 1 by (parent, content); 0: empty */
	uint64_t mask;
	char **session; /* names */
	uint32_t cap_sessions;
};

__attribute__((format(printf, 3, 4))) static int fail(
	struct loader *l, int code, const char *format, ...)
{
	char what[256];
	va_list ap;

	va_start(ap, format);
	vsnprintf(what, sizeof(what), format, ap);
	va_end(ap);
	if (l->line)
		snprintf(l->error, l->error_len, "%s:%" PRIu64 ": %s", l->path, l->line, what);
	else
		snprintf(l->error, l->error_len, "%s: %s", l->path, what);
	return code;
}

void progress(const char *what, uint64_t done, uint64_t total)
{
	static int tty = -1, shown = -1;

	if (tty < 0)
		tty = isatty(STDERR_FILENO);
	if (!tty || !total)
		return;
	int part = (int)(done * 40 / total);
	if (part != shown || done >= total)
		fprintf(stderr, "\r%-10s [%-40.*s] %3d %%", what, part,
			"########################################", (int)(done * 100 / total));
	shown = part;
	if (done >= total) {
		fputc('\n', stderr);
		shown = -1;
	}
}

static int grow(void **array, uint64_t *cap, uint64_t need, size_t size)
{
	if (need <= *cap)
		return 0;
	uint64_t want = *cap ? *cap * 2 : 1024;
	while (want < need)
		want *= 2;
	void *p = realloc(*array, want * size);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = want;
	return 0;
}

/* ---- blocks ---- */

static uint64_t block_hash(uint32_t parent, uint64_t content)
{
	uint64_t in[2] = { parent, content };
	return XXH3_64bits(in, sizeof(in));
}

static int rehash(struct loader *l)
{
	uint64_t size = l->mask ? (l->mask + 1) * 2 : 4096;
	uint32_t *table = calloc(size, sizeof(*table));

	if (!table)
		return -ENOMEM;
	for (uint32_t b = 0; b < l->t->n_blocks; b++) {
		const struct trace_block *x = &l->t->block[b];
		uint64_t i = block_hash(x->parent, x->content) & (size - 1);
		while (table[i])
			i = (i + 1) & (size - 1);
		table[i] = b + 1;
	}
	free(l->table);
	l->table = table;
	l->mask = size - 1;
	return 0;
}

/* The block's number, a new one if it has not been seen below this parent. */
static int block_number(struct loader *l, const struct trace_block *x, uint32_t *ret_number)
{
	struct trace *t = l->t;
	int r;

	if (((uint64_t)t->n_blocks + 1) * 2 > l->mask) {
		r = rehash(l);
		if (r < 0)
			return r;
	}
	uint64_t i = block_hash(x->parent, x->content) & l->mask;
	for (; l->table[i]; i = (i + 1) & l->mask) {
		const struct trace_block *y = &t->block[l->table[i] - 1];
		if (y->parent == x->parent && y->content == x->content) {
			*ret_number = l->table[i] - 1;
			return 0;
		}
	}
	r = grow((void **)&t->block, &l->cap_blocks, (uint64_t)t->n_blocks + 1, sizeof(*x));
	if (r < 0)
		return r;
	t->block[t->n_blocks] = *x;
	l->table[i] = ++t->n_blocks;
	*ret_number = t->n_blocks - 1;
	return 0;
}

static int add_ref(struct loader *l, const struct trace_block *x)
{
	struct trace *t = l->t;
	int r;

	if (t->n_refs >= MAX_REFS)
		return fail(l, -EFBIG, "more than 2^31 block references");
	r = grow((void **)&t->ref, &l->cap_refs, t->n_refs + 1, sizeof(*t->ref));
	if (r < 0)
		return r;
	uint32_t number = 0;
	r = block_number(l, x, &number);
	if (r < 0)
		return r;
	t->ref[t->n_refs++] = number;
	return 0;
}

static int add_request(struct loader *l, const struct trace_request *q)
{
	struct trace *t = l->t;

	if (t->n_requests >= MAX_REQUESTS)
		return fail(l, -EFBIG, "more than 2^28 requests");
	int r = grow(
		(void **)&t->request, &l->cap_requests, (uint64_t)t->n_requests + 1, sizeof(*q));
	if (r < 0)
		return r;
	t->request[t->n_requests++] = *q;
	if (q->blocks > t->longest)
		t->longest = q->blocks;
	return 0;
}

/* ---- JSON lines ---- */

static int get_uint(
	struct loader *l, const json_t *line, const char *name, uint64_t max, uint64_t *ret_value)
{
	const json_t *v = json_object_get(line, name);

	if (!json_is_integer(v))
		return fail(l, -EBADMSG, "\"%s\" is missing or not an integer", name);
	json_int_t x = json_integer_value(v);
	if (x < 0 || (uint64_t)x > max)
		return fail(l, -EBADMSG, "\"%s\" is out of range", name);
	*ret_value = (uint64_t)x;
	return 0;
}

static int read_mooncake(struct loader *l, const json_t *line)
{
	struct trace *t = l->t;
	struct trace_request q = { .first = t->n_refs };
	uint64_t ms = 0, in = 0, out = 0;
	const json_t *ids = json_object_get(line, "hash_ids");
	int r;

	if ((r = get_uint(l, line, "timestamp", UINT64_MAX / 2000000, &ms)) < 0 ||
		(r = get_uint(l, line, "input_length", UINT32_MAX, &in)) < 0 ||
		(r = get_uint(l, line, "output_length", UINT32_MAX, &out)) < 0)
		return r;
	if (!json_is_array(ids))
		return fail(l, -EBADMSG, "\"hash_ids\" is missing or not an array");
	size_t n = json_array_size(ids);
	if (n != (in + MOONCAKE_TOKENS - 1) / MOONCAKE_TOKENS)
		return fail(l, -EBADMSG, "%zu hash_ids for %" PRIu64 " tokens", n, in);

	uint32_t parent = TRACE_BLOCK_NONE;
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_array_get(ids, i);
		if (!json_is_integer(id))
			return fail(l, -EBADMSG, "hash_ids[%zu] is not an integer", i);
		struct trace_block b = {
			.content = (uint64_t)json_integer_value(id),
			.parent = parent,
			.depth = (uint32_t)i,
			.tokens = i + 1 < n ? MOONCAKE_TOKENS
					    : (uint32_t)(in - (n - 1) * MOONCAKE_TOKENS),
			.bytes = 1,
		};
		r = add_ref(l, &b);
		if (r < 0)
			return r;
		parent = t->ref[t->n_refs - 1];
	}
	q.time_ns = ms * 1000000;
	q.blocks = (uint32_t)n;
	q.tokens = (uint32_t)in;
	q.output_tokens = (uint32_t)out;
	return add_request(l, &q);
}

static int session_number(struct loader *l, const char *name, uint32_t *ret_number)
{
	struct trace *t = l->t;
	uint64_t cap = l->cap_sessions;

	/* lines of one session stand together: the last one first */
	for (uint32_t i = t->n_sessions; i-- > 0;)
		if (!strcmp(l->session[i], name)) {
			*ret_number = i;
			return 0;
		}
	if (t->n_sessions >= MAX_SESSIONS)
		return fail(l, -EFBIG, "more than %u sessions", MAX_SESSIONS);
	int r = grow((void **)&l->session, &cap, (uint64_t)t->n_sessions + 1, sizeof(char *));
	if (r < 0)
		return r;
	l->cap_sessions = (uint32_t)cap;
	l->session[t->n_sessions] = strdup(name);
	if (!l->session[t->n_sessions])
		return -ENOMEM;
	*ret_number = t->n_sessions++;
	return 0;
}

static int keep_text(struct loader *l, const char *text, size_t len, uint64_t *ret_offset)
{
	struct trace *t = l->t;

	*ret_offset = t->text_len;
	if (!l->o->keep_text)
		return 0;
	int r = grow((void **)&t->text, &l->cap_text, t->text_len + len, 1);
	if (r < 0)
		return r;
	memcpy(t->text + t->text_len, text, len);
	t->text_len += len;
	return 0;
}

static int read_agent(struct loader *l, const json_t *line)
{
	struct trace *t = l->t;
	struct trace_request q = { .first = t->n_refs };
	const json_t *input = json_object_get(line, "input");
	const json_t *output = json_object_get(line, "output");
	const json_t *session = json_object_get(line, "session_id");
	uint64_t us = 0;
	int r = get_uint(l, line, "timestamp", UINT64_MAX / 2000, &us);

	if (r < 0)
		return r;
	if (!json_is_string(input) || !json_is_string(session))
		return fail(l, -EBADMSG, "\"input\" or \"session_id\" is missing or no string");
	r = session_number(l, json_string_value(session), &q.session);
	if (r < 0)
		return r;

	const char *text = json_string_value(input);
	size_t len = json_string_length(input);
	uint32_t parent = TRACE_BLOCK_NONE;
	r = keep_text(l, text, len, &q.text);
	for (size_t at = 0; r == 0 && at < len; at += t->block_tokens) {
		size_t n = len - at < t->block_tokens ? len - at : t->block_tokens;
		struct trace_block b = {
			.content = XXH3_64bits_withSeed(text + at, n, n),
			.parent = parent,
			.depth = q.blocks++,
			.tokens = (uint32_t)n,
			.bytes = 1,
		};
		r = add_ref(l, &b);
		if (r == 0)
			parent = t->ref[t->n_refs - 1];
	}
	if (r < 0)
		return r;
	q.time_ns = us * 1000;
	q.tokens = (uint32_t)len;
	q.output_tokens = json_is_string(output) ? (uint32_t)json_string_length(output) : 0;
	return q.blocks ? add_request(l, &q) : 0;
}

/* Its length, 0 at the end; -EBADMSG, -ENOMEM. No line may take all memory, as getline() would. */
static int64_t read_line(struct loader *l, FILE *f, char **line, uint64_t *cap)
{
	uint64_t len = 0;
	int c = 0;

	while (c != '\n' && (c = getc_unlocked(f)) != EOF) {
		int r = grow((void **)line, cap, len + 2, 1);
		if (r < 0)
			return fail(l, r, "out of memory");
		if (len == MAX_LINE)
			return fail(l, -EBADMSG, "line of more than %u bytes", MAX_LINE);
		(*line)[len++] = (char)c;
		(*line)[len] = 0;
	}
	return (int64_t)len;
}

static int read_lines(struct loader *l, const char *path)
{
	FILE *f = fopen(path, "re");
	char *line = NULL;
	uint64_t cap = 0;
	int64_t len = 0;
	struct stat st;
	uint64_t done = 0;
	int r = 0;

	l->path = path;
	l->line = 0;
	if (!f || fstat(fileno(f), &st) < 0) {
		r = -errno;
		fail(l, r, "%s", strerror(-r));
		goto out;
	}
	while (r == 0) {
		json_error_t err;
		l->line++;
		len = read_line(l, f, &line, &cap);
		if (len <= 0) {
			r = (int)len;
			break;
		}
		done += (uint64_t)len;
		if (strspn(line, " \t\r\n") == (size_t)len)
			continue;
		json_t *j = json_loadb(line, (size_t)len, 0, &err);
		if (!json_is_object(j))
			r = fail(l, -EBADMSG, "%s", j ? "not an object" : err.text);
		else
			r = l->t->format == TRACE_MOONCAKE ? read_mooncake(l, j) : read_agent(l, j);
		json_decref(j);
		if (l->line % 256 == 0 && done < (uint64_t)st.st_size)
			progress("loading", done, (uint64_t)st.st_size);
	}
	if (r == 0 && ferror(f))
		r = fail(l, -EIO, "cannot be read");
	if (r == 0 && l->t->format == TRACE_MOONCAKE)
		progress("loading", 1, 1);
out:
	free(line);
	if (f)
		fclose(f);
	return r;
}

static int is_jsonl_or_folder(const struct dirent *d)
{
	size_t n = strlen(d->d_name);

	return (d->d_type == DT_DIR && d->d_name[0] != '.') ||
	       (n > 6 && !strcmp(d->d_name + n - 6, ".jsonl"));
}

static int read_folder(struct loader *l, const char *path, unsigned depth)
{
	struct dirent **list = NULL;
	int n = scandir(path, &list, is_jsonl_or_folder, alphasort), r = 0;

	if (n < 0) {
		r = -errno;
		return fail(l, r, "%s", strerror(-r));
	}
	for (int i = 0; i < n; i++) {
		char *file = NULL;

		if (r == 0 && asprintf(&file, "%s/%s", path, list[i]->d_name) < 0)
			r = -ENOMEM;
		if (r == 0 && list[i]->d_type != DT_DIR)
			r = read_lines(l, file);
		else if (r == 0 && depth < MAX_FOLDERS)
			r = read_folder(l, file, depth + 1);
		free(file);
		free(list[i]);
		progress("loading", (uint64_t)i + 1, (uint64_t)n);
	}
	free(list);
	return r;
}

/* ---- oracleGeneral ---- */

static uint64_t le(const unsigned char *p, unsigned n)
{
	uint64_t x = 0;
	while (n--)
		x = x << 8 | p[n];
	return x;
}

static int read_oracle(struct loader *l, const char *path)
{
	enum { RECORD = 24 };
	unsigned char buf[RECORD];
	FILE *f = fopen(path, "re");
	size_t n = 0;
	int r = 0;

	l->line = 0;
	if (!f) {
		r = -errno;
		return fail(l, r, "%s", strerror(-r));
	}
	while (r == 0 && (n = fread(buf, 1, RECORD, f)) == RECORD) {
		struct trace_request q = { .first = l->t->n_refs, .blocks = 1 };
		struct trace_block b = {
			.content = le(buf + 4, 8),
			.parent = TRACE_BLOCK_NONE,
			.tokens = 1,
			.bytes = (uint32_t)le(buf + 12, 4),
		};
		q.tokens = b.bytes;
		q.time_ns = le(buf, 4) * UINT64_C(1000000000);
		l->line++;
		if (!b.bytes)
			continue; /* so does libCacheSim: nothing was asked for */
		r = add_ref(l, &b);
		if (r == 0)
			r = add_request(l, &q);
	}
	if (r == 0 && ferror(f))
		r = fail(l, -EIO, "cannot be read");
	if (r == 0 && n)
		r = fail(l, -EBADMSG, "ends inside a record of %d bytes", RECORD);
	fclose(f);
	return r;
}

/* ---- the whole ---- */

static int by_time(const void *a, const void *b)
{
	const struct trace_request *x = a, *y = b;

	if (x->time_ns != y->time_ns)
		return x->time_ns < y->time_ns ? -1 : 1;
	return x->first < y->first ? -1 : x->first > y->first;
}

static int shift_sessions(struct trace *t)
{
	uint64_t *begin = malloc(t->n_sessions * sizeof(*begin));

	if (!begin)
		return -ENOMEM;
	memset(begin, 0xff, t->n_sessions * sizeof(*begin));
	for (uint32_t i = 0; i < t->n_requests; i++) {
		const struct trace_request *q = &t->request[i];
		if (q->time_ns < begin[q->session])
			begin[q->session] = q->time_ns;
	}
	for (uint32_t i = 0; i < t->n_requests; i++)
		t->request[i].time_ns -= begin[t->request[i].session];
	free(begin);
	return 0;
}

static void cut(struct trace *t, uint32_t from, uint32_t count)
{
	if (from > t->n_requests)
		from = t->n_requests;
	uint32_t left = t->n_requests - from;
	if (!count || count > left)
		count = left;
	memmove(t->request, t->request + from, count * sizeof(*t->request));
	t->n_requests = count;
	t->n_refs = 0;
	t->longest = 0;
	for (uint32_t i = 0; i < count; i++) {
		t->n_refs += t->request[i].blocks;
		if (t->request[i].blocks > t->longest)
			t->longest = t->request[i].blocks;
	}
}

static int finish(struct loader *l)
{
	struct trace *t = l->t;
	const struct trace_options *o = l->o;
	int r = 0;

	l->line = 0;
	if (o->overlap && t->n_sessions > 1)
		r = shift_sessions(t);
	if (r < 0)
		return r;
	if (t->n_requests)
		qsort(t->request, t->n_requests, sizeof(*t->request), by_time);
	if (o->from || o->count)
		cut(t, o->from, o->count);
	if (!t->n_requests || !t->n_refs)
		return fail(l, -EBADMSG, "no request in it");
	uint64_t begin = t->request[0].time_ns, last = t->request[t->n_requests - 1].time_ns;
	double scale = o->time_scale > 0 ? o->time_scale : 1;
	if ((double)(last - begin) * scale >= 0x1p64)
		return fail(l, -ERANGE, "%g times its length is too long", scale);
	for (uint32_t i = 0; i < t->n_requests; i++)
		t->request[i].time_ns = (uint64_t)((double)(t->request[i].time_ns - begin) * scale);
	if (!t->n_sessions)
		t->n_sessions = 1;
	return 0;
}

int trace_format_parse(const char *name, enum trace_format *ret_format)
{
	static const char *const names[] = { "mooncake", "agent", "oracle" };

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(name, names[i])) {
			*ret_format = (enum trace_format)i;
			return 0;
		}
	return -EINVAL;
}

int trace_load(const char *path, enum trace_format format, const struct trace_options *options,
	struct trace *ret_trace, char *error, size_t error_len)
{
	struct trace t = { .format = format };
	struct loader l = {
		.t = &t, .o = options, .path = path, .error = error, .error_len = error_len
	};
	struct stat st;
	int r;

	snprintf(error, error_len, "%s: out of memory", path);
	t.block_tokens = format == TRACE_MOONCAKE ? MOONCAKE_TOKENS
			 : format == TRACE_ORACLE ? 1
			 : options->block_tokens  ? options->block_tokens
						  : AGENT_TOKENS;
	if (stat(path, &st) < 0) {
		r = -errno;
		fail(&l, r, "%s", strerror(-r));
	} else if (format == TRACE_ORACLE) {
		r = read_oracle(&l, path);
	} else {
		r = S_ISDIR(st.st_mode) ? read_folder(&l, path, 0) : read_lines(&l, path);
	}
	l.path = path;
	if (r == 0)
		r = finish(&l);
	for (uint32_t i = 0; l.session && i < t.n_sessions; i++)
		free(l.session[i]);
	free(l.session);
	free(l.table);
	if (r < 0)
		trace_done(&t);
	else
		*ret_trace = t;
	return r;
}

void trace_done(struct trace *t)
{
	free(t->request);
	free(t->ref);
	free(t->block);
	free(t->text);
	*t = (struct trace){ 0 };
}
