/* SPDX-License-Identifier: Apache-2.0 */
/* Answers as a person reads them: aligned tables that fit the terminal, sizes with units. */
#include "tools/kvctl/kvctl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>
#include <wctype.h>

#define MAX_COLUMNS 24
#define CELL        256
#define GAP         2
#define LEAST_TEXT  8  /* columns that a text keeps where room is short ... */
#define SOME_TEXT   20 /* ... and before anything is left out for it */

/* A number beyond 2^53 comes as a string. */
double kvctl_number(const json_t *object, const char *key)
{
	const json_t *v = json_object_get(object, key);

	return json_is_string(v) ? strtod(json_string_value(v), NULL) : json_number_value(v);
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

	while (fabs(bytes) >= 1024 && u < 4) {
		bytes /= 1024;
		u++;
	}
	snprintf(buf, 32, u && fabs(bytes) < 10 ? "%.1f %s" : "%.0f %s", bytes, units[u]);
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

const char *kvctl_rate(double rate, char *buf)
{
	snprintf(buf, 32, rate < 10 && rate > 0 ? "%.1f" : "%.0f", rate);
	return buf;
}

/* ---- the terminal -------------------------------------------------------------------------- */

static bool terminal(struct winsize *ret_size)
{
	return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, ret_size) == 0;
}

int kvctl_terminal_lines(void)
{
	struct winsize size;

	return terminal(&size) ? size.ws_row : 0;
}

/* Columns that a line may take; 0: as many as it likes. */
static int room(void)
{
	const char *env = getenv("COLUMNS");
	int columns = env ? atoi(env) : 0;
	struct winsize size;

	if (columns > 0)
		return columns;
	return terminal(&size) ? size.ws_col : 0;
}

int kvctl_printable(const char *text, int columns, char *out, size_t bytes)
{
	size_t used = 0, cut = 0;
	int width = 0, cut_width = 0;

	while (*text) {
		mbstate_t state = { 0 };
		size_t n, left = strlen(text);
		wchar_t c;
		int w;

		n = mbrtowc(&c, text, left, &state);
		if (!n || n > left) /* no character of this locale's */
			n = 1, c = 0;
		/* Characters without a width can turn the line around. */
		w = iswprint((wint_t)c) && wcwidth(c) > 0 ? wcwidth(c) : -1;
		/* The mark would stand here if the next character had no room. */
		if (width + 1 <= columns && used + 2 <= bytes) {
			cut = used;
			cut_width = width;
		}
		if (width + (w < 0 ? 1 : w) > columns || used + n + 1 > bytes) {
			out[cut] = '~';
			used = cut + 1;
			width = cut_width + 1;
			break;
		}
		if (w < 0)
			out[used++] = '?';
		else
			memcpy(out + used, text, n);
		used += w < 0 ? 0 : n;
		width += w < 0 ? 1 : w;
		text += n;
	}
	out[used] = 0;
	return width;
}

/* ---- tables -------------------------------------------------------------------------------- */

struct table {
	const struct kvctl_column *column[MAX_COLUMNS];
	int width[MAX_COLUMNS];
	int n;
};

static bool whole(double x)
{
	return x < -1e15 || x > 1e15 || x == (double)(int64_t)x;
}

static void cell_text(const json_t *row, const struct kvctl_column *c, char out[CELL])
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
		if (json_is_string(v))
			snprintf(out, CELL, "%s", json_string_value(v));
		else if (json_is_number(v))
			snprintf(out, CELL, whole(json_number_value(v)) ? "%.0f" : "%.1f",
				json_number_value(v));
		break;
	case KVCTL_BYTES:
		if (v)
			kvctl_bytes(kvctl_number(row, c->key), out);
		break;
	case KVCTL_RATE:
		if (json_is_number(v))
			kvctl_rate(json_number_value(v), out);
		break;
	case KVCTL_SECONDS:
		kvctl_duration(json_number_value(v), out);
		break;
	case KVCTL_PERCENT:
		if (json_is_number(v))
			snprintf(out, CELL, "%.1f", 100 * json_number_value(v));
		break;
	case KVCTL_FLAG:
		snprintf(out, CELL, "%s", json_is_true(v) ? "yes" : "");
		break;
	}
}

/* Returns the columns that it takes. */
static int cell(const json_t *row, const struct kvctl_column *c, int width, char out[CELL])
{
	char text[CELL];

	cell_text(row, c, text);
	return kvctl_printable(text, width, out, CELL);
}

static bool is_left(enum kvctl_kind kind)
{
	return kind == KVCTL_TEXT || kind == KVCTL_KEY || kind == KVCTL_FLAG;
}

/* A figure that no row has gets no column: the rate of an interval in the first view, for one. */
static bool is_there(const json_t *rows, const struct kvctl_column *c)
{
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row) {
		if (json_object_get(row, c->key))
			return true;
	}
	return false;
}

static void measure(struct table *t, const json_t *rows, const struct kvctl_column *columns)
{
	const json_t *row;
	char text[CELL];
	size_t i;

	t->n = 0;
	for (const struct kvctl_column *c = columns; c->key && t->n < MAX_COLUMNS; c++) {
		if (c->rank && !is_there(rows, c))
			continue;
		t->column[t->n] = c;
		t->width[t->n++] = (int)strlen(c->title);
	}
	json_array_foreach(rows, i, row) {
		for (int c = 0; c < t->n; c++) {
			int w = cell(row, t->column[c], CELL, text);

			if (w > t->width[c])
				t->width[c] = w;
		}
	}
}

static int total(const struct table *t)
{
	int sum = GAP * (t->n - 1);

	for (int c = 0; c < t->n; c++)
		sum += t->width[c];
	return sum;
}

/* Takes columns off the widest text, down to `least`; false if no text is wider than that. */
static bool shorten(struct table *t, int least)
{
	int widest = -1;

	for (int c = 0; c < t->n; c++)
		if (t->column[c]->kind == KVCTL_TEXT && t->width[c] > least &&
			t->width[c] > (int)strlen(t->column[c]->title) &&
			(widest < 0 || t->width[c] > t->width[widest]))
			widest = c;
	if (widest >= 0)
		t->width[widest]--;
	return widest >= 0;
}

/* Leaves out the column of the highest rank, the last one of several; false if all must stay. */
static bool leave_out(struct table *t, char *names, size_t bytes)
{
	int highest = 0, at = -1;
	size_t used = strlen(names);

	for (int c = 0; c < t->n; c++)
		if (t->column[c]->rank && t->column[c]->rank >= highest) {
			highest = t->column[c]->rank;
			at = c;
		}
	if (at < 0)
		return false;
	snprintf(names + used, bytes - used, "%s%s", used ? ", " : "", t->column[at]->title);
	t->n--;
	memmove(&t->column[at], &t->column[at + 1], (size_t)(t->n - at) * sizeof(t->column[0]));
	memmove(&t->width[at], &t->width[at + 1], (size_t)(t->n - at) * sizeof(t->width[0]));
	return true;
}

static void fit(struct table *t, int columns, char *names, size_t bytes)
{
	while (total(t) > columns && shorten(t, SOME_TEXT))
		;
	while (total(t) > columns && leave_out(t, names, bytes))
		;
	while (total(t) > columns && shorten(t, LEAST_TEXT))
		;
}

/* `width`: of the column; `takes`: of the text. Nothing follows the last one. */
static void put(FILE *to, const char *text, int takes, int width, bool left, bool last)
{
	int blank = width - takes;

	fprintf(to, "%*s%s", left ? 0 : blank, "", text);
	if (last)
		fputc('\n', to);
	else
		fprintf(to, "%*s", (left ? blank : 0) + GAP, "");
}

void kvctl_print_table(
	FILE *to, const json_t *rows, const struct kvctl_column *columns, const char *none)
{
	char text[CELL], names[CELL] = "";
	struct table t;
	const json_t *row;
	size_t i;

	if (!json_array_size(rows)) {
		fprintf(to, "%s\n", none);
		return;
	}
	measure(&t, rows, columns);
	if (room())
		fit(&t, room(), names, sizeof(names));
	for (int c = 0; c < t.n; c++)
		put(to, t.column[c]->title, (int)strlen(t.column[c]->title), t.width[c],
			is_left(t.column[c]->kind), c == t.n - 1);
	json_array_foreach(rows, i, row) {
		for (int c = 0; c < t.n; c++) {
			int takes = cell(row, t.column[c], t.width[c], text);

			put(to, text, takes, t.width[c], is_left(t.column[c]->kind), c == t.n - 1);
		}
	}
	if (*names)
		fprintf(to, "(no room for %s; a wider terminal, or --json, has them)\n", names);
}
