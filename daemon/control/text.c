/* SPDX-License-Identifier: Apache-2.0 */
/* JSON that is appended to a text that grows. */
#include "daemon/control/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * Sorted: the same question has the same answer, byte for byte. Twelve digits: a nanosecond of an
 * hour, and none that only say how a double is made.
 */
#define DUMP (JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(12))

static int put(struct kvpd_text *t, const char *bytes, size_t n)
{
	if (n > KVPD_TEXT_MAX - t->n)
		return -EMSGSIZE;
	while (n) {
		struct kvpd_text_chunk *chunk = t->last;
		size_t some;

		if (!chunk || chunk->n == sizeof(chunk->bytes)) {
			chunk = malloc(sizeof(*chunk));
			if (!chunk)
				return -ENOMEM;
			chunk->next = NULL;
			chunk->n = 0;
			if (t->last)
				t->last->next = chunk;
			else
				t->first = chunk;
			t->last = chunk;
		}
		some = sizeof(chunk->bytes) - chunk->n;
		some = n < some ? n : some;
		memcpy(chunk->bytes + chunk->n, bytes, some);
		chunk->n += some;
		t->n += some;
		bytes += some;
		n -= some;
	}
	return 0;
}

int kvpd_text_put(struct kvpd_text *t, const char *piece)
{
	return put(t, piece, strlen(piece));
}

struct dump {
	struct kvpd_text *text;
	size_t skip; /* bytes at the beginning that are left out */
	int result;
};

static int dump(const char *bytes, size_t n, void *arg)
{
	struct dump *d = arg;
	size_t skip = n < d->skip ? n : d->skip;

	d->skip -= skip;
	d->result = put(d->text, bytes + skip, n - skip);
	return d->result;
}

static int put_json(struct kvpd_text *t, const json_t *json, size_t skip)
{
	struct dump d = { t, skip, 0 };

	if (json && json_dump_callback(json, dump, &d, DUMP) == 0)
		return 0;
	return d.result < 0 ? d.result : -ENOMEM;
}

int kvpd_text_json(struct kvpd_text *t, const json_t *json)
{
	return put_json(t, json, 0);
}

int kvpd_text_members(struct kvpd_text *t, const json_t *object)
{
	int r = json_object_size(object) ? put(t, ",", 1) : 0;

	return r < 0 ? r : put_json(t, object, strlen("{"));
}

void kvpd_text_drop(struct kvpd_text *t)
{
	struct kvpd_text_chunk *chunk = t->first;

	t->first = chunk->next;
	if (!t->first)
		t->last = NULL;
	free(chunk);
}

void kvpd_text_fini(struct kvpd_text *t)
{
	while (t->first)
		kvpd_text_drop(t);
	t->n = 0;
}
