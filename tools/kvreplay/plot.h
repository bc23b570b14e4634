/* SPDX-License-Identifier: Apache-2.0 */
/* A line plot in SVG: capacity on a logarithmic axis, hit ratio above it. */
#ifndef KVREPLAY_PLOT_H
#define KVREPLAY_PLOT_H

#include <stddef.h>

/*
 * y[s * n_x + i] is the value of series s at x[i]; x is positive and ascending, y in 0..1, a
 * negative y is left out. `title` and names may hold any text. 0, or -errno of the file.
 */
int plot_write(const char *path, const char *title, const char *x_label, size_t n_x,
	const double *x, size_t n_series, const char *const *names, const double *y);

#endif
