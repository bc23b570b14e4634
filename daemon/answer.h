/* SPDX-License-Identifier: Apache-2.0 */
/* How numbers and names stand in JSON answers; docs/admin.md has the rules. Any thread. */
#ifndef KVPD_ANSWER_H
#define KVPD_ANSWER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* A word of any 64 bits is a string: many readers of JSON round numbers beyond 2^53. */
void kvpd_put_word(json_t *o, const char *name, uint64_t v);
/* A count, and a string should it ever be that large. */
void kvpd_put_int(json_t *o, const char *name, uint64_t v);
/* "?" for a name that is not UTF-8. */
void kvpd_put_text(json_t *o, const char *name, const char *v);
/* A time in seconds, which are not whole. */
void kvpd_put_seconds(json_t *o, const char *name, uint64_t ns);
void kvpd_put_bool(json_t *o, const char *name, bool v);

#endif
