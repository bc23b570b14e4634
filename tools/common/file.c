/* SPDX-License-Identifier: Apache-2.0 */
/* Replacing a file: a new one beside it, synchronised, takes its name. */
#include "tools/common/kvt_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int write_all(int fd, const char *buf, size_t size)
{
	while (size) {
		ssize_t n = write(fd, buf, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		buf += n;
		size -= (size_t)n;
	}
	return fsync(fd) < 0 ? -errno : 0;
}

/* A name is on the disk when its folder is. */
static int sync_folder(const char *path)
{
	char copy[PATH_MAX];
	int fd, r = 0;

	snprintf(copy, sizeof(copy), "%s", path);
	fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fsync(fd) < 0)
		r = -errno;
	close(fd);
	return r;
}

int kvt_file_replace(const char *path, const void *buf, size_t size)
{
	char temporary[PATH_MAX];
	mode_t mask = umask(0);
	int fd, r;

	umask(mask);
	if (snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path) >= (int)sizeof(temporary))
		return -ENAMETOOLONG;
	fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	r = write_all(fd, buf, size);
	if (r == 0 && fchmod(fd, 0666 & ~mask) < 0)
		r = -errno;
	if (close(fd) < 0 && r == 0)
		r = -errno;
	if (r == 0 && rename(temporary, path) < 0)
		r = -errno;
	if (r < 0) {
		unlink(temporary);
		return r;
	}
	return sync_folder(path);
}

int kvt_file_read(const char *path, size_t most, void **ret_buf, size_t *ret_size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), r = 0;
	char *buf;
	size_t size = 0;

	if (fd < 0)
		return -errno;
	buf = malloc(most + 1);
	if (!buf)
		r = -ENOMEM;
	while (r == 0 && size <= most) {
		ssize_t n = read(fd, buf + size, most + 1 - size);

		if (n < 0 && errno != EINTR)
			r = -errno;
		if (n == 0)
			break;
		size += n > 0 ? (size_t)n : 0;
	}
	close(fd);
	if (r == 0 && size > most)
		r = -EFBIG;
	if (r < 0) {
		free(buf);
		return r;
	}
	*ret_buf = buf;
	*ret_size = size;
	return 0;
}
