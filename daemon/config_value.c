/* SPDX-License-Identifier: Apache-2.0 */
/* Values from their text; see config_value.h. */
#include "daemon/config_value.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/yamlpos.h"

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define TIB (UINT64_C(1) << 40)

#define NAME_MAX_BYTES 63u

/* ---- messages ------------------------------------------------------------------------------- */

int kvpd_wrong(struct kvpd_complaint *to, const char *path, const char *format, ...)
{
	char text[384];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	if (to->pos)
		snprintf(to->error, to->error_bytes, "%s:%u: %s%s%s", to->name,
			kvpd_yamlpos_line(to->pos, path), path, *path ? ": " : "", text);
	else
		snprintf(to->error, to->error_bytes, "%s: %s%s%s", to->name,
			to->one_value ? "" : path, *path && !to->one_value ? ": " : "", text);
	return -EINVAL;
}

#define SIZE     "a size, e.g. 512MiB"
#define NUMBER   "a whole number"
#define BOOL     "true or false"
#define TRISTATE "auto, never or require"
#define USER     "a user's name or number"

const char *kvpd_value_wanted(const char *path)
{
	static const struct {
		const char *key, *wanted;
	} all[] = {
		{ "memory", SIZE },
		{ "extent", SIZE },
		{ "share", SIZE },
		{ "arena", SIZE },
		{ "populate_threads", NUMBER },
		{ "claim_ttl_ms", NUMBER },
		{ "max_sessions", NUMBER },
		{ "handshake_ms", NUMBER },
		{ "max_blocks", NUMBER },
		{ "recipe_blocks", NUMBER },
		{ "recipe_tokens", NUMBER },
		{ "least_bits", "a number from 2 to 16" },
		{ "precision", "pressure, budget or zones" },
		{ "budget", "a share, e.g. 0.4 or 40%" },
		{ "hot_tokens", NUMBER },
		{ "stale_tokens", NUMBER },
		{ "quality_target", "percent, from 0 to 90" },
		{ "min_materialized", NUMBER },
		{ "numa_node", "the number of a node, auto or any" },
		{ "hugepages", TRISTATE },
		{ "realtime", "auto, true or false" },
		{ "realtime_percent", NUMBER },
		{ "mlock", TRISTATE },
		{ "peer_pidfd", TRISTATE },
		{ "unlisted_uids", BOOL },
		{ "trust_daemon_uid", BOOL },
		{ "trust_overflow_uid", BOOL },
		{ "tail_index", BOOL },
		{ "log_level", "error, warning, notice, info or debug" },
		{ "policy", "the name of a policy" },
		{ "runtime_dir", "an absolute path" },
		{ "state_dir", "an absolute path" },
		{ "calibrations", "an absolute path" },
		{ "socket", "the name of a file" },
		{ "name", "a name" },
		{ "user", USER },
		{ "admin_group", "a group's name or number" },
		{ "uids", "a list of users, e.g. [alice, 1001]" },
		{ "bytes", SIZE },
		{ "segment", SIZE },
		{ "copy_rate", SIZE },
		{ "driver", "cuda, host or fault" },
		{ "uuid", "the UUID of a GPU, as nvidia-smi -L shows it" },
		{ "index", "the number of a GPU, in the order of the PCI bus" },
		{ "transport", "auto, vmm or ipc" },
		{ "copy", "engine or none" },
		{ "mps", "avoid or join" },
		{ "faults", "what goes wrong, see kvpoold.yaml(5)" },
		{ "worker", "an absolute path" },
		{ "devices", "a list of mappings, each with name and bytes or share" },
		{ "tenants", "a list of tenants, each with name, uids or socket, and limits" },
		{ "defaults", "a mapping of limits, e.g. {share: 512MiB}" },
		{ "", "a mapping of keys to values, e.g. {memory: 4GiB}" },
	};
	const char *key = strrchr(path, '.');

	key = key ? key + 1 : path;
	if (isdigit((unsigned char)*key))
		return strstr(path, "uids.") ? USER
					     : "a mapping with name, uids or socket, and limits";
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (!strcmp(key, all[i].key))
			return all[i].wanted;
	return "a value";
}

const char *kvpd_human(uint64_t bytes, char buf[static KVPD_HUMAN_BYTES])
{
	static const char *const units[] = { "", "KiB", "MiB", "GiB", "TiB" };
	unsigned u = 0;

	while (u < 4 && bytes && !(bytes % 1024)) {
		bytes /= 1024;
		u++;
	}
	snprintf(buf, KVPD_HUMAN_BYTES, "%" PRIu64 "%s", bytes, units[u]);
	return buf;
}

/* ---- numbers -------------------------------------------------------------------------------- */

static int not_a(struct kvpd_complaint *to, const char *path, const char *text)
{
	if (!*text)
		return kvpd_wrong(to, path, "has no value; %s is wanted", kvpd_value_wanted(path));
	return kvpd_wrong(to, path, "'%.80s' is not %s", text, kvpd_value_wanted(path));
}

/* A decimal number that uses the whole text up to *ret_rest. */
static bool digits(const char *text, uint64_t *ret_value, const char **ret_rest)
{
	uint64_t v = 0;
	const char *c = text;

	if (!isdigit((unsigned char)*c))
		return false;
	for (; isdigit((unsigned char)*c); c++) {
		if (v > (UINT64_MAX - 9) / 10)
			return false;
		v = v * 10 + (uint64_t)(*c - '0');
	}
	*ret_value = v;
	*ret_rest = c;
	return true;
}

/* Digits behind a point, at most six of them: more would be less than a byte of a TiB. */
static uint64_t fraction(const char **rest, uint64_t factor)
{
	uint64_t v = 0, parts = 1;
	const char *c = *rest + 1;

	for (; isdigit((unsigned char)*c); c++) {
		if (parts == 1000000)
			continue;
		v = v * 10 + (uint64_t)(*c - '0');
		parts *= 10;
	}
	*rest = c;
	return v * factor / parts;
}

int kvpd_value_size(struct kvpd_complaint *to, const char *path, const char *text, uint64_t min,
	uint64_t max, uint64_t *ret_bytes)
{
	static const struct {
		const char *suffix;
		uint64_t factor;
	} units[] = { { "", 1 }, { "KiB", KIB }, { "MiB", MIB }, { "GiB", GIB }, { "TiB", TIB } };
	char lo[KVPD_HUMAN_BYTES], hi[KVPD_HUMAN_BYTES];
	const char *rest, *unit;
	uint64_t v;

	if (!text)
		return 0;
	if (!digits(text, &v, &rest))
		return not_a(to, path, text);
	unit = rest;
	if (*unit == '.' && isdigit((unsigned char)unit[1]))
		unit += 1 + strspn(unit + 1, "0123456789");
	unit += strspn(unit, " ");
	for (unsigned i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		uint64_t factor = units[i].factor, more;

		if (strcmp(unit, units[i].suffix))
			continue;
		if (*rest == '.' && factor == 1)
			return kvpd_wrong(to, path, "'%s' is not a whole number of bytes", text);
		more = *rest == '.' ? fraction(&rest, factor) : 0;
		if (v > (UINT64_MAX - more) / factor || v * factor + more < min ||
			v * factor + more > max)
			return kvpd_wrong(to, path, "%s is out of range; %s to %s are possible",
				text, kvpd_human(min, lo), kvpd_human(max, hi));
		*ret_bytes = v * factor + more;
		return 0;
	}
	return kvpd_wrong(to, path,
		"'%s' has no unit that kvpoold knows; write bytes, KiB, MiB, GiB or TiB", text);
}

int kvpd_value_share(struct kvpd_complaint *to, const char *path, const char *text, uint32_t min,
	uint32_t max, uint32_t *ret_millionths)
{
	const uint64_t million = 1000000;
	const char *rest = text;
	uint64_t v = 0, more = 0;

	if (!text)
		return 0;
	if (*text != '.' && !digits(text, &v, &rest))
		return not_a(to, path, text);
	if (*rest == '.' && isdigit((unsigned char)rest[1]))
		more = fraction(&rest, million);
	v = v > million ? million * million : v * million + more;
	if (*rest == '%') {
		v /= 100;
		rest++;
	}
	if (*rest)
		return not_a(to, path, text);
	if (v < min || v > max)
		return kvpd_wrong(to, path, "%s is out of range; %.4g to %.4g are possible", text,
			min / (double)million, max / (double)million);
	*ret_millionths = (uint32_t)v;
	return 0;
}

int kvpd_value_number(struct kvpd_complaint *to, const char *path, const char *text, uint64_t min,
	uint64_t max, uint64_t *ret_value)
{
	const char *rest;
	uint64_t v;

	if (!text)
		return 0;
	if (!digits(text, &v, &rest) || *rest)
		return not_a(to, path, text);
	if (v < min || v > max)
		return kvpd_wrong(to, path,
			"%s is out of range; %" PRIu64 " to %" PRIu64 " are possible", text, min,
			max);
	*ret_value = v;
	return 0;
}

int kvpd_value_u32(struct kvpd_complaint *to, const char *path, const char *text, uint32_t min,
	uint32_t max, uint32_t *ret_value)
{
	uint64_t v = *ret_value;
	int r = kvpd_value_number(to, path, text, min, max, &v);

	if (r == 0)
		*ret_value = (uint32_t)v;
	return r;
}

int kvpd_value_word(struct kvpd_complaint *to, const char *path, const char *text,
	const char *const *words, unsigned *ret_index)
{
	char all[160] = "";

	if (!text)
		return 0;
	for (unsigned i = 0; words[i]; i++) {
		size_t used = strlen(all);

		if (!strcmp(text, words[i])) {
			*ret_index = i;
			return 0;
		}
		snprintf(all + used, sizeof(all) - used, "%s%s", i ? ", " : "", words[i]);
	}
	return *text ? kvpd_wrong(to, path, "'%.80s' is none of: %s", text, all)
		     : kvpd_wrong(to, path, "has no value; one of these is wanted: %s", all);
}

int kvpd_value_bool(struct kvpd_complaint *to, const char *path, const char *text, bool *ret_value)
{
	static const char *const words[] = { "false", "true", "no", "yes", "off", "on", NULL };
	unsigned i = *ret_value;
	int r = kvpd_value_word(to, path, text, words, &i);

	if (r == 0)
		*ret_value = i & 1;
	return r;
}

int kvpd_value_tristate(struct kvpd_complaint *to, const char *path, const char *text,
	enum kvpd_tristate *ret_value)
{
	static const char *const words[] = { "auto", "never", "require", NULL };
	unsigned i = *ret_value;
	int r = kvpd_value_word(to, path, text, words, &i);

	if (r == 0)
		*ret_value = i;
	return r;
}

int kvpd_value_text(struct kvpd_complaint *to, const char *path, const char *text, char **ret_text)
{
	char *copy;

	if (!text)
		return 0;
	for (const char *c = text; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			return kvpd_wrong(to, path, "control characters are not possible here");
	copy = strdup(text);
	if (!copy)
		return -ENOMEM;
	free(*ret_text);
	*ret_text = copy;
	return 0;
}

int kvpd_value_name(struct kvpd_complaint *to, const char *path, const char *text)
{
	size_t n = strlen(text);

	if (!n || n > NAME_MAX_BYTES || text[0] == '.' || text[0] == '-' ||
		strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") !=
			n)
		return kvpd_wrong(to, path,
			"'%.80s' cannot be used; 1 to %u letters, digits, '.', '_' or '-' are "
			"possible, not beginning with '.' or '-'",
			text, NAME_MAX_BYTES);
	return 0;
}

int kvpd_value_file_name(
	struct kvpd_complaint *to, const char *path, const char *text, char **ret_text)
{
	int r = text ? kvpd_value_name(to, path, text) : 0;

	if (r == 0 && text && !strcmp(text, KVPD_LOCK_FILE))
		return kvpd_wrong(to, path, "'%s' is the name of the lock file", text);
	return r < 0 ? r : kvpd_value_text(to, path, text, ret_text);
}

int kvpd_value_uid(struct kvpd_complaint *to, const char *path, const char *text, uid_t *ret_uid)
{
	const struct passwd *pw;
	const char *rest;
	uint64_t v;

	if (digits(text, &v, &rest) && !*rest) {
		/* The last number means "no change" in every system call. */
		if (v >= UINT32_MAX)
			return kvpd_wrong(
				to, path, "%s is no uid; 0 to 4294967294 are possible", text);
		*ret_uid = (uid_t)v;
		return 0;
	}
	pw = getpwnam(text);
	if (!pw)
		return kvpd_wrong(to, path,
			"there is no user '%.80s' on this machine; write a name that exists or a "
			"numeric uid",
			text);
	*ret_uid = pw->pw_uid;
	return 0;
}
