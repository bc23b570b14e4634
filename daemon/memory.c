/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of the machine and of control groups, read and judged; see memory.h. */
#include "daemon/memory.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define TIB (UINT64_C(1) << 40)

#define SMALL_TEXT (UINT64_C(16) << 10) /* of one file, read at most */
#define LARGE_TEXT (UINT64_C(1) << 20)  /* of mountinfo and of the list of groups */
#define MAX_LEVELS 64u
#define PART_BYTES KVPD_GROUP_PATH /* of a tree's part that is mounted: its path */

/* ---- parsers ------------------------------------------------------------------------------- */

/* Decimal digits at *at, which moves behind them; more than 64 bits count as the most. */
static bool digits(const char **at, uint64_t *ret_value)
{
	const char *c = *at;
	uint64_t v = 0;

	if (!isdigit((unsigned char)*c))
		return false;
	for (; isdigit((unsigned char)*c); c++)
		v = v > (UINT64_MAX - 9) / 10 ? UINT64_MAX : v * 10 + (uint64_t)(*c - '0');
	*at = c;
	*ret_value = v;
	return true;
}

bool kvpd_memory_number(const char *text, uint64_t *ret_value)
{
	uint64_t v = KVPD_NO_LIMIT;

	if (!strncmp(text, "max", 3))
		text += 3;
	else if (!digits(&text, &v))
		return false;
	if (*text && *text != '\n')
		return false;
	*ret_value = v;
	return true;
}

bool kvpd_memory_field(const char *text, const char *name, uint64_t *ret_value)
{
	size_t n = strlen(name);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		const char *at;
		uint64_t v;

		line += *line == '\n';
		if (strncmp(line, name, n))
			continue;
		at = line + n;
		at += *at == ':';
		if (*at != ' ')
			continue;
		at += strspn(at, " ");
		if (!digits(&at, &v))
			return false;
		if (!strncmp(at, " kB", 3))
			v = v > UINT64_MAX / KIB ? UINT64_MAX : v * KIB;
		*ret_value = v;
		return true;
	}
	return false;
}

static bool in_list(const char *list, size_t n, const char *word)
{
	size_t len = strlen(word);

	for (const char *c = list, *end = list + n; c < end; c++) {
		size_t run = 0;

		while (c + run < end && c[run] != ',')
			run++;
		if (run == len && !strncmp(c, word, len))
			return true;
		c += run;
	}
	return false;
}

/* The path of this process's group in the tree with the memory controller, or in version 2's. */
static bool own_path(const char *cgroup, bool v1, char *out, size_t bytes)
{
	/* Lines are NUMBER:CONTROLLERS:PATH. */
	for (const char *line = cgroup; line; line = strchr(line, '\n')) {
		const char *list, *path;
		size_t n;

		line += *line == '\n';
		n = strcspn(line, "\n");
		list = memchr(line, ':', n);
		path = list ? memchr(list + 1, ':', n - (size_t)(list + 1 - line)) : NULL;
		if (!path || (v1 ? !in_list(list + 1, (size_t)(path - list - 1), "memory")
				 : path != list + 1))
			continue;
		n -= (size_t)(path + 1 - line);
		if (n >= bytes || path[1] != '/')
			return false;
		memcpy(out, path + 1, n);
		out[n] = 0;
		return true;
	}
	return false;
}

/* A field of mountinfo, where blanks and the like are written as \040. */
static bool unescape(const char *field, size_t n, char *out, size_t bytes)
{
	size_t used = 0;

	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)field[i];

		if (c == '\\' && n - i > 3) {
			unsigned v = 0;

			for (unsigned k = 1; k <= 3; k++) {
				if (field[i + k] < '0' || field[i + k] > '7')
					return false;
				v = v * 8 + (unsigned)(field[i + k] - '0');
			}
			if (!v || v > 255)
				return false;
			c = (unsigned char)v;
			i += 3;
		}
		if (used + 1 >= bytes)
			return false;
		out[used++] = (char)c;
	}
	out[used] = 0;
	return true;
}

/* Field i (from 0) of a line of n bytes, fields parted by single blanks; its length in *ret_n. */
static const char *field_of(const char *line, size_t n, unsigned i, size_t *ret_n)
{
	const char *end = line + n;

	while (i--) {
		line = memchr(line, ' ', (size_t)(end - line));
		if (!line++)
			return NULL;
	}
	*ret_n = 0;
	while (line + *ret_n < end && line[*ret_n] != ' ')
		++*ret_n;
	return line;
}

/* Does this line of mountinfo mount the tree that is looked for? Then also where, and which part. */
static bool is_mount(const char *line, size_t n, bool v1, struct kvpd_group_place *place,
	char *part, size_t part_bytes)
{
	const char *kind = v1 ? "cgroup" : "cgroup2", *dash = NULL, *type, *options, *root, *mount;
	size_t type_n = 0, options_n = 0, root_n = 0, mount_n = 0;

	for (size_t i = 0; i + 3 <= n && !dash; i++)
		if (!memcmp(line + i, " - ", 3))
			dash = line + i + 3;
	if (!dash)
		return false;
	type = field_of(dash, n - (size_t)(dash - line), 0, &type_n);
	options = field_of(dash, n - (size_t)(dash - line), 2, &options_n);
	root = field_of(line, n, 3, &root_n);
	mount = field_of(line, n, 4, &mount_n);
	return type && options && root && mount && type_n == strlen(kind) &&
	       !memcmp(type, kind, type_n) && (!v1 || in_list(options, options_n, "memory")) &&
	       unescape(root, root_n, part, part_bytes) &&
	       unescape(mount, mount_n, place->mount, sizeof(place->mount));
}

/* Does a mount of this part of the tree show the group? A container often sees only its part. */
static bool shows(const char *part, const char *own)
{
	size_t n = strcmp(part, "/") ? strlen(part) : 0;

	return !strncmp(own, part, n) && (!n || !own[n] || own[n] == '/') && !strstr(own, "/..");
}

/* The first mount that shows the group, or else the first: its top is the nearest to be seen. */
static bool find_mount(const char *mountinfo, bool v1, const char *own,
	struct kvpd_group_place *place, char part[PART_BYTES])
{
	struct kvpd_group_place p = *place;
	char its[PART_BYTES];
	bool found = false;

	for (const char *line = mountinfo; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!is_mount(line, strcspn(line, "\n"), v1, &p, its, sizeof(its)) ||
			(found && !shows(its, own)))
			continue;
		found = true;
		*place = p;
		memcpy(part, its, strlen(its) + 1);
		if (shows(part, own))
			break;
	}
	return found;
}

bool kvpd_memory_place(
	const char *cgroup, const char *mountinfo, struct kvpd_group_place *ret_place)
{
	/* Where both versions are mounted the memory controller is in one of them only. */
	for (unsigned version = 1; version <= 2; version++) {
		struct kvpd_group_place p = { .v1 = version == 1 };
		char own[KVPD_GROUP_PATH], part[KVPD_GROUP_PATH];
		const char *below = own;
		size_t n;

		if (!own_path(cgroup, p.v1, own, sizeof(own)) ||
			!find_mount(mountinfo, p.v1, own, &p, part))
			continue;
		if (!shows(part, own))
			below = "";
		else if (strcmp(part, "/"))
			below += strlen(part);
		if (!strcmp(below, "/"))
			below = "";
		n = strlen(p.mount);
		if (n + strlen(below) >= sizeof(p.folder))
			continue;
		memcpy(p.folder, p.mount, n);
		memcpy(p.folder + n, below, strlen(below) + 1);
		*ret_place = p;
		return true;
	}
	return false;
}

/* ---- reading ------------------------------------------------------------------------------- */

/* The beginning of a file, with a 0 behind it; NULL: it cannot be read. The caller frees it. */
static char *slurp(const char *root, const char *folder, const char *name, size_t most)
{
	char path[2 * KVPD_GROUP_PATH];
	size_t used = 0;
	ssize_t n = 1;
	char *text;
	int fd;

	if ((size_t)snprintf(path, sizeof(path), "%s%s/%s", root, folder, name) >= sizeof(path))
		return NULL;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return NULL;
	text = malloc(most + 1);
	while (text && used < most && n != 0) {
		n = read(fd, text + used, most - used);
		if (n < 0 && errno != EINTR) {
			free(text);
			text = NULL;
		}
		used += n > 0 ? (size_t)n : 0;
	}
	close(fd);
	if (text)
		text[used] = 0;
	return text;
}

static uint64_t number_in(
	const char *root, const char *folder, const char *name, uint64_t otherwise)
{
	char *text = slurp(root, folder, name, SMALL_TEXT);
	uint64_t v = otherwise;

	if (text)
		kvpd_memory_number(text, &v);
	free(text);
	return v;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* What the kernel takes back before it kills: cold page cache, and half of the warm. */
static uint64_t reclaimable(const char *stat, bool v1)
{
	uint64_t cold = 0, warm = 0;

	kvpd_memory_field(stat, v1 ? "total_inactive_file" : "inactive_file", &cold);
	kvpd_memory_field(stat, v1 ? "total_active_file" : "active_file", &warm);
	return least(cold, UINT64_MAX / 2) + least(warm, UINT64_MAX / 2) / 2;
}

/* One level of the tree. */
static void read_group(const char *root, const char *folder, bool v1, struct kvpd_group *ret)
{
	char *stat = slurp(root, folder, "memory.stat", SMALL_TEXT);
	uint64_t limit, usage, back = stat ? reclaimable(stat, v1) : 0, all = KVPD_NO_LIMIT;

	if (v1) {
		limit = number_in(root, folder, "memory.limit_in_bytes", KVPD_NO_LIMIT);
		if (stat)
			kvpd_memory_field(stat, "hierarchical_memory_limit", &all);
		usage = number_in(root, folder, "memory.usage_in_bytes", 0);
	} else {
		limit = number_in(root, folder, "memory.max", KVPD_NO_LIMIT);
		all = number_in(root, folder, "memory.high", KVPD_NO_LIMIT);
		usage = number_in(root, folder, "memory.current", 0);
	}
	free(stat);
	limit = least(limit, all);
	usage = usage > back ? usage - back : 0;
	*ret = (struct kvpd_group){ .limit = limit, .left = limit > usage ? limit - usage : 0 };
	snprintf(ret->path, sizeof(ret->path), "%s", folder);
}

static void read_groups(const char *root, struct kvpd_memory *m)
{
	/* A limit that the machine itself could not exceed is none; version 1 has no word for it. */
	const uint64_t none = m->total ? m->total : UINT64_C(1) << 62;
	char *cgroup = slurp(root, "/proc/self", "cgroup", LARGE_TEXT);
	char *mountinfo = slurp(root, "/proc/self", "mountinfo", LARGE_TEXT);
	struct kvpd_group_place place;
	bool found = cgroup && mountinfo && kvpd_memory_place(cgroup, mountinfo, &place);
	size_t top = found ? strlen(place.mount) : 0;

	free(cgroup);
	free(mountinfo);
	if (!found)
		return;
	snprintf(m->own, sizeof(m->own), "%s", place.folder);
	for (unsigned i = 0; i < MAX_LEVELS && m->n_groups < KVPD_GROUPS; i++) {
		struct kvpd_group *g = &m->group[m->n_groups];
		char *slash = strrchr(place.folder, '/');

		read_group(root, place.folder, place.v1, g);
		if (g->limit < none)
			m->n_groups++;
		if (strlen(place.folder) <= top || !slash)
			return;
		*slash = 0;
	}
}

void kvpd_memory_read(const char *root, struct kvpd_memory *ret_memory)
{
	struct kvpd_memory m = { 0 };
	char *meminfo = slurp(root, "/proc", "meminfo", SMALL_TEXT);

	if (meminfo) {
		kvpd_memory_field(meminfo, "MemTotal", &m.total);
		/* Linux before 3.14 does not say what is available: then it is unknown. */
		if (!kvpd_memory_field(meminfo, "MemAvailable", &m.available))
			m.available = m.total;
	}
	free(meminfo);
	read_groups(root, &m);
	*ret_memory = m;
}

/* ---- judging ------------------------------------------------------------------------------- */

static uint64_t between(uint64_t low, uint64_t v, uint64_t high)
{
	return v < low ? low : v > high ? high : v;
}

/* Less than this left, of a capacity, is short. */
static uint64_t short_of(uint64_t capacity)
{
	return between(16 * MIB, capacity / 64, GIB);
}

/* What pools could take of a capacity at the very most: the daemon itself takes some as well. */
static uint64_t usable(uint64_t capacity)
{
	uint64_t reserve = capacity / 16 > 48 * MIB ? capacity / 16 : 48 * MIB;

	return capacity > reserve ? capacity - reserve : 0;
}

const struct kvpd_group *kvpd_memory_lowest(const struct kvpd_memory *m)
{
	const struct kvpd_group *lowest = NULL;

	for (unsigned i = 0; i < m->n_groups; i++)
		if (!lowest || m->group[i].limit < lowest->limit)
			lowest = &m->group[i];
	return lowest;
}

/* Of the machine or of a group of it, whichever has less. KVPD_NO_LIMIT: unknown. */
static uint64_t capacity(const struct kvpd_memory *m)
{
	const struct kvpd_group *g = kvpd_memory_lowest(m);

	return least(m->total ? m->total : KVPD_NO_LIMIT, g ? g->limit : KVPD_NO_LIMIT);
}

uint64_t kvpd_memory_most(const struct kvpd_memory *m)
{
	return capacity(m) == KVPD_NO_LIMIT ? KVPD_NO_LIMIT : usable(capacity(m));
}

uint64_t kvpd_memory_default(const struct kvpd_memory *m)
{
	uint64_t all = capacity(m);

	return all == KVPD_NO_LIMIT ? GIB : between(16 * MIB, all / 4 / MIB * MIB, 64 * TIB);
}

static uint64_t spare(uint64_t all, uint64_t left)
{
	uint64_t keep = 2 * short_of(all);

	return left > keep ? left - keep : 0;
}

uint64_t kvpd_memory_spare(const struct kvpd_memory *m)
{
	uint64_t n = m->total ? spare(m->total, m->available) : UINT64_MAX;

	for (unsigned i = 0; i < m->n_groups; i++)
		n = least(n, spare(m->group[i].limit, m->group[i].left));
	return n;
}

static uint64_t missing(uint64_t all, uint64_t left, bool stalled)
{
	uint64_t mark = short_of(all);

	return left < (stalled ? 2 * mark : mark) ? 2 * mark - left : 0;
}

uint64_t kvpd_memory_missing(const struct kvpd_memory *m, bool stalled)
{
	uint64_t most = m->total ? missing(m->total, m->available, stalled) : 0;

	for (unsigned i = 0; i < m->n_groups; i++) {
		uint64_t n = missing(m->group[i].limit, m->group[i].left, stalled);

		most = n > most ? n : most;
	}
	return most;
}

static bool is_near(uint64_t all, uint64_t left, unsigned part)
{
	return left < all / part || missing(all, left, true);
}

bool kvpd_memory_near(const struct kvpd_memory *m)
{
	bool near = m->total && is_near(m->total, m->available, 8);

	for (unsigned i = 0; i < m->n_groups; i++)
		near |= is_near(m->group[i].limit, m->group[i].left, 4);
	return near;
}
