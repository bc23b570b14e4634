/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibrations that the floor kvquant needs (kernels/kvp_nuq.h): the files of one folder, read when the daemon begins, and
 * constant from then on. A space takes the first one, by name, that is right for it (payload/kvp_payload.h), and its clients get
 * the same bytes as a sealed memfd, with which they decode.
 *
 * Files are believed nothing. Names are up to 63 letters, digits, '.', '-' and '_', the first one no '.'; a file is a regular one of
 * at most KVP_CALIBRATION_BYTES, and all that are taken have at most KVPD_CALIBS_BYTES together and are KVPD_CALIBS at most, the
 * first ones by name. What is beyond that, or no calibration, is left out, with a sentence in the log.
 */
#ifndef KVPD_CALIBS_H
#define KVPD_CALIBS_H

#include <stdint.h>

#include "payload/kvp_payload.h"
#include "shm/kvp_proto.h"

#define KVPD_CALIBS       64u
#define KVPD_CALIBS_BYTES (UINT64_C(64) << 20)
#define KVPD_CALIBS_NAME  64u /* with its NUL */

struct kvpd_calib {
	char name[KVPD_CALIBS_NAME]; /* of the file */
	struct kvp_nuq_set *set;
	int fd;          /* what clients get */
	uint64_t digest; /* of the file's bytes */
};

struct kvpd_calibs {
	uint32_t n;
	uint64_t bytes;
	struct kvpd_calib at[KVPD_CALIBS]; /* by name */
};

/* folder: NULL: there is none. Still privileged. -ENOMEM; all else is only said in the log. */
int kvpd_calibs_new(const char *folder, struct kvpd_calibs **ret_calibs);
struct kvpd_calibs *kvpd_calibs_free(struct kvpd_calibs *calibs);

/*
 * The one for such a space; any thread. NULL: there is none, and *ret_why says in a sentence that lives for ever what would have
 * been needed.
 */
const struct kvpd_calib *kvpd_calibs_find(const struct kvpd_calibs *calibs,
	const struct kvp_space_canon *canon, const char **ret_why);

#endif
