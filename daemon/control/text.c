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

static int make_room(struct kvpd_text *t, size_t more)
{
	size_t room = t->room ? t->room : 256;
	char *bytes;

	if (more > KVPD_TEXT_MAX - t->n)
		return -EMSGSIZE;
	while (room - t->n < more)
		room *= 2;
	if (room == t->room)
		return 0;
	bytes = realloc(t->bytes, room);
	if (!bytes)
		return -ENOMEM;
	t->bytes = bytes;
	t->room = room;
	return 0;
}

int kvpd_text_put(struct kvpd_text *t, const char *piece)
{
	size_t n = strlen(piece);
	int r = make_room(t, n);

	if (r < 0)
		return r;
	memcpy(t->bytes + t->n, piece, n);
	t->n += n;
	return 0;
}

int kvpd_text_json(struct kvpd_text *t, const json_t *json)
{
	size_t need = json ? json_dumpb(json, NULL, 0, DUMP) : 0;
	int r = need ? make_room(t, need) : -ENOMEM;

	if (r < 0)
		return r;
	if (json_dumpb(json, t->bytes + t->n, need, DUMP) != need)
		return -ENOMEM;
	t->n += need;
	return 0;
}

void kvpd_text_fini(struct kvpd_text *t)
{
	free(t->bytes);
	*t = (struct kvpd_text){ 0 };
}
