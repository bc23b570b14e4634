/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are there whole or not at all, whatever happens while they are written. */
#ifndef KVT_FILE_H
#define KVT_FILE_H

#include <stddef.h>

/*
 * Replaces the content of `path`, or makes the file (mode 0666 and the umask): who opens it at any
 * time, also after the machine has lost power, reads the old bytes or the new ones. A symbolic link
 * is replaced itself. Negative errno; the old file is there then.
 */
int kvt_file_replace(const char *path, const void *buf, size_t size);

/*
 * The whole of a file of at most `most` bytes, for the caller to free(). -EFBIG: it is larger.
 * Negative errno of open() and read() otherwise.
 */
int kvt_file_read(const char *path, size_t most, void **ret_buf, size_t *ret_size);

#endif
