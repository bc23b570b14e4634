/* SPDX-License-Identifier: Apache-2.0 */
/* Reads regular files whole, or in pieces of a known size. */
#include "tools/kvrun/kvr_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int kvr_file_open(const char *path, struct kvr_error *err, int *ret_fd, uint64_t *ret_bytes)
{
	struct stat st;
	int fd, r;

	/* O_NONBLOCK: opening a FIFO must not wait for its writer; regular files ignore it */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0) {
		r = -errno;
		return kvr_fail(err, r, "%s: %s", path, strerror(-r));
	}
	if (fstat(fd, &st) < 0) {
		r = -errno;
		close(fd);
		return kvr_fail(err, r, "%s: %s", path, strerror(-r));
	}
	if (!S_ISREG(st.st_mode)) {
		close(fd);
		return kvr_fail(err, -EINVAL, "%s: not a regular file", path);
	}
	*ret_fd = fd;
	*ret_bytes = (uint64_t)st.st_size;
	return 0;
}

int kvr_file_read(int fd, const char *path, void *buf, size_t bytes, struct kvr_error *err)
{
	char *p = buf;

	while (bytes > 0) {
		ssize_t n = read(fd, p, bytes);
		int r = -errno;

		if (n < 0 && r == -EINTR)
			continue;
		if (n < 0)
			return kvr_fail(err, r, "%s: %s", path, strerror(-r));
		if (n == 0)
			return kvr_fail(
				err, -EINVAL, "%s: truncated: %zu bytes are missing", path, bytes);
		p += n;
		bytes -= (size_t)n;
	}
	return 0;
}

int kvr_file_load(
	const char *path, size_t max, struct kvr_error *err, char **ret_data, size_t *ret_bytes)
{
	uint64_t bytes = 0;
	char *data;
	int fd = -1, r;

	r = kvr_file_open(path, err, &fd, &bytes);
	if (r < 0)
		return r;
	if (bytes > max) {
		close(fd);
		return kvr_fail(err, -EFBIG, "%s: %llu bytes, at most %zu are accepted", path,
			(unsigned long long)bytes, max);
	}
	data = malloc((size_t)bytes + 1);
	if (data)
		r = kvr_file_read(fd, path, data, (size_t)bytes, err);
	else
		r = kvr_fail(err, -ENOMEM, "%s: no memory", path);
	close(fd);
	if (r < 0) {
		free(data);
		return r;
	}
	data[bytes] = '\0';
	*ret_data = data;
	*ret_bytes = (size_t)bytes;
	return 0;
}
