/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of cold bytes, which nobody reads soon: around the caches where that pays. */
#ifndef KVPD_STREAM_H
#define KVPD_STREAM_H

#include <stdint.h>

/* dst and src at multiples of 64; they do not overlap. Visible to other threads after a release. */
void kvpd_stream_copy(void *dst, const void *src, uint64_t bytes);

#endif
