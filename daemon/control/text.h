/* SPDX-License-Identifier: Apache-2.0 */
/* The text of an answer, JSON that is written piece by piece. */
#ifndef KVPD_TEXT_H
#define KVPD_TEXT_H

#include <jansson.h>
#include <stddef.h>

#define KVPD_TEXT_MAX (64u << 20) /* bytes of one answer */

/* Zeroed before the first use. */
struct kvpd_text {
	char *bytes; /* malloc */
	size_t n, room;
};

/* -EMSGSIZE: it would become too long; -ENOMEM. The text is as it was then. */
int kvpd_text_put(struct kvpd_text *text, const char *piece);
int kvpd_text_json(struct kvpd_text *text, const json_t *json);
void kvpd_text_fini(struct kvpd_text *text);

#endif
