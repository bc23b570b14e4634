/* SPDX-License-Identifier: Apache-2.0 */
/* Reading regular files whose size is bounded beforehand. */
#ifndef KVR_FILE_H
#define KVR_FILE_H

#include "tools/kvrun/kvr_error.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Opens `path` for reading, close-on-exec. Anything but a regular file is -EINVAL, so that a FIFO
 * or a device cannot stall or feed us without end. The caller closes the descriptor.
 */
int kvr_file_open(const char *path, struct kvr_error *err, int *ret_fd, uint64_t *ret_bytes);

/* Reads exactly `bytes` bytes from the current position. A file that ends earlier is -EINVAL. */
int kvr_file_read(int fd, const char *path, void *buf, size_t bytes, struct kvr_error *err);

/*
 * The whole file in a fresh buffer, with a NUL behind it that `ret_bytes` does not count; free()
 * it. A file larger than `max` is -EFBIG.
 */
int kvr_file_load(
	const char *path, size_t max, struct kvr_error *err, char **ret_data, size_t *ret_bytes);

#endif
