/* SPDX-License-Identifier: Apache-2.0 */
/* Brings pages of shared memory into a mapping, step by step. */
#include "daemon/device/populate.h"

#include <errno.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

int kvpd_populate(void *addr, uint64_t bytes, bool writable, uint64_t *at)
{
	uint64_t n = bytes - *at < KVPD_POPULATE_STEP ? bytes - *at : KVPD_POPULATE_STEP;

	if (n && madvise((char *)addr + *at, n,
			 writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) < 0) {
		if (errno == EINTR)
			return -EAGAIN;
		if (errno == EINVAL)
			n = bytes - *at;
		else
			return -ENOMEM;
	}
	*at += n;
	return *at == bytes ? 0 : -EAGAIN;
}
