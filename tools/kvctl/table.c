/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvctl/kvctl.h"

#include <stdlib.h>
#include <string.h>

#define MAX_COLUMNS 24
#define CELL        160

double kvctl_number(const json_t *object, const char *key)
{
	return json_number_value(json_object_get(object, key));
}

const char *kvctl_text(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

const char *kvctl_bytes(double bytes, char *buf)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	unsigned u = 0;

	while (bytes >= 1024 && u < 4) {
		bytes /= 1024;
		u++;
	}
	snprintf(buf, 32, u && bytes < 100 ? "%.1f %s" : "%.0f %s", bytes, units[u]);
	return buf;
}

const char *kvctl_duration(double seconds, char *buf)
{
	if (seconds < 1)
		snprintf(buf, 32, "%.0f ms", seconds * 1e3);
	else if (seconds < 60)
		snprintf(buf, 32, "%.0f s", seconds);
	else if (seconds < 3600)
		snprintf(buf, 32, "%d min %d s", (int)seconds / 60, (int)seconds % 60);
	else if (seconds < 86400)
		snprintf(buf, 32, "%d h %d min", (int)seconds / 3600, (int)seconds / 60 % 60);
	else
		snprintf(buf, 32, "%.0f d %d h", seconds / 86400 - 0.5, (int)(seconds / 3600) % 24);
	return buf;
}

static void cell(const json_t *row, const struct kvctl_column *c, char out[CELL])
{
	const json_t *v = json_object_get(row, c->key);

	out[0] = 0;
	switch (c->kind) {
	case KVCTL_TEXT:
		snprintf(out, CELL, "%s", kvctl_text(row, c->key));
		break;
	case KVCTL_KEY:
		snprintf(out, CELL, "%.16s", kvctl_text(row, c->key));
		break;
	case KVCTL_COUNT:
		if (json_is_number(v))
			snprintf(out, CELL, "%.0f", json_number_value(v));
		break;
	case KVCTL_BYTES:
		kvctl_bytes(json_number_value(v), out);
		break;
	case KVCTL_MS:
		kvctl_duration(json_number_value(v) / 1e3, out);
		break;
	case KVCTL_FLAG:
		snprintf(out, CELL, "%s", json_is_true(v) ? "yes" : "");
		break;
	}
}

static bool is_left(enum kvctl_kind kind)
{
	return kind == KVCTL_TEXT || kind == KVCTL_KEY || kind == KVCTL_FLAG;
}

static void put(FILE *to, const char *text, int width, bool left, bool last)
{
	if (left)
		fprintf(to, "%-*s", last ? 0 : width, text);
	else
		fprintf(to, "%*s", width, text);
	fputs(last ? "\n" : "  ", to);
}

void kvctl_print_table(
	FILE *to, const json_t *rows, const struct kvctl_column *columns, const char *none)
{
	int width[MAX_COLUMNS], n = 0;
	char text[CELL];
	const json_t *row;
	size_t i;

	if (!json_array_size(rows)) {
		fprintf(to, "%s\n", none);
		return;
	}
	while (n < MAX_COLUMNS && columns[n].key) {
		width[n] = (int)strlen(columns[n].title);
		n++;
	}
	json_array_foreach(rows, i, row)
		for (int c = 0; c < n; c++) {
			cell(row, &columns[c], text);
			if ((int)strlen(text) > width[c])
				width[c] = (int)strlen(text);
		}
	for (int c = 0; c < n; c++)
		put(to, columns[c].title, width[c], is_left(columns[c].kind), c == n - 1);
	json_array_foreach(rows, i, row)
		for (int c = 0; c < n; c++) {
			cell(row, &columns[c], text);
			put(to, text, width[c], is_left(columns[c].kind), c == n - 1);
		}
}
