/* SPDX-License-Identifier: Apache-2.0 */
/* Hit ratios against capacity as SVG, without a plotting program. */
#include "tools/kvreplay/plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

#define WIDTH    760.0
#define HEIGHT   460.0
#define LEFT     60.0
#define RIGHT    150.0
#define TOP      40.0
#define BOTTOM   50.0
#define N_COLORS (sizeof(colors) / sizeof(colors[0]))
#define N_DASHES (sizeof(dashes) / sizeof(dashes[0]))
#define X_LABEL  52.0 /* room that a number below the axis needs */

/* Few, so that colour-blind readers can tell them apart; dashes for more series. */
static const char *const colors[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
	"#333333" };
static const char *const dashes[] = { "none", "7 3", "2 3" };

struct axes {
	double x0, x1; /* logarithms */
	double y1;
};

static double at_x(const struct axes *a, double x)
{
	double span = a->x1 > a->x0 ? a->x1 - a->x0 : 1;
	return LEFT + (log10(x) - a->x0) / span * (WIDTH - LEFT - RIGHT);
}

static double at_y(const struct axes *a, double y)
{
	return HEIGHT - BOTTOM - y / a->y1 * (HEIGHT - TOP - BOTTOM);
}

/* A file's name may hold any byte; XML takes none below the space. */
static void put_text(FILE *f, double x, double y, const char *anchor, const char *text)
{
	fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
	for (; *text; text++) {
		if (*text == '<')
			fputs("&lt;", f);
		else if (*text == '&')
			fputs("&amp;", f);
		else if ((unsigned char)*text < ' ')
			fputc('?', f);
		else
			fputc(*text, f);
	}
	fputs("</text>\n", f);
}

static const char *dash_of(size_t series)
{
	return dashes[series / N_COLORS % N_DASHES];
}

static void put_axes(FILE *f, const struct axes *a, size_t n_x, const double *x)
{
	double last = -X_LABEL;
	char text[32];

	for (int i = 0; i <= 5; i++) {
		double y = a->y1 * i / 5;
		fprintf(f,
			"<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n",
			LEFT, at_y(a, y), WIDTH - RIGHT, at_y(a, y));
		snprintf(text, sizeof(text), "%.2f", y);
		put_text(f, LEFT - 8, at_y(a, y) + 4, "end", text);
	}
	for (size_t i = 0; i < n_x; i++) {
		fprintf(f,
			"<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#eee\"/>\n",
			at_x(a, x[i]), TOP, at_x(a, x[i]), HEIGHT - BOTTOM);
		if (at_x(a, x[i]) - last < X_LABEL)
			continue;
		last = at_x(a, x[i]);
		snprintf(text, sizeof(text), "%.10g", x[i]);
		put_text(f, last, HEIGHT - BOTTOM + 18, "middle", text);
	}
}

static void put_series(
	FILE *f, const struct axes *a, size_t n_x, const double *x, const double *y, size_t s)
{
	const char *color = colors[s % N_COLORS];

	fprintf(f,
		"<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" "
		"stroke-dasharray=\"%s\" points=\"",
		color, dash_of(s));
	for (size_t i = 0; i < n_x; i++)
		if (y[i] >= 0)
			fprintf(f, "%.1f,%.1f ", at_x(a, x[i]), at_y(a, y[i]));
	fputs("\"/>\n", f);
	for (size_t i = 0; i < n_x; i++)
		if (y[i] >= 0)
			fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n",
				at_x(a, x[i]), at_y(a, y[i]), color);
}

int plot_write(const char *path, const char *title, const char *x_label, size_t n_x,
	const double *x, size_t n_series, const char *const *names, const double *y)
{
	struct axes a = { .x0 = log10(x[0]), .x1 = log10(x[n_x - 1]), .y1 = 0.05 };
	FILE *f = fopen(path, "we");

	if (!f)
		return -errno;
	for (size_t i = 0; i < n_x * n_series; i++)
		while (y[i] > a.y1 && a.y1 < 1)
			a.y1 += 0.05;
	fprintf(f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
		"font-family=\"sans-serif\" font-size=\"12\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
		WIDTH, HEIGHT);
	put_text(f, (LEFT + WIDTH - RIGHT) / 2, TOP - 22, "middle", title);
	put_text(f, LEFT - 40, TOP - 14, "start", "hit ratio");
	put_text(f, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "middle", x_label);
	put_axes(f, &a, n_x, x);
	for (size_t s = 0; s < n_series; s++) {
		double row = TOP + 10 + 18 * (double)s;
		put_series(f, &a, n_x, x, y + s * n_x, s);
		fprintf(f,
			"<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
			"stroke-width=\"2\" stroke-dasharray=\"%s\"/>\n",
			WIDTH - RIGHT + 14, row, WIDTH - RIGHT + 38, row, colors[s % N_COLORS],
			dash_of(s));
		put_text(f, WIDTH - RIGHT + 44, row + 4, "start", names[s]);
	}
	fputs("</svg>\n", f);
	int bad = ferror(f);
	return fclose(f) || bad ? -EIO : 0;
}
