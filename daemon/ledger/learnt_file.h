/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file of what one tenant's quality windows have learnt (quality.h): a SQLite database, TENANT.db in the
 * state folder, with a row for each (model, layer, context length). It is opened for one job and closed after
 * it: nothing of it stays in memory, and who removes the file makes the daemon forget.
 *
 * What is in a file is believed no more than what a client says. It has to be a regular file of this user,
 * that nobody else can write, of at most KVPD_LEARNT_BYTES; SQLite's quick_check has to find nothing wrong; its
 * schema has to be this one, to the letter, with no trigger or view beside it; and every row is checked when it
 * is read. A file of which this does not hold is moved aside as TENANT.db.refused, in place of an earlier one,
 * with a sentence in the log, and the tenant begins anew.
 *
 * A rollback journal with synchronous=EXTRA: what a call that returns 0 has written is on the disk, file, journal
 * and folder; what it had not finished when the process was killed is undone by whoever opens the file next. Any
 * call may wait for the disk as long as that takes. One thread; no state but a handle's.
 *
 * Errors: -EBADMSG: what is there was not good and has been moved aside; -ENOSPC: the disk or the file is full;
 * -EBUSY: another process holds the file; -EACCES, -EIO, -ENOMEM; -EINVAL: rows out of bounds, or a tenant that
 * cannot have a file. Each failure was logged, rate-limited.
 */
#ifndef KVPD_LEARNT_FILE_H
#define KVPD_LEARNT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "policy/kvp_thresholds.h"
#include "shm/kvp_abi.h"

#define KVPD_LEARNT_ALL KVP_MAX_LAYERS /* instead of a layer: the space as a whole */
/*
 * Of one tenant; beyond, guesses go and then what was written longest ago, of what was written at once single layers
 * first.
 */
#define KVPD_LEARNT_ROWS  16384u
#define KVPD_LEARNT_BYTES (UINT64_C(16) << 20)
#define KVPD_LEARNT_ID    33u /* hexadecimal digits and a NUL */
#define KVPD_LEARNT_WHY   192u
#define KVPD_LEARNT_NAME  64u /* of a tenant, with a NUL */

struct kvpd_learnt {
	char id[KVPD_LEARNT_ID];        /* of all by which what coding does to a model may differ */
	char model[KVP_SPACE_NAME + 1]; /* as its engine calls it: for people */
	uint32_t layer;                 /* of the space, from 0; or KVPD_LEARNT_ALL */
	uint32_t context_tokens;        /* a power of two, or 0: not known */
	struct kvp_model_shape shape;
	uint32_t width;  /* that blocks are coded to; policy/kvp_width.h */
	uint32_t origin; /* KVP_ORIGIN_MEASURED or KVP_ORIGIN_INHERITED */
	float quality;   /* mean of the scores, 0 to 1 */
	uint64_t scores; /* in the window */
};

/* Is it within the bounds above? Pure. */
bool kvpd_learnt_good(const struct kvpd_learnt *row);
/* Can a tenant of this name have a file? Pure. */
bool kvpd_learnt_name_good(const char *tenant);
/* The least power of two that is as long; 0 for 0. Pure. */
uint32_t kvpd_learnt_context(uint32_t tokens);

/*
 * The folder, made if it is not there, and given to `owner` if it is empty and root's and this process is: to be
 * called while privileged. *ret_folder: its real path, to be freed. -EINVAL: another user's, root's with something
 * in it, or others may write there; why[KVPD_LEARNT_WHY] says it, as it does for the errors of open(2).
 */
int kvpd_learnt_folder(const char *path, uid_t owner, char *why, char **ret_folder);

struct kvpd_learnt_file;
/* -ENOENT: there is none, and `make` is false. */
int kvpd_learnt_open(
	const char *folder, const char *tenant, bool make, struct kvpd_learnt_file **ret_file);
/* Returns NULL. NULL is harmless. */
struct kvpd_learnt_file *kvpd_learnt_close(struct kvpd_learnt_file *f);

/*
 * Writes these rows, all or none, each in place of the one of the same id, layer and context. A measured row
 * ends what its id had inherited.
 */
int kvpd_learnt_save(struct kvpd_learnt_file *f, const struct kvpd_learnt *rows, size_t n);

/*
 * What a space should begin with, by the rows of layer KVPD_LEARNT_ALL that were measured: of those of this id the
 * one of the nearest context length (kvp_threshold_nearest(); one without, 0, only if there is no other), or where the
 * context is not known (0) that which was
 * written last; else, if a neighbour's will do, of the newest KVPD_LEARNT_NEIGHBOURS rows of other models the nearest
 * (kvp_threshold_bootstrap()), whose width becomes a row with origin INHERITED for this id. Of `want` id, model, shape,
 * context_tokens and width count, this being the lowest that the answer may have. -ENOENT: nothing is known.
 */
#define KVPD_LEARNT_NEIGHBOURS 1024u
int kvpd_learnt_find(struct kvpd_learnt_file *f, const struct kvpd_learnt *want, bool neighbours,
	struct kvpd_learnt *ret_row);

/*
 * All rows, those that were written last first, at most `max`; *ret_rows is to be freed. -E2BIG: there are more.
 */
int kvpd_learnt_read(
	struct kvpd_learnt_file *f, size_t max, struct kvpd_learnt **ret_rows, size_t *ret_n);
/*
 * As kvpd_learnt_save(), of rows from elsewhere, which are sorted. -EEXIST: two are of the same id, layer and
 * context; -ENOSPC also: the file would have more than KVPD_LEARNT_ROWS. Nothing is written then.
 */
int kvpd_learnt_import(struct kvpd_learnt_file *f, struct kvpd_learnt *rows, size_t n);

#endif
