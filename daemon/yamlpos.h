/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where in a YAML text does a key stand? libcyaml reads values but keeps no positions, so that a
 * value which is out of range could not be pointed at. One thread at a time.
 */
#ifndef KVPD_YAMLPOS_H
#define KVPD_YAMLPOS_H

#include <stdbool.h>
#include <stddef.h>

struct kvpd_yamlpos;

/*
 * Reads the text's structure; `data` may go afterwards. -EINVAL: not YAML, or more than one
 * document; *ret_line and ret_problem (a static text) say where and why. -ENOMEM.
 */
int kvpd_yamlpos_new(const char *data, size_t bytes, unsigned *ret_line, const char **ret_problem,
	struct kvpd_yamlpos **ret_pos);
struct kvpd_yamlpos *kvpd_yamlpos_free(struct kvpd_yamlpos *pos);

/*
 * Line (from 1) of the deepest part of `path` that is there; 0 if the text is empty. Path: keys and
 * positions from 0, like "tenants.1.share".
 */
unsigned kvpd_yamlpos_line(struct kvpd_yamlpos *pos, const char *path);

/* Is there nothing where the path leads: a key without a value? */
bool kvpd_yamlpos_empty(struct kvpd_yamlpos *pos, const char *path);

/* Line of the first key of this name, in whatever mapping, at or after line `from`; 0 if none. */
unsigned kvpd_yamlpos_find_key(struct kvpd_yamlpos *pos, const char *key, unsigned from);

#endif
