/* SPDX-License-Identifier: Apache-2.0 */
/* How a tool ends when standard output cannot be written. */
#ifndef KVT_OUTPUT_H
#define KVT_OUTPUT_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

/*
 * What a tool exits with, once all is printed: `status`, or `bad` if it is 0 and standard output
 * did not take everything. A full disk must not pass for a result.
 */
static inline int kvt_written(const char *tool, int status, int bad)
{
	if (!fflush(stdout) && !ferror(stdout))
		return status;
	fprintf(stderr, "%s: cannot write the result: %s\n", tool, strerror(errno));
	return status ? status : bad;
}

#endif
