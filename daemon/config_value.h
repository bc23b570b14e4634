/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of a configuration, from their text: one place knows units, bounds and words, and says
 * what is wrong and what would be right.
 */
#ifndef KVPD_CONFIG_VALUE_H
#define KVPD_CONFIG_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/config.h"

struct kvpd_yamlpos;

/* Where messages go, and what they say of where in the text a value stands. */
struct kvpd_complaint {
	const char *name;         /* of the text */
	struct kvpd_yamlpos *pos; /* NULL: it has no lines */
	bool one_value;           /* the name says which value it is */
	char *error;
	size_t error_bytes;
};

/* Always -EINVAL. path: where the value stands, like "tenants.1.share"; "" for the whole. */
int kvpd_wrong(struct kvpd_complaint *to, const char *path, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Of a configuration that has been loaded; for as long as it lives. */
struct kvpd_complaint kvpd_config_complaint(
	const struct kvpd_config *config, char *error, size_t error_bytes);

/* "a size, e.g. 512MiB": what belongs where the path leads. */
const char *kvpd_value_wanted(const char *path);

/* "512MiB", as it may stand in a configuration. */
#define KVPD_HUMAN_BYTES 32
const char *kvpd_human(uint64_t bytes, char buf[static KVPD_HUMAN_BYTES]);

/*
 * Each leaves the result as it is if text is NULL: the key is not there. 0, or kvpd_wrong(), or
 * -ENOMEM where a text is copied.
 */
int kvpd_value_size(struct kvpd_complaint *to, const char *path, const char *text, uint64_t min,
	uint64_t max, uint64_t *ret_bytes);
int kvpd_value_number(struct kvpd_complaint *to, const char *path, const char *text, uint64_t min,
	uint64_t max, uint64_t *ret_value);
/* Of a whole, as "0.4" or "40%". */
int kvpd_value_share(struct kvpd_complaint *to, const char *path, const char *text, uint32_t min,
	uint32_t max, uint32_t *ret_millionths);
int kvpd_value_u32(struct kvpd_complaint *to, const char *path, const char *text, uint32_t min,
	uint32_t max, uint32_t *ret_value);
/* One of several words; the first one's value is 0, and so on. */
int kvpd_value_word(struct kvpd_complaint *to, const char *path, const char *text,
	const char *const *words, unsigned *ret_index);
int kvpd_value_bool(struct kvpd_complaint *to, const char *path, const char *text, bool *ret_value);
int kvpd_value_tristate(struct kvpd_complaint *to, const char *path, const char *text,
	enum kvpd_tristate *ret_value);
/* Replaces *ret_text, which is freed. */
int kvpd_value_text(struct kvpd_complaint *to, const char *path, const char *text, char **ret_text);
int kvpd_value_file_name(
	struct kvpd_complaint *to, const char *path, const char *text, char **ret_text);
/* A name that may stand in messages, JSON and file names; text is not NULL. */
int kvpd_value_name(struct kvpd_complaint *to, const char *path, const char *text);
/* Likewise; a user's name is looked up. */
int kvpd_value_uid(struct kvpd_complaint *to, const char *path, const char *text, uid_t *ret_uid);

#endif
