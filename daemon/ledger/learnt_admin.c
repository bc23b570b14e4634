/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "thresholds" and "thresholds-import": what files of learnt.h have, and rows for one of them. The store's thread reads
 * and writes, for which nobody waits here: the first request is told a number, and later ones with that number
 * get the answer when it is there.
 *
 * One question is under way at a time, whoever asks; the answer stays until it has been fetched or somebody asks
 * another one. An import comes in parts, since a request has a largest size; until the last one it is a list in
 * memory, then one transaction.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/answer.h"
#include "daemon/ledger/admin.h"
#include "daemon/ledger/learnt.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/worker.h"
#include "policy/kvp_width.h"

#define ROWS_MOST 65536u /* of an answer */
#define PART_MOST 1024u  /* of a part of an import */
#define PARTS     1024u  /* of an import */
#define FILES     1024u  /* looked into */

/* An answer: rows of one tenant after the other. */
struct kvpd_learnt_answer {
	uint32_t n;
	struct kvpd_learnt_listed {
		char tenant[KVPD_LEARNT_NAME];
		struct kvpd_learnt row;
	} listed[];
};

/* Of an import, the latest first. */
struct kvpd_learnt_part {
	struct kvpd_learnt_part *next;
	uint32_t n;
	struct kvpd_learnt row[];
};

static struct kvpd_learnt_part *parts_free(struct kvpd_learnt_part *p)
{
	while (p) {
		struct kvpd_learnt_part *next = p->next;

		free(p);
		p = next;
	}
	return NULL;
}

/* What the last question has left there. */
static void clear(struct kvpd_learnt_question *q)
{
	free(q->answer);
	q->answer = NULL;
	q->parts = parts_free(q->parts);
	q->n_parts = q->rows = 0;
	q->tenant[0] = 0;
}

void kvpd_learnt_question_fini(struct kvpd_learnt_question *q)
{
	clear(q);
}

/* ---- on the store's thread ------------------------------------------------------------------- */

struct question_job {
	struct kvpd_job job;
	const char *folder;
	char tenant[KVPD_LEARNT_NAME]; /* "": all */
	bool import;
	struct kvpd_learnt_part *parts;
	uint32_t rows; /* of these */
	uint32_t imported;
	struct kvpd_learnt_answer *answer;
	int status;
	char why[KVPD_LEARNT_WHY];
};

static int fail(struct question_job *j, int error, const char *tenant)
{
	static const struct {
		int error;
		const char *text;
	} words[] = {
		{ -E2BIG, "there are too many rows for one answer; ask for one tenant" },
		{ -EBUSY, "another process holds the file" },
		{ -ENOSPC, "the disk is full, or there would be more rows than a tenant may have" },
		{ -EEXIST, "two rows are of the same model, layer and context length" },
		{ -EBADMSG, "the file was damaged and has been moved aside" },
	};
	const char *text = strerror(-error);

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (words[i].error == error)
			text = words[i].text;
	snprintf(j->why, sizeof(j->why), "tenant %s: %s", tenant, text);
	return error;
}

static int append(
	struct question_job *j, const char *tenant, const struct kvpd_learnt *rows, uint32_t n)
{
	uint32_t had = j->answer ? j->answer->n : 0;
	struct kvpd_learnt_answer *a =
		realloc(j->answer, sizeof(*a) + (had + n) * sizeof(a->listed[0]));

	if (!a)
		return -ENOMEM;
	a->n = had + n;
	for (uint32_t i = 0; i < n; i++) {
		a->listed[had + i].row = rows[i];
		snprintf(a->listed[had + i].tenant, sizeof(a->listed[0].tenant), "%s", tenant);
	}
	j->answer = a;
	return 0;
}

static int read_one(struct question_job *j, const char *tenant)
{
	struct kvpd_learnt_file *f = NULL;
	struct kvpd_learnt *rows = NULL;
	size_t n = 0;
	int r = kvpd_learnt_open(j->folder, tenant, false, &f);

	if (r == 0)
		r = kvpd_learnt_read(f, ROWS_MOST - (j->answer ? j->answer->n : 0), &rows, &n);
	kvpd_learnt_close(f);
	if (r == 0)
		r = append(j, tenant, rows, (uint32_t)n);
	free(rows);
	return r < 0 && r != -ENOENT ? fail(j, r, tenant) : 0;
}

static int read_all(struct question_job *j)
{
	DIR *dir = opendir(j->folder);
	uint32_t files = 0;
	struct dirent *e;
	int r = dir ? 0 : fail(j, -errno, "of any name");

	while (r == 0 && files < FILES && (e = readdir(dir))) {
		size_t n = strlen(e->d_name);
		char tenant[KVPD_LEARNT_NAME];

		if (n < 4 || n - 3 >= sizeof(tenant) || strcmp(e->d_name + n - 3, ".db"))
			continue;
		memcpy(tenant, e->d_name, n - 3);
		tenant[n - 3] = 0;
		if (!kvpd_learnt_name_good(tenant))
			continue;
		files++;
		r = read_one(j, tenant);
	}
	if (dir)
		closedir(dir);
	return r;
}

/* In one piece. */
static int import_all(struct question_job *j)
{
	uint32_t n = j->rows, at = 0;
	struct kvpd_learnt *all = calloc(n + 1, sizeof(*all));
	struct kvpd_learnt_file *f = NULL;
	int r = all ? kvpd_learnt_open(j->folder, j->tenant, true, &f) : -ENOMEM;

	for (const struct kvpd_learnt_part *p = j->parts; r == 0 && p; p = p->next) {
		memcpy(all + at, p->row, p->n * sizeof(*all));
		at += p->n;
	}
	if (r == 0)
		r = kvpd_learnt_import(f, all, n);
	kvpd_learnt_close(f);
	free(all);
	j->imported = n;
	return r < 0 ? fail(j, r, j->tenant) : 0;
}

static void run(struct kvpd_job *job)
{
	struct question_job *j = kvpd_container(job, struct question_job, job);

	if (j->import)
		j->status = import_all(j);
	else
		j->status = j->tenant[0] ? read_one(j, j->tenant) : read_all(j);
	j->parts = parts_free(j->parts);
}

static void done(struct kvpd_ledger *l, struct kvpd_job *job)
{
	struct question_job *j = kvpd_container(job, struct question_job, job);

	l->question.running = false;
	l->question.status = j->status;
	l->question.imported = j->imported;
	l->question.answer = j->answer;
	snprintf(l->question.why, sizeof(l->question.why), "%s", j->why);
	parts_free(j->parts);
	free(j);
}

/* ---- requests -------------------------------------------------------------------------------- */

struct asked {
	uint64_t number; /* that it goes by; 0: it is the first */
	bool import;
	bool last; /* part of an import */
	struct kvpd_learnt_part *part;
	uint64_t given; /* number, for the next request */
	bool waits;
	struct kvpd_learnt_answer *answer;
	uint32_t imported;
};

static int begin(struct kvpd_request *q)
{
	struct asked *a = calloc(1, sizeof(*a));

	if (!a)
		return kvpd_request_fail(q, -ENOMEM, "no memory for the answer");
	q->own = a;
	a->number = kvpd_request_int(q, "asked", 0);
	if (q->only && !kvpd_learnt_name_good(q->only))
		return kvpd_request_fail(q, -EINVAL, "tenant is the name of a tenant");
	return 0;
}

static int prepare(struct kvpd_request *q)
{
	return q->own ? 0 : begin(q);
}

/* Is it the turn of this number? 0 then; or an error, in words. */
static int find_question(struct kvpd_request *q, uint64_t number, bool import)
{
	const struct kvpd_learnt_question *now = &q->l->question;

	if (!q->l->state_dir)
		return kvpd_request_fail(q, -EOPNOTSUPP,
			"nothing is kept: the configuration has no `state_dir`, or the log says "
			"what "
			"is wrong with it");
	if (number && (number != now->number || import != now->import))
		return kvpd_request_fail(q, -ESTALE, "another question came between; ask again");
	if (!number && now->running)
		return kvpd_request_fail(
			q, -EBUSY, "another question is under way; ask again in a moment");
	return 0;
}

static void start_question(struct kvpd_learnt_question *now, struct asked *a, bool import)
{
	clear(now);
	now->import = import;
	a->given = ++now->number;
}

static int start_job(struct kvpd_request *q)
{
	struct kvpd_learnt_question *now = &q->l->question;
	struct question_job *j = calloc(1, sizeof(*j));

	if (!j)
		return kvpd_request_fail(q, -ENOMEM, "no memory for the question");
	*j = (struct question_job){
		/* Whoever has the first tenant's place waits for it, as others may. */
		.job = { .tenant = 1, .run = run, .done = done },
		.folder = q->l->state_dir,
		.import = now->import,
		.parts = now->parts,
		.rows = now->rows,
		.status = -ECANCELED,
	};
	snprintf(j->tenant, sizeof(j->tenant), "%s", q->only ? q->only : "");
	now->parts = NULL;
	now->tenant[0] = 0;
	now->running = true;
	kvpd_worker_submit(&q->l->store, &j->job);
	return 0;
}

/* The answer, if it is there; it can be had once. */
static int take_answer(struct kvpd_request *q, struct asked *a)
{
	struct kvpd_learnt_question *now = &q->l->question;

	a->waits = now->running;
	if (a->waits)
		return 0;
	a->answer = now->answer;
	a->imported = now->imported;
	now->answer = NULL;
	now->number++;
	return now->status < 0 ? kvpd_request_fail(q, now->status, "%s", now->why) : 0;
}

static int list_step(struct kvpd_request *q)
{
	struct asked *a = q->own;
	int r = find_question(q, a->number, false);

	if (r < 0)
		return r;
	if (a->number)
		return take_answer(q, a);
	start_question(&q->l->question, a, false);
	return start_job(q);
}

/* ---- rows as JSON ---------------------------------------------------------------------------- */

static const char *const origins[] = {
	[KVP_ORIGIN_MEASURED] = "measured",
	[KVP_ORIGIN_INHERITED] = "inherited",
};

static json_t *row_json(const void *found, uint32_t i)
{
	const struct kvpd_learnt_listed *listed =
		&((const struct kvpd_learnt_answer *)found)->listed[i];
	const struct kvpd_learnt *r = &listed->row;
	char key[KVP_THRESHOLD_MODEL_MAX + 32];
	json_t *o = json_object();

	kvpd_put_text(o, "tenant", listed->tenant);
	kvpd_put_text(o, "model", r->model);
	kvpd_put_text(o, "id", r->id);
	if (r->layer == KVPD_LEARNT_ALL) {
		json_object_set_new(o, "layer", json_null());
	} else {
		kvpd_put_int(o, "layer", r->layer);
		if (kvp_threshold_key(r->id, r->layer, key, sizeof(key)) == 0)
			kvpd_put_text(o, "key", key);
	}
	kvpd_put_int(o, "context_tokens", r->context_tokens);
	kvpd_put_int(o, "layers", r->shape.layers);
	kvpd_put_int(o, "kv_heads", r->shape.kv_heads);
	kvpd_put_int(o, "head_dim", r->shape.head_dim);
	kvpd_put_int(o, "bits", kvp_width_bits(r->width));
	json_object_set_new(o, "quality_ratio", json_real((double)r->quality));
	kvpd_put_int(o, "scores", r->scores);
	kvpd_put_text(o, "origin", origins[r->origin]);
	return o;
}

static bool take_number(const json_t *o, const char *name, uint32_t *ret)
{
	const json_t *v = json_object_get(o, name);

	if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
		return false;
	*ret = (uint32_t)json_integer_value(v);
	return true;
}

static bool take_text(const json_t *o, const char *name, char *out, size_t bytes)
{
	const json_t *v = json_object_get(o, name);
	size_t n = json_string_length(v);

	if (!json_is_string(v) || n >= bytes || strlen(json_string_value(v)) != n)
		return false;
	memcpy(out, json_string_value(v), n + 1);
	return true;
}

/* What row_json() wrote; the tenant and the key beside it count for nothing. */
static bool take_row(const json_t *o, struct kvpd_learnt *row)
{
	const json_t *layer = json_object_get(o, "layer"),
		     *quality = json_object_get(o, "quality_ratio");
	char origin[16] = "";
	uint32_t bits = 0, scores = 0;

	*row = (struct kvpd_learnt){ .layer = KVPD_LEARNT_ALL };
	if (!take_text(o, "id", row->id, sizeof(row->id)) ||
		!take_text(o, "model", row->model, sizeof(row->model)) ||
		!take_text(o, "origin", origin, sizeof(origin)) ||
		!take_number(o, "context_tokens", &row->context_tokens) ||
		!take_number(o, "layers", &row->shape.layers) ||
		!take_number(o, "kv_heads", &row->shape.kv_heads) ||
		!take_number(o, "head_dim", &row->shape.head_dim) ||
		!take_number(o, "bits", &bits) || !take_number(o, "scores", &scores) ||
		!json_is_number(quality) ||
		!(json_is_null(layer) ||
			(take_number(o, "layer", &row->layer) && row->layer < KVPD_LEARNT_ALL)))
		return false;
	row->width = kvp_width_of_bits(bits);
	row->scores = scores;
	row->quality = (float)json_number_value(quality);
	row->origin = KVP_ORIGIN_DEFAULT; /* which no row may have */
	for (uint32_t i = 0; i < sizeof(origins) / sizeof(origins[0]); i++)
		if (!strcmp(origin, origins[i]))
			row->origin = i;
	return kvpd_learnt_good(row);
}

/* ---- importing ------------------------------------------------------------------------------- */

static int take_part(struct kvpd_request *q, struct asked *a, const json_t *rows)
{
	size_t n = json_array_size(rows);

	if (!json_is_array(rows) || n > PART_MOST)
		return kvpd_request_fail(
			q, -EINVAL, "rows is a list of at most %u rows", PART_MOST);
	a->part = calloc(1, sizeof(*a->part) + n * sizeof(a->part->row[0]));
	if (!a->part)
		return kvpd_request_fail(q, -ENOMEM, "no memory for the rows");
	for (; a->part->n < n; a->part->n++)
		if (!take_row(json_array_get(rows, a->part->n), &a->part->row[a->part->n]))
			return kvpd_request_fail(q, -EINVAL,
				"row %u of this part is none that \"thresholds\" lists",
				a->part->n);
	return 0;
}

static int import_prepare(struct kvpd_request *q)
{
	const json_t *rows = json_object_get(q->json, "rows");
	struct asked *a;
	int r;

	if (q->own)
		return 0;
	r = begin(q);
	if (r < 0)
		return r;
	if (!q->only)
		return kvpd_request_fail(q, -EINVAL, "tenant says whose the rows are to be");
	a = q->own;
	a->import = true;
	a->last = kvpd_request_flag(q, "last");
	if (rows)
		return take_part(q, a, rows);
	return a->number ? 0 : kvpd_request_fail(q, -EINVAL, "rows says what is to be imported");
}

/* One part more. How many there are and what they have is counted: nobody walks along them here. */
static int add_part(struct kvpd_request *q, struct asked *a)
{
	struct kvpd_learnt_question *now = &q->l->question;

	if (!a->number) {
		start_question(now, a, true);
		snprintf(now->tenant, sizeof(now->tenant), "%s", q->only);
	}
	if (strcmp(now->tenant, q->only))
		return kvpd_request_fail(q, -ESTALE, "no import goes by that number");
	a->given = now->number;
	if (now->rows + a->part->n > KVPD_LEARNT_ROWS)
		return kvpd_request_fail(
			q, -ENOSPC, "a tenant has at most %u rows", KVPD_LEARNT_ROWS);
	if (now->n_parts == PARTS)
		return kvpd_request_fail(
			q, -E2BIG, "an import has at most %u parts; put more rows in each", PARTS);
	now->n_parts++;
	now->rows += a->part->n;
	if (a->part->n) {
		a->part->next = now->parts;
		now->parts = a->part;
		a->part = NULL;
	}
	return a->last ? start_job(q) : 0;
}

static int import_step(struct kvpd_request *q)
{
	struct asked *a = q->own;
	int r = find_question(q, a->number, true);

	if (r < 0)
		return r;
	if (a->part)
		return add_part(q, a);
	if (q->l->question.tenant[0])
		return kvpd_request_fail(q, -EINVAL, "its last part is still to come");
	return take_answer(q, a);
}

/* ---- the verbs ------------------------------------------------------------------------------- */

/* After an import the number of its rows, after a list these. */
static void end_question(struct kvpd_request *q, struct asked *a)
{
	if (a->import) {
		kvpd_put_int(q->answer, "imported", a->imported);
		return;
	}
	q->rows = (struct kvpd_rows){ "thresholds", a->answer ? a->answer->n : 0, row_json,
		a->answer };
	a->answer = NULL;
}

static int finish(struct kvpd_request *q, int result)
{
	struct asked *a = q->own;

	if (!a)
		return result;
	if (result == 0 && !a->given && !a->waits)
		end_question(q, a);
	if (result == 0 && a->given)
		kvpd_put_int(q->answer, "asked", a->given);
	else if (result == 0 && a->waits)
		kvpd_put_int(q->answer, "waiting", 1);
	parts_free(a->part);
	free(a->answer);
	free(a);
	return result;
}

const struct kvpd_verb kvpd_verb_thresholds = {
	.name = "thresholds",
	.absent = true,
	.prepare = prepare,
	.step = list_step,
	.finish = finish,
};

const struct kvpd_verb kvpd_verb_thresholds_import = {
	.name = "thresholds-import",
	.absent = true,
	.prepare = import_prepare,
	.step = import_step,
	.finish = finish,
};
