/* SPDX-License-Identifier: Apache-2.0 */
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

static const char *const colors[] = { "#1b6ca8", "#d1495b", "#66a182", "#edae49", "#8d6a9f",
	"#4b4e6d", "#00a6a6", "#b56576", "#6b705c", "#e76f51", "#2a9d8f", "#9a031e" };

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

static void put_text(FILE *f, double x, double y, const char *anchor, const char *text)
{
	fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
	for (; *text; text++) {
		if (*text == '<')
			fputs("&lt;", f);
		else if (*text == '&')
			fputs("&amp;", f);
		else
			fputc(*text, f);
	}
	fputs("</text>\n", f);
}

static void put_axes(FILE *f, const struct axes *a, size_t n_x, const double *x)
{
	char text[32];

	for (int i = 0; i <= 5; i++) {
		double y = a->y1 * i / 5;
		fprintf(f,
			"<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n",
			LEFT, at_y(a, y), WIDTH - RIGHT, at_y(a, y));
		snprintf(text, sizeof(text), "%.3f", y);
		put_text(f, LEFT - 8, at_y(a, y) + 4, "end", text);
	}
	for (size_t i = 0; i < n_x; i++) {
		fprintf(f,
			"<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#eee\"/>\n",
			at_x(a, x[i]), TOP, at_x(a, x[i]), HEIGHT - BOTTOM);
		snprintf(text, sizeof(text), "%.6g", x[i]);
		put_text(f, at_x(a, x[i]), HEIGHT - BOTTOM + 18, "middle", text);
	}
}

static void put_series(
	FILE *f, const struct axes *a, size_t n_x, const double *x, const double *y, size_t s)
{
	const char *color = colors[s % N_COLORS];

	fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", color,
		s >= N_COLORS ? " stroke-dasharray=\"6 3\"" : "");
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
	put_text(f, LEFT, TOP - 16, "start", title);
	put_text(f, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "middle", x_label);
	put_axes(f, &a, n_x, x);
	for (size_t s = 0; s < n_series; s++) {
		double row = TOP + 10 + 18 * (double)s;
		put_series(f, &a, n_x, x, y + s * n_x, s);
		fprintf(f,
			"<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
			"stroke-width=\"2\"%s/>\n",
			WIDTH - RIGHT + 14, row, WIDTH - RIGHT + 34, row, colors[s % N_COLORS],
			s >= N_COLORS ? " stroke-dasharray=\"6 3\"" : "");
		put_text(f, WIDTH - RIGHT + 40, row + 4, "start", names[s]);
	}
	fputs("</svg>\n", f);
	int bad = ferror(f);
	return fclose(f) || bad ? -EIO : 0;
}
