/* SPDX-License-Identifier: Apache-2.0 */
/* Files of calibrations: found, read and sealed. */
#include "daemon/ledger/calibs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/dataplane.h"
#include "daemon/ledger/ledger.h"
#include "daemon/log.h"
#include "shm/kvp_catalog.h"
#include "shm/kvp_seg.h"

#define NAMES_MOST 4096u /* that are looked at */

static int name_good(const char *name)
{
	static const char good[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";

	return name[0] != '.' && strlen(name) < KVPD_CALIBS_NAME &&
	       strspn(name, good) == strlen(name);
}

/* ---- one file -------------------------------------------------------------------------------- */

static int read_all(int fd, uint8_t *data, size_t bytes)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t n = pread(fd, data + at, bytes - at, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EBADMSG;
		at += (size_t)n;
	}
	return 0;
}

/* What is in it, of which the copy is what counts from then on. *ret_why: a word or two where errno says nothing. */
static int take_data(int fd, struct kvpd_calibs *c, struct kvpd_calib *into, const char **ret_why)
{
	struct stat st;
	uint8_t *data;
	int r;

	if (fstat(fd, &st) < 0)
		return -errno;
	*ret_why = "it is no regular file";
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	*ret_why = "it is empty";
	if (st.st_size <= 0)
		return -EINVAL;
	*ret_why = "it is too large, or all of them together are";
	if (st.st_size > (off_t)KVP_CALIBRATION_BYTES ||
		c->bytes + (uint64_t)st.st_size > KVPD_CALIBS_BYTES)
		return -EINVAL;
	*ret_why = NULL;
	data = malloc((size_t)st.st_size);
	if (!data)
		return -ENOMEM;
	r = read_all(fd, data, (size_t)st.st_size);
	if (r == 0) {
		r = kvp_nuq_set_new(data, (size_t)st.st_size, &into->set);
		*ret_why = r == -EBADMSG ? "it is no calibration of kvquant, or a damaged one"
			   : r == -EPROTONOSUPPORT ? "it is a calibration of another version"
						   : NULL;
	}
	if (r == 0)
		r = kvp_seg_sealed("kvpool-calibration", data, (size_t)st.st_size, &into->fd);
	if (r == 0) {
		into->digest = kvp_payload_checksum(data, (size_t)st.st_size);
		c->bytes += (uint64_t)st.st_size;
	}
	free(data);
	return r;
}

static void take(struct kvpd_calibs *c, const char *folder, int dir, const char *name)
{
	struct kvpd_calib *into = &c->at[c->n];
	const char *why = NULL;
	/* Nobody waits for a pipe or a terminal. */
	kvp_autoclose int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	int r = fd < 0 ? -errno : 0;

	*into = (struct kvpd_calib){ .fd = -1 };
	strcpy(into->name, name);
	if (r == 0)
		r = take_data(fd, c, into, &why);
	if (r < 0) {
		kvpd_warning("`calibrations`: %s/%s is left out: %s", folder, name,
			why ? why : strerror(-r));
		into->set = kvp_nuq_set_free(into->set);
		return;
	}
	kvpd_info("calibration %s/%s: of %s", folder, name, kvp_nuq_set_info(into->set)->model);
	c->n++;
}

/* ---- the folder ------------------------------------------------------------------------------ */

struct names {
	uint32_t n;
	char name[NAMES_MOST][KVPD_CALIBS_NAME];
};

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

static void look(const char *folder, DIR *dir, struct names *names)
{
	const struct dirent *d;

	while ((d = readdir(dir))) {
		if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
			continue;
		if (names->n == NAMES_MOST) {
			kvpd_warning("`calibrations`: of %s only %u files are looked at", folder,
				NAMES_MOST);
			break;
		}
		if (!name_good(d->d_name)) {
			kvpd_warning("`calibrations`: a file in %s is left out: its name has other "
				     "than 63 letters, digits, '.', '-' and '_' at most",
				folder);
			continue;
		}
		strcpy(names->name[names->n++], d->d_name);
	}
	qsort(names->name, names->n, sizeof(names->name[0]), by_name);
}

/* By name, whatever the order in which the folder has them: the same ones each time. */
static void take_all(struct kvpd_calibs *c, const char *folder, int dir, const struct names *names)
{
	uint32_t i = 0;

	for (; i < names->n && c->n < KVPD_CALIBS; i++)
		take(c, folder, dir, names->name[i]);
	if (i < names->n)
		kvpd_warning("`calibrations`: %s/%s and what follows it are left out: there are %u "
			     "others",
			folder, names->name[i], KVPD_CALIBS);
}

int kvpd_calibs_new(const char *folder, struct kvpd_calibs **ret_calibs)
{
	struct kvpd_calibs *c = calloc(1, sizeof(*c));
	struct names *names = calloc(1, sizeof(*names));
	DIR *dir = NULL;

	if (!c || !names) {
		free(c);
		free(names);
		return -ENOMEM;
	}
	if (folder && !(dir = opendir(folder)))
		kvpd_warning("`calibrations`: %s: %s; no space can have the floor kvquant", folder,
			strerror(errno));
	if (dir) {
		look(folder, dir, names);
		take_all(c, folder, dirfd(dir), names);
		(void)closedir(dir);
	}
	free(names);
	*ret_calibs = c;
	return 0;
}

struct kvpd_calibs *kvpd_calibs_free(struct kvpd_calibs *c)
{
	for (uint32_t i = 0; c && i < c->n; i++) {
		kvp_nuq_set_free(c->at[i].set);
		close(c->at[i].fd);
	}
	free(c);
	return NULL;
}

const struct kvpd_calib *kvpd_calibs_find(
	const struct kvpd_calibs *c, const struct kvp_space_canon *canon, const char **ret_why)
{
	const char *why = "there is none of this model in the folder `calibrations`";

	for (uint32_t i = 0; i < c->n; i++) {
		const struct kvp_nuq_info *info = kvp_nuq_set_info(c->at[i].set);
		const char *wrong = kvp_payload_calib_wrong(canon, c->at[i].set);

		if (!wrong)
			return &c->at[i];
		if (strncmp(canon->model, info->model, KVP_NUQ_NAME_MAX - 1) == 0)
			why = wrong;
	}
	*ret_why = why;
	return NULL;
}

bool kvpd_space_calibrated(const struct kvp_space_canon *canon)
{
	return kvp_payload_calibrated(canon) != 0;
}

/* On the control thread: nothing of this ever changes. */
int kvpd_space_calibration(const struct kvpd_ledger *l, const struct kvp_space_canon *canon)
{
	const struct kvpd_calib *c;
	const char *why;

	if (!kvp_payload_calibrated(canon))
		return -1;
	c = kvpd_calibs_find(l->calibs, canon, &why);
	return c ? c->fd : -1;
}
