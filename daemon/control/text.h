/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of an answer, JSON that is written piece by piece and sent likewise. It grows by a chunk
 * at a time: nothing is copied again because it became long, and what was sent is freed.
 */
#ifndef KVPD_TEXT_H
#define KVPD_TEXT_H

#include <jansson.h>
#include <stddef.h>

#define KVPD_TEXT_MAX   (64u << 20) /* bytes of one answer */
#define KVPD_TEXT_CHUNK 32704u      /* with what the heap adds, less than 32 KiB */

struct kvpd_text_chunk {
	struct kvpd_text_chunk *next;
	size_t n;
	char bytes[KVPD_TEXT_CHUNK];
};

/* Zeroed before the first use. */
struct kvpd_text {
	struct kvpd_text_chunk *first, *last; /* none is empty */
	size_t n;                             /* bytes that were put */
};

/* -EMSGSIZE: it would become too long; -ENOMEM. Some of the piece may have been put then. */
int kvpd_text_put(struct kvpd_text *text, const char *piece);
int kvpd_text_json(struct kvpd_text *text, const json_t *json);
/* The members of an object, and its end: they follow others, which the text has already. */
int kvpd_text_members(struct kvpd_text *text, const json_t *object);
/* Frees the first chunk, of which there has to be one. */
void kvpd_text_drop(struct kvpd_text *text);
void kvpd_text_fini(struct kvpd_text *text);

#endif
