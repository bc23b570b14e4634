/* SPDX-License-Identifier: Apache-2.0 */
/* Lookups as clients count them in their pages: figures of theirs, believed for display only. */
#ifndef KVPD_LOOKUPS_H
#define KVPD_LOOKUPS_H

#include <stdint.h>

struct kvpd_lookups {
	uint64_t hits, partial, misses;
	uint64_t tokens_asked, tokens_matched;
};

#endif
