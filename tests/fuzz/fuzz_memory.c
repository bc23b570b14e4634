/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The texts that say how much memory there is, as a container could be shown them: the first byte
 * says where the input is cut into /proc/self/cgroup and mountinfo.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *text(const uint8_t *data, size_t n)
{
	char *t = malloc(n + 1);

	if (!t)
		abort();
	if (n)
		memcpy(t, data, n);
	t[n] = 0;
	return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvpd_group_place place;
	size_t cut;
	char *a, *b;
	uint64_t v;

	if (!size)
		return 0;
	cut = (size - 1) * data[0] / 255;
	a = text(data + 1, cut);
	b = text(data + 1 + cut, size - 1 - cut);
	if (kvpd_memory_place(a, b, &place)) {
		assert(strlen(place.folder) < sizeof(place.folder));
		assert(!strncmp(place.folder, place.mount, strlen(place.mount)));
	}
	(void)kvpd_memory_number(a, &v);
	(void)kvpd_memory_field(b, "MemTotal", &v);
	(void)kvpd_memory_field(b, "total_inactive_file", &v);
	free(a);
	free(b);
	return 0;
}
