/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration's keys. libcyaml checks the shape (known keys, mapping or list or scalar); every
 * scalar arrives as text and goes through config_value.c.
 */
#include "daemon/config.h"

#include <ctype.h>
#include <cyaml/cyaml.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/config_value.h"
#include "daemon/log.h"
#include "daemon/yamlpos.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_abi.h"
#include "shm/kvp_seg.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define TIB (UINT64_C(1) << 40)

/* ---- what libcyaml fills ------------------------------------------------------------------- */

struct raw_limits {
	char *share;
	char *max_blocks;
	char *recipe_blocks;
	char *recipe_tokens;
	char *arena;
	char *max_sessions;
	char *least_bits;
	char *precision;
	char *budget;
	char *hot_tokens;
	char *stale_tokens;
	char *quality_target;
	char *min_materialized;
	char *tail_index;
	struct raw_part *devices;
	unsigned n_devices;
};

/* A tenant's part of a device. */
struct raw_part {
	char *name;
	char *share;
};

struct raw_device {
	char *name;
	char *driver;
	char *uuid;
	char *index;
	char *transport;
	char *copy;
	char *mps;
	char *faults;
	char *worker;
	char *bytes;
	char *segment;
	char *copy_rate;
	char *timeout_ms;
};

struct raw_tenant {
	char *name;
	char **uids;
	unsigned n_uids;
	char *socket;
	struct raw_limits limits;
};

struct raw_config {
	char *runtime_dir;
	char *state_dir;
	char *calibrations;
	char *socket;
	char *user;
	char *admin_group;
	char *memory;
	char *extent;
	char *populate_threads;
	char *hugepages;
	char *mlock;
	char *numa_node;
	char *policy;
	char *advisor;
	char *advisor_period_ms;
	char *advisor_batch;
	char *advisor_prefetch;
	char *realtime;
	char *realtime_percent;
	char *claim_ttl_ms;
	char *max_sessions;
	char *handshake_ms;
	char *peer_pidfd;
	char *log_level;
	char *unlisted_uids;
	char *trust_daemon_uid;
	char *trust_overflow_uid;
	struct raw_limits defaults;
	struct raw_tenant *tenants;
	unsigned n_tenants;
	struct raw_device *devices;
	unsigned n_devices;
};

#define TEXT(type, key, member) \
	CYAML_FIELD_STRING_PTR( \
		key, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, type, member, 0, PATH_MAX)
#define LIMITS(type, prefix)                                                                    \
	TEXT(type, "share", prefix share), TEXT(type, "max_blocks", prefix max_blocks),         \
		TEXT(type, "recipe_blocks", prefix recipe_blocks),                              \
		TEXT(type, "recipe_tokens", prefix recipe_tokens),                              \
		TEXT(type, "arena", prefix arena),                                              \
		TEXT(type, "max_sessions", prefix max_sessions),                                \
		TEXT(type, "least_bits", prefix least_bits),                                    \
		TEXT(type, "precision", prefix precision), TEXT(type, "budget", prefix budget), \
		TEXT(type, "hot_tokens", prefix hot_tokens),                                    \
		TEXT(type, "stale_tokens", prefix stale_tokens),                                \
		TEXT(type, "quality_target", prefix quality_target),                            \
		TEXT(type, "min_materialized", prefix min_materialized),                        \
		TEXT(type, "tail_index", prefix tail_index),                                    \
		CYAML_FIELD_SEQUENCE_COUNT("devices", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, \
			type, prefix devices, prefix n_devices, &part_schema, 0, KVP_MAX_DEVICES)
#define NOTHING /* limits that lie in the struct itself */

static const cyaml_schema_value_t uid_schema = {
	CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char, 0, PATH_MAX),
};

static const cyaml_schema_field_t part_fields[] = {
	TEXT(struct raw_part, "name", name),
	TEXT(struct raw_part, "share", share),
	CYAML_FIELD_END,
};

static const cyaml_schema_value_t part_schema = {
	CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct raw_part, part_fields),
};

static const cyaml_schema_field_t device_fields[] = {
	TEXT(struct raw_device, "name", name),
	TEXT(struct raw_device, "driver", driver),
	TEXT(struct raw_device, "uuid", uuid),
	TEXT(struct raw_device, "index", index),
	TEXT(struct raw_device, "transport", transport),
	TEXT(struct raw_device, "copy", copy),
	TEXT(struct raw_device, "mps", mps),
	TEXT(struct raw_device, "faults", faults),
	TEXT(struct raw_device, "worker", worker),
	TEXT(struct raw_device, "bytes", bytes),
	TEXT(struct raw_device, "segment", segment),
	TEXT(struct raw_device, "copy_rate", copy_rate),
	TEXT(struct raw_device, "timeout_ms", timeout_ms),
	CYAML_FIELD_END,
};

static const cyaml_schema_value_t device_schema = {
	CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct raw_device, device_fields),
};

static const cyaml_schema_field_t limit_fields[] = {
	LIMITS(struct raw_limits, NOTHING),
	CYAML_FIELD_END,
};

static const cyaml_schema_field_t tenant_fields[] = {
	TEXT(struct raw_tenant, "name", name),
	TEXT(struct raw_tenant, "socket", socket),
	CYAML_FIELD_SEQUENCE_COUNT("uids", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
		struct raw_tenant, uids, n_uids, &uid_schema, 0, KVPD_MAX_UIDS),
	LIMITS(struct raw_tenant, limits.),
	CYAML_FIELD_END,
};

static const cyaml_schema_value_t tenant_schema = {
	CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct raw_tenant, tenant_fields),
};

static const cyaml_schema_field_t top_fields[] = {
	TEXT(struct raw_config, "runtime_dir", runtime_dir),
	TEXT(struct raw_config, "state_dir", state_dir),
	TEXT(struct raw_config, "calibrations", calibrations),
	TEXT(struct raw_config, "socket", socket),
	TEXT(struct raw_config, "user", user),
	TEXT(struct raw_config, "admin_group", admin_group),
	TEXT(struct raw_config, "memory", memory),
	TEXT(struct raw_config, "extent", extent),
	TEXT(struct raw_config, "populate_threads", populate_threads),
	TEXT(struct raw_config, "hugepages", hugepages),
	TEXT(struct raw_config, "mlock", mlock),
	TEXT(struct raw_config, "numa_node", numa_node),
	TEXT(struct raw_config, "policy", policy),
	TEXT(struct raw_config, "advisor", advisor),
	TEXT(struct raw_config, "advisor_period_ms", advisor_period_ms),
	TEXT(struct raw_config, "advisor_batch", advisor_batch),
	TEXT(struct raw_config, "advisor_prefetch", advisor_prefetch),
	TEXT(struct raw_config, "realtime", realtime),
	TEXT(struct raw_config, "realtime_percent", realtime_percent),
	TEXT(struct raw_config, "claim_ttl_ms", claim_ttl_ms),
	TEXT(struct raw_config, "max_sessions", max_sessions),
	TEXT(struct raw_config, "handshake_ms", handshake_ms),
	TEXT(struct raw_config, "peer_pidfd", peer_pidfd),
	TEXT(struct raw_config, "log_level", log_level),
	TEXT(struct raw_config, "unlisted_uids", unlisted_uids),
	TEXT(struct raw_config, "trust_daemon_uid", trust_daemon_uid),
	TEXT(struct raw_config, "trust_overflow_uid", trust_overflow_uid),
	CYAML_FIELD_MAPPING(
		"defaults", CYAML_FLAG_OPTIONAL, struct raw_config, defaults, limit_fields),
	CYAML_FIELD_SEQUENCE_COUNT("tenants", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
		struct raw_config, tenants, n_tenants, &tenant_schema, 0, KVPD_MAX_TENANTS),
	CYAML_FIELD_SEQUENCE_COUNT("devices", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
		struct raw_config, devices, n_devices, &device_schema, 0, KVP_MAX_DEVICES),
	CYAML_FIELD_END,
};

static const cyaml_schema_value_t top_schema = {
	CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct raw_config, top_fields),
};

/* ---- what libcyaml says ---------------------------------------------------------------------- */

/* Its first message, the innermost line of its backtrace, and the path that this leads along. */
struct shape {
	char text[160];
	char path[128];
	unsigned line;
};

static void step_up(struct shape *shape, const char *step, size_t n)
{
	size_t len = strlen(shape->path), dot = len > 0;

	if (n + dot + len >= sizeof(shape->path))
		return;
	memmove(shape->path + n + dot, shape->path, len + 1);
	memcpy(shape->path, step, n);
	if (dot)
		shape->path[n] = '.';
}

static void cyaml_said(cyaml_log_t level, void *ctx, const char *format, va_list ap)
{
	static const char field[] = "  in mapping field '", entry[] = "  in sequence entry '";
	struct shape *shape = ctx;
	char text[256], index[16];
	const char *at, *start = text;

	(void)level;
	vsnprintf(text, sizeof(text), format, ap);
	text[strcspn(text, "\n")] = 0;
	at = strstr(text, "(line: ");
	if (at && !shape->line)
		shape->line = (unsigned)strtoul(at + strlen("(line: "), NULL, 10);
	if (!strncmp(text, field, strlen(field))) {
		start += strlen(field);
		step_up(shape, start, strcspn(start, "'"));
	} else if (!strncmp(text, entry, strlen(entry))) {
		/* It counts from 1. */
		snprintf(index, sizeof(index), "%lu", strtoul(text + strlen(entry), NULL, 10) - 1);
		step_up(shape, index, strlen(index));
	} else if (!shape->text[0] && !at) {
		start += strncmp(text, "Load: ", 6) ? 0 : 6;
		snprintf(shape->text, sizeof(shape->text), "%.*s", (int)sizeof(shape->text) - 1,
			start);
	}
}

static int unknown_key(struct kvpd_complaint *l, const struct shape *shape, const char *key)
{
	unsigned line = shape->line ? shape->line : kvpd_yamlpos_line(l->pos, "");
	/* libcyaml gives the line before it. */
	unsigned at = kvpd_yamlpos_find_key(l->pos, key, line);

	snprintf(l->error, l->error_bytes,
		"%s:%u: unknown key '%s'; kvpoold.yaml(5) lists those that exist", l->name,
		at ? at : line, key);
	return -EINVAL;
}

static int shape_error(struct kvpd_complaint *l, const struct shape *shape, cyaml_err_t e)
{
	static const char unexpected[] = "Unexpected key: ";
	static const struct {
		const char *event, *is;
	} kinds[] = {
		{ "got event: SEQUENCE_START", "a list" },
		{ "got event: MAPPING_START", "a mapping" },
		{ "got event: SCALAR", "a single value" },
	};

	if (e == CYAML_ERR_OOM)
		return -ENOMEM;
	if (!strncmp(shape->text, unexpected, strlen(unexpected)))
		return unknown_key(l, shape, shape->text + strlen(unexpected));
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (strstr(shape->text, kinds[i].event))
			return kvpd_wrong(l, shape->path, "is %s; %s is wanted",
				kvpd_yamlpos_empty(l->pos, shape->path) ? "empty" : kinds[i].is,
				kvpd_value_wanted(shape->path));
	return kvpd_wrong(l, shape->path, "%s", shape->text[0] ? shape->text : cyaml_strerror(e));
}

/* ---- the parts ----------------------------------------------------------------------------- */

#define GET(call)                 \
	do {                      \
		r = (call);       \
		if (r < 0)        \
			return r; \
	} while (0)

/* GPU-, MIG- and 32 digits, which dashes may part. */
static bool is_uuid(const char *text)
{
	unsigned digits = 0;

	if (strncmp(text, "GPU-", 4) && strncmp(text, "MIG-", 4))
		return false;
	for (text += 4; *text; text++) {
		if (*text != '-' && !isxdigit((unsigned char)*text))
			return false;
		digits += *text != '-';
	}
	return digits == 32;
}

/* What only a GPU has. */
static int get_gpu(struct kvpd_complaint *l, unsigned index, const struct raw_device *raw,
	const struct kvpd_config *config, struct kvpd_device_entry *d)
{
	static const char *const transports[] = { "auto", "vmm", "ipc", NULL };
	static const char *const copies[] = { "engine", "none", NULL };
	static const char *const mps[] = { "avoid", "join", NULL };
	const char *const only[] = { raw->uuid, raw->index, raw->transport, raw->copy, raw->mps };
	static const char *const keys[] = { "uuid", "index", "transport", "copy", "mps" };
	char path[64];
	unsigned copy = 0, join = 0;
	uint32_t number = 0;
	int r;

#define AT(key) (snprintf(path, sizeof(path), "devices.%u" key, index), path)
	for (unsigned i = 0; strcmp(d->driver, "cuda") && i < sizeof(only) / sizeof(only[0]); i++)
		if (only[i])
			return kvpd_wrong(l, AT(""), "`%s` is for the driver cuda", keys[i]);
	if (strcmp(d->driver, "cuda"))
		return 0;
	if (raw->uuid && raw->index)
		return kvpd_wrong(l, AT(".index"), "`uuid` names the device already");
	if (raw->uuid && !is_uuid(raw->uuid))
		return kvpd_wrong(l, AT(".uuid"),
			"'%.80s' is no UUID of a device; nvidia-smi -L shows them", raw->uuid);
	GET(kvpd_value_u32(l, AT(".index"), raw->index, 0, 255, &number));
	GET(kvpd_value_text(l, AT(".uuid"),
		raw->uuid    ? raw->uuid
		: raw->index ? raw->index
			     : "0",
		&d->unit));
	for (unsigned i = 0; i < index; i++)
		if (config->devices[i].unit && !strcasecmp(config->devices[i].unit, d->unit))
			return kvpd_wrong(l, AT(""), "device '%s' is %s already",
				config->devices[i].name, d->unit);
	GET(kvpd_value_word(l, AT(".transport"), raw->transport, transports, &d->transport));
	GET(kvpd_value_word(l, AT(".copy"), raw->copy, copies, &copy));
	GET(kvpd_value_word(l, AT(".mps"), raw->mps, mps, &join));
	d->no_copies = copy == 1;
	d->mps = join == 1;
	if (d->no_copies && d->transport == KVPD_TRANSPORT_IPC)
		return kvpd_wrong(l, AT(".copy"),
			"`transport: ipc` needs a context in the worker, which `copy: none` "
			"forbids; take one of them out");
	return 0;
#undef AT
}

static int get_device(struct kvpd_complaint *l, unsigned index, const struct raw_device *raw,
	const struct kvpd_config *config, struct kvpd_device_entry *d)
{
	static const char *const drivers[] = { "cuda", "host", "fault", NULL };
	char path[64], a[KVPD_HUMAN_BYTES], b[KVPD_HUMAN_BYTES];
	unsigned driver = 0;
	uint64_t grain;
	int r;

#define AT(key) (snprintf(path, sizeof(path), "devices.%u" key, index), path)
	if (!raw->name || !raw->driver || !raw->bytes)
		return kvpd_wrong(l, AT(""), "a device needs `name`, `driver` and `bytes`");
	GET(kvpd_value_name(l, AT(".name"), raw->name));
	if (strlen(raw->name) >= KVPD_DEVICE_NAME_BYTES)
		return kvpd_wrong(l, AT(".name"), "'%.80s' is longer than %u letters", raw->name,
			KVPD_DEVICE_NAME_BYTES - 1);
	for (unsigned i = 0; i < index; i++)
		if (!strcmp(config->devices[i].name, raw->name))
			return kvpd_wrong(
				l, AT(".name"), "there are two devices named '%s'", raw->name);
	GET(kvpd_value_text(l, AT(".name"), raw->name, &d->name));
	GET(kvpd_value_word(l, AT(".driver"), raw->driver, drivers, &driver));
	GET(kvpd_value_text(l, AT(".driver"), drivers[driver], &d->driver));
	GET(kvpd_value_text(l, AT(".faults"), raw->faults, &d->faults));
	GET(kvpd_value_text(l, AT(".worker"), raw->worker, &d->worker));
	if (d->worker && d->worker[0] != '/')
		return kvpd_wrong(l, AT(".worker"), "'%.80s' is not an absolute path", d->worker);
	GET(kvpd_value_size(l, AT(".bytes"), raw->bytes, 1 * MIB, 64 * TIB, &d->bytes));
	GET(get_gpu(l, index, raw, config, d));
	grain = kvpd_config_grain(d);
	if (d->bytes < grain)
		return kvpd_wrong(l, AT(".bytes"), "memory of a GPU comes in pieces of %s",
			kvpd_human(grain, a));
	d->segment = 256 * MIB < d->bytes ? 256 * MIB : d->bytes / grain * grain;
	GET(kvpd_value_size(l, AT(".segment"), raw->segment, 64 << 10, 64 * GIB, &d->segment));
	if (d->segment % grain)
		return kvpd_wrong(l, AT(".segment"), "%s is not a multiple of %llu bytes",
			kvpd_human(d->segment, a), (unsigned long long)grain);
	if (d->segment > d->bytes)
		return kvpd_wrong(l, AT(".segment"), "%s is more than the device's bytes (%s)",
			kvpd_human(d->segment, a), kvpd_human(d->bytes, b));
	GET(kvpd_value_size(l, AT(".copy_rate"), raw->copy_rate, 0, TIB, &d->copy_rate));
	d->timeout_ms = 10000;
	GET(kvpd_value_u32(l, AT(".timeout_ms"), raw->timeout_ms, 50, 600000, &d->timeout_ms));
	return 0;
#undef AT
}

/* A tenant's parts of devices. */
static int get_parts(struct kvpd_complaint *l, const char *prefix, const struct raw_limits *raw,
	const struct kvpd_config *config, struct kvpd_limits *limits)
{
	char path[96];
	int r;

	for (unsigned i = 0; i < raw->n_devices; i++) {
		const struct raw_part *p = &raw->devices[i];
		unsigned d = 0;

		snprintf(path, sizeof(path), "%s.devices.%u", prefix, i);
		if (!p->name || !p->share)
			return kvpd_wrong(l, path, "a part of a device needs `name` and `share`");
		while (d < config->n_devices && strcmp(config->devices[d].name, p->name))
			d++;
		if (d == config->n_devices)
			return kvpd_wrong(l, path, "there is no device '%.80s'", p->name);
		for (unsigned k = 0; k < i; k++)
			if (!strcmp(raw->devices[k].name, p->name))
				return kvpd_wrong(
					l, path, "there are two parts of device '%.80s'", p->name);
		snprintf(path, sizeof(path), "%s.devices.%u.share", prefix, i);
		GET(kvpd_value_size(
			l, path, p->share, 0, config->devices[d].bytes, &limits->device_share[d]));
	}
	return 0;
}

const char *const kvpd_rule_words[] = { "pressure", "budget", "zones", NULL };

/* What is to be coded when, of spaces that accept it. */
static int get_rule(struct kvpd_complaint *l, const char *prefix, const struct raw_limits *raw,
	struct kvpd_rule *rule)
{
	unsigned policy = rule->policy;
	char path[64];
	int r;

#define AT(key) (snprintf(path, sizeof(path), "%s." key, prefix), path)
	GET(kvpd_value_word(l, AT("precision"), raw->precision, kvpd_rule_words, &policy));
	rule->policy = policy;
	GET(kvpd_value_share(
		l, AT("budget"), raw->budget, KVPD_BUDGET_LEAST, KVPD_BUDGET_MOST, &rule->budget));
	GET(kvpd_value_u32(
		l, AT("hot_tokens"), raw->hot_tokens, 1, KVPD_ZONE_MOST, &rule->hot_tokens));
	GET(kvpd_value_u32(
		l, AT("stale_tokens"), raw->stale_tokens, 1, KVPD_ZONE_MOST, &rule->stale_tokens));
	if (rule->hot_tokens > rule->stale_tokens)
		return kvpd_wrong(l, AT("hot_tokens"),
			"hot_tokens (%u) is more than stale_tokens (%u)", rule->hot_tokens,
			rule->stale_tokens);
#undef AT
	return 0;
}

static int get_limits(struct kvpd_complaint *l, const char *prefix, const struct raw_limits *raw,
	const struct kvpd_config *config, struct kvpd_limits *limits)
{
	const uint64_t memory = config->memory;
	char path[64];
	int r;

#define AT(key) (snprintf(path, sizeof(path), "%s." key, prefix), path)
	GET(kvpd_value_size(l, AT("share"), raw->share, 1 * MIB, memory, &limits->share));
	GET(kvpd_value_u32(
		l, AT("max_blocks"), raw->max_blocks, 0, KVP_MAX_BLOCKS, &limits->max_blocks));
	GET(kvpd_value_u32(l, AT("recipe_blocks"), raw->recipe_blocks, 0, KVP_MAX_BLOCKS,
		&limits->recipe_blocks));
	GET(kvpd_value_number(l, AT("recipe_tokens"), raw->recipe_tokens, 0, UINT64_C(1) << 36,
		&limits->recipe_tokens));
	GET(kvpd_value_size(l, AT("arena"), raw->arena, 0, memory, &limits->arena));
	GET(kvpd_value_u32(l, AT("max_sessions"), raw->max_sessions, 1, KVPD_MAX_SESSIONS,
		&limits->max_sessions));
	GET(kvpd_value_u32(l, AT("least_bits"), raw->least_bits, 2, 16, &limits->least_bits));
	GET(kvpd_value_u32(
		l, AT("quality_target"), raw->quality_target, 0, 90, &limits->quality_target));
	GET(kvpd_value_u32(l, AT("min_materialized"), raw->min_materialized, 0, KVPD_ZONE_MOST,
		&limits->min_materialized));
	GET(kvpd_value_bool(l, AT("tail_index"), raw->tail_index, &limits->tail_index));
#undef AT
	r = get_rule(l, prefix, raw, &limits->rule);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s", prefix);
	if (limits->max_blocks > KVP_MAX_BLOCKS - limits->recipe_blocks)
		return kvpd_wrong(
			l, path, "max_blocks and recipe_blocks together exceed %u", KVP_MAX_BLOCKS);
	if (limits->share > memory || limits->arena > limits->share) {
		char a[KVPD_HUMAN_BYTES], b[KVPD_HUMAN_BYTES];

		if (limits->share > memory)
			return kvpd_wrong(l, path, "share (%s) is more than memory (%s)",
				kvpd_human(limits->share, a), kvpd_human(memory, b));
		return kvpd_wrong(l, path, "arena (%s) is more than share (%s)",
			kvpd_human(limits->arena, a), kvpd_human(limits->share, b));
	}
	return get_parts(l, prefix, raw, config, limits);
}

static int get_tenant(struct kvpd_complaint *l, unsigned index, const struct raw_tenant *raw,
	const struct kvpd_config *config, struct kvpd_tenant_config *t)
{
	char path[64];
	int r;

#define AT(key) (snprintf(path, sizeof(path), "tenants.%u" key, index), path)
	if (!raw->name)
		return kvpd_wrong(l, AT(""), "a tenant needs a `name`");
	GET(kvpd_value_name(l, AT(".name"), raw->name));
	if (!strncmp(raw->name, "uid-", 4))
		return kvpd_wrong(l, AT(".name"),
			"names that begin with 'uid-' belong to uids that no tenant lists");
	GET(kvpd_value_text(l, AT(".name"), raw->name, &t->name));
	GET(kvpd_value_file_name(l, AT(".socket"), raw->socket, &t->socket));
	if (!raw->n_uids && !raw->socket)
		return kvpd_wrong(l, AT(""),
			"nobody can reach this tenant; give it `uids`, a `socket`, "
			"or both");
	if (raw->n_uids) {
		t->uids = calloc(raw->n_uids, sizeof(*t->uids));
		if (!t->uids)
			return -ENOMEM;
	}
	for (unsigned i = 0; i < raw->n_uids; i++) {
		snprintf(path, sizeof(path), "tenants.%u.uids.%u", index, i);
		GET(kvpd_value_uid(l, path, raw->uids[i], &t->uids[i]));
		t->n_uids++;
	}
	t->limits = config->defaults;
	return get_limits(l, AT(""), &raw->limits, config, &t->limits);
#undef AT
}

/* What has to be right between tenants. */
static int check_tenants(struct kvpd_complaint *l, const struct kvpd_config *config)
{
	uint64_t shares = 0;
	char path[64], a[KVPD_HUMAN_BYTES], b[KVPD_HUMAN_BYTES];

	for (unsigned i = 0; i < config->n_tenants; i++) {
		const struct kvpd_tenant_config *t = &config->tenants[i];

		snprintf(path, sizeof(path), "tenants.%u", i);
		if (t->socket && !strcmp(t->socket, config->socket))
			return kvpd_wrong(l, path, "its socket '%s' is the main one", t->socket);
		for (unsigned j = 0; j < i; j++) {
			const struct kvpd_tenant_config *o = &config->tenants[j];

			if (!strcmp(t->name, o->name))
				return kvpd_wrong(
					l, path, "there are two tenants named '%s'", t->name);
			if (t->socket && o->socket && !strcmp(t->socket, o->socket))
				return kvpd_wrong(l, path,
					"tenant '%s' has the socket '%s' already", o->name,
					t->socket);
			/* With a socket of its own the uids say who may use that. */
			for (unsigned u = 0; !t->socket && !o->socket && u < t->n_uids; u++)
				if (kvpd_tenant_lists(o, t->uids[u]))
					return kvpd_wrong(l, path,
						"uid %u is in tenant '%s' already; a uid on the "
						"main socket has one tenant",
						(unsigned)t->uids[u], o->name);
		}
		shares += t->limits.share; /* at most 256 times 64 TiB */
		if (shares > config->memory)
			return kvpd_wrong(l, path,
				"the shares of the tenants up to this one (%s) are more than "
				"memory (%s)",
				kvpd_human(shares, a), kvpd_human(config->memory, b));
	}
	return 0;
}

static int check_paths(struct kvpd_complaint *l, const struct kvpd_config *config)
{
	const size_t room = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
	size_t longest = strlen(config->socket);

	if (config->state_dir && config->state_dir[0] != '/')
		return kvpd_wrong(
			l, "state_dir", "'%.80s' is not an absolute path", config->state_dir);
	if (config->calibrations && config->calibrations[0] != '/')
		return kvpd_wrong(
			l, "calibrations", "'%.80s' is not an absolute path", config->calibrations);
	if (config->runtime_dir[0] != '/')
		return kvpd_wrong(
			l, "runtime_dir", "'%.80s' is not an absolute path", config->runtime_dir);
	for (unsigned i = 0; i < config->n_tenants; i++)
		if (config->tenants[i].socket && strlen(config->tenants[i].socket) > longest)
			longest = strlen(config->tenants[i].socket);
	if (strlen(config->runtime_dir) + 1 + longest > room)
		return kvpd_wrong(l, "runtime_dir",
			"with the name of a socket behind it, it is longer than the %zu bytes that "
			"the path of a socket may have",
			room);
	return 0;
}

/* `auto`, or what a boolean may be. */
static int get_realtime(struct kvpd_complaint *l, const char *text, enum kvpd_tristate *ret_value)
{
	static const char *const words[] = { "auto", "false", "true", "no", "yes", "off", "on",
		NULL };
	unsigned i = *ret_value;
	int r = kvpd_value_word(l, "realtime", text, words, &i);

	if (r == 0)
		*ret_value = !i ? KVPD_AUTO : i & 1 ? KVPD_NEVER : KVPD_REQUIRE;
	return r;
}

static int get_policy(struct kvpd_complaint *l, const char *text, char **ret_policy)
{
	char all[160] = "";
	const char *name;

	for (size_t i = 0; text && (name = kvp_evict_names(i, NULL)); i++) {
		size_t used = strlen(all);

		if (!strcmp(text, name))
			return kvpd_value_text(l, "policy", text, ret_policy);
		snprintf(all + used, sizeof(all) - used, "%s%s", i ? ", " : "", name);
	}
	return text ? kvpd_wrong(l, "policy", "'%.80s' is none of: %s", text, all) : 0;
}

static int get_top(struct kvpd_complaint *l, const struct raw_config *raw, struct kvpd_config *c)
{
	static const char *const levels[] = { "error", "warning", "notice", "info", "debug", NULL };
	unsigned level = c->log_level - KVPD_LOG_ERR;
	uint64_t node = 0;
	int r;

	GET(kvpd_value_text(l, "runtime_dir", raw->runtime_dir, &c->runtime_dir));
	GET(kvpd_value_text(l, "state_dir", raw->state_dir, &c->state_dir));
	GET(kvpd_value_text(l, "calibrations", raw->calibrations, &c->calibrations));
	GET(kvpd_value_file_name(l, "socket", raw->socket, &c->socket));
	GET(kvpd_value_text(l, "user", raw->user, &c->user));
	GET(kvpd_value_text(l, "admin_group", raw->admin_group, &c->admin_group));
	GET(kvpd_value_size(l, "memory", raw->memory, 16 * MIB, 64 * TIB, &c->memory));
	c->memory_given = raw->memory != NULL;
	GET(kvpd_value_size(l, "extent", raw->extent, 1 * MIB, 64 * GIB, &c->extent));
	if (c->extent % 4096)
		return kvpd_wrong(l, "extent", "is not a multiple of 4096 bytes");
	GET(kvpd_value_u32(
		l, "populate_threads", raw->populate_threads, 0, 256, &c->populate_threads));
	GET(kvpd_value_tristate(l, "hugepages", raw->hugepages, &c->hugepages));
	GET(kvpd_value_tristate(l, "mlock", raw->mlock, &c->mlock));
	if (raw->numa_node && !strcmp(raw->numa_node, "auto")) {
		c->numa_node = KVPD_NODE_AUTO;
	} else if (raw->numa_node && strcmp(raw->numa_node, "any")) {
		GET(kvpd_value_number(l, "numa_node", raw->numa_node, 0, KVPD_NODES - 1, &node));
		c->numa_node = (int)node;
	}
	GET(get_policy(l, raw->policy, &c->policy));
	GET(kvpd_value_bool(l, "advisor", raw->advisor, &c->advisor.on));
	GET(kvpd_value_u32(
		l, "advisor_period_ms", raw->advisor_period_ms, 50, 60000, &c->advisor.period_ms));
	GET(kvpd_value_u32(
		l, "advisor_batch", raw->advisor_batch, 1, KVP_MAX_BLOCKS, &c->advisor.batch));
	GET(kvpd_value_u32(
		l, "advisor_prefetch", raw->advisor_prefetch, 0, 64, &c->advisor.prefetch));
	if (c->advisor.prefetch && !c->advisor.on)
		return kvpd_wrong(l, "advisor_prefetch", "needs advisor: true");
	GET(get_realtime(l, raw->realtime, &c->realtime));
	GET(kvpd_value_u32(
		l, "realtime_percent", raw->realtime_percent, 1, 75, &c->realtime_percent));
	GET(kvpd_value_u32(l, "claim_ttl_ms", raw->claim_ttl_ms, 10, 3600000, &c->claim_ttl_ms));
	GET(kvpd_value_u32(
		l, "max_sessions", raw->max_sessions, 1, KVPD_MAX_SESSIONS, &c->max_sessions));
	GET(kvpd_value_u32(l, "handshake_ms", raw->handshake_ms, 50, 60000, &c->handshake_ms));
	GET(kvpd_value_tristate(l, "peer_pidfd", raw->peer_pidfd, &c->peer_pidfd));
	GET(kvpd_value_word(l, "log_level", raw->log_level, levels, &level));
	c->log_level = level + KVPD_LOG_ERR;
	GET(kvpd_value_bool(l, "unlisted_uids", raw->unlisted_uids, &c->unlisted_uids));
	GET(kvpd_value_bool(l, "trust_daemon_uid", raw->trust_daemon_uid, &c->trust_daemon_uid));
	GET(kvpd_value_bool(
		l, "trust_overflow_uid", raw->trust_overflow_uid, &c->trust_overflow_uid));
	return 0;
}

static int get_devices(
	struct kvpd_complaint *l, const struct raw_config *raw, struct kvpd_config *c)
{
	int r = 0;

	if (raw->n_devices) {
		c->devices = calloc(raw->n_devices, sizeof(*c->devices));
		if (!c->devices)
			return -ENOMEM;
	}
	for (unsigned i = 0; r == 0 && i < raw->n_devices; i++) {
		c->n_devices++;
		c->defaults.device_share[i] = KVPD_SHARE_DEFAULT;
		r = get_device(l, i, &raw->devices[i], c, &c->devices[i]);
	}
	return r;
}
#undef GET

/* What is guaranteed on each device. */
static int check_devices(struct kvpd_complaint *l, const struct kvpd_config *config)
{
	char path[64], a[KVPD_HUMAN_BYTES], b[KVPD_HUMAN_BYTES];

	for (unsigned d = 0; d < config->n_devices; d++) {
		uint64_t shares = 0;
		unsigned having = 0;

		for (unsigned i = 0; i < config->n_tenants; i++) {
			uint64_t share =
				kvpd_config_device_share(config, &config->tenants[i].limits, d);

			shares += share;
			having += share != 0;
		}
		snprintf(path, sizeof(path), "devices.%u", d);
		/* Who made no context cannot zero anything. */
		if (config->devices[d].no_copies && (having > 1 || config->unlisted_uids))
			return kvpd_wrong(l, path,
				"with `copy: none` nobody zeroes its memory, so one tenant alone "
				"may have a share of it; say `copy: engine`, or share: 0 for the "
				"others and `unlisted_uids: false`");
		if (shares <= config->devices[d].bytes)
			continue;
		return kvpd_wrong(l, path,
			"the shares of the tenants (%s) are more than its bytes (%s)",
			kvpd_human(shares, a), kvpd_human(config->devices[d].bytes, b));
	}
	return 0;
}

static int convert(struct kvpd_complaint *l, const struct raw_config *raw, struct kvpd_config *c)
{
	int r = get_top(l, raw, c);

	if (r == 0)
		r = get_devices(l, raw, c);
	if (r < 0)
		return r;
	c->defaults.share = c->memory / 4;
	r = get_limits(l, "defaults", &raw->defaults, c, &c->defaults);
	if (r < 0)
		return r;
	if (raw->n_tenants) {
		c->tenants = calloc(raw->n_tenants, sizeof(*c->tenants));
		if (!c->tenants)
			return -ENOMEM;
	}
	for (unsigned i = 0; i < raw->n_tenants; i++) {
		c->n_tenants++;
		r = get_tenant(l, i, &raw->tenants[i], c, &c->tenants[i]);
		if (r < 0)
			return r;
	}
	r = check_tenants(l, c);
	if (r == 0)
		r = check_devices(l, c);
	return r < 0 ? r : check_paths(l, c);
}

static struct kvpd_config *new_default(const char *path, uint64_t memory)
{
	struct kvpd_config *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	*c = (struct kvpd_config){
		.path = path ? strdup(path) : NULL,
		.runtime_dir = strdup("/run/kvpool"),
		.socket = strdup("kvpool.sock"),
		.user = strdup("kvpool"),
		.admin_group = strdup(""),
		.memory = memory,
		.extent = 64 * MIB,
		.numa_node = KVPD_NODE_ANY,
		.policy = strdup(KVP_EVICT_DEFAULT),
		.advisor = { .period_ms = 500, .batch = 256 },
		.realtime = KVPD_NEVER,
		.realtime_percent = 66,
		.claim_ttl_ms = 10000,
		.max_sessions = 1024,
		.handshake_ms = 5000,
		.log_level = KVPD_LOG_INFO,
		.unlisted_uids = true,
		.defaults = { .max_sessions = 256,
			.quality_target = 90,
			.min_materialized = 512,
			.tail_index = true,
			.rule = KVPD_RULE_DEFAULT },
	};
	if ((path && !c->path) || !c->runtime_dir || !c->socket || !c->user || !c->admin_group ||
		!c->policy)
		return kvpd_config_free(c);
	return c;
}

/* ---- public -------------------------------------------------------------------------------- */

static int parse(struct kvpd_complaint *l, const char *data, size_t bytes, struct kvpd_config *c)
{
	struct shape shape = { 0 };
	const cyaml_config_t how = {
		.log_fn = cyaml_said,
		.log_ctx = &shape,
		.mem_fn = cyaml_mem,
		.log_level = CYAML_LOG_WARNING,
		/* An alias repeats what stands elsewhere: a small text could grow without bound. */
		.flags = CYAML_CFG_NO_ALIAS,
	};
	static const struct raw_config empty;
	struct raw_config *raw = NULL;
	cyaml_err_t e;
	int r;

	e = cyaml_load_data(
		(const uint8_t *)data, bytes, &how, &top_schema, (cyaml_data_t **)&raw, NULL);
	if (e != CYAML_OK)
		return shape_error(l, &shape, e);
	r = convert(l, raw ? raw : &empty, c); /* an empty file leaves it NULL */
	cyaml_free(&how, &top_schema, raw, 0);
	return r;
}

int kvpd_config_parse(const char *name, const char *data, size_t bytes, uint64_t memory,
	char *ret_error, size_t error_bytes, struct kvpd_config **ret_config)
{
	struct kvpd_complaint l = { .name = name, .error = ret_error, .error_bytes = error_bytes };
	struct kvpd_config *c;
	const char *problem = "";
	unsigned line = 0;
	int r;

	r = kvpd_yamlpos_new(data, bytes, &line, &problem, &l.pos);
	if (r == -EINVAL)
		snprintf(ret_error, error_bytes, "%s:%u: %s", name, line, problem);
	if (r < 0)
		goto out;
	c = new_default(name, memory);
	r = c ? parse(&l, data, bytes, c) : -ENOMEM;
	if (r < 0) {
		kvpd_config_free(c);
		goto out;
	}
	c->pos = l.pos;
	*ret_config = c;
	return 0;
out:
	if (r == -ENOMEM)
		snprintf(ret_error, error_bytes, "%s: out of memory", name);
	kvpd_yamlpos_free(l.pos);
	return r;
}

static int read_file(const char *path, char **ret_data, size_t *ret_bytes)
{
	kvp_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;
	size_t used = 0;
	char *data;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
	data = malloc(KVPD_CONFIG_BYTES + 1);
	if (!data)
		return -ENOMEM;
	while (used <= KVPD_CONFIG_BYTES) {
		ssize_t n = read(fd, data + used, KVPD_CONFIG_BYTES + 1 - used);
		int e = errno;

		if (n < 0 && e == EINTR)
			continue;
		if (n < 0) {
			free(data);
			return -e;
		}
		if (n == 0)
			break;
		used += (size_t)n;
	}
	if (used > KVPD_CONFIG_BYTES) {
		free(data);
		return -EFBIG;
	}
	*ret_data = data;
	*ret_bytes = used;
	return 0;
}

int kvpd_config_load(const char *path, uint64_t memory, char *ret_error, size_t error_bytes,
	struct kvpd_config **ret_config)
{
	size_t bytes = 0;
	char *data = NULL;
	int r;

	if (!path) {
		struct kvpd_config *c = new_default(NULL, memory);

		if (!c)
			return -ENOMEM;
		c->defaults.share = c->memory / 4;
		*ret_config = c;
		return 0;
	}
	r = read_file(path, &data, &bytes);
	if (r < 0) {
		snprintf(ret_error, error_bytes, "%s: %s", path,
			r == -EFBIG ? "larger than 1 MiB, which no configuration is"
				    : strerror(-r));
		return r;
	}
	r = kvpd_config_parse(path, data, bytes, memory, ret_error, error_bytes, ret_config);
	free(data);
	return r;
}

struct kvpd_complaint kvpd_config_complaint(
	const struct kvpd_config *config, char *error, size_t error_bytes)
{
	return (struct kvpd_complaint){
		.name = config->path ? config->path : "built-in defaults",
		.pos = config->pos,
		.error = error,
		.error_bytes = error_bytes,
	};
}

int kvpd_config_set_runtime_dir(
	struct kvpd_config *config, const char *dir, char *ret_error, size_t error_bytes)
{
	struct kvpd_complaint l = { .name = "--runtime-dir",
		.one_value = true,
		.error = ret_error,
		.error_bytes = error_bytes };
	char *copy = strdup(dir);

	if (!copy) {
		snprintf(ret_error, error_bytes, "out of memory");
		return -ENOMEM;
	}
	free(config->runtime_dir);
	config->runtime_dir = copy;
	config->runtime_dir_given = true;
	return check_paths(&l, config);
}

struct kvpd_config *kvpd_config_free(struct kvpd_config *config)
{
	if (!config)
		return NULL;
	for (unsigned i = 0; i < config->n_tenants; i++) {
		free(config->tenants[i].name);
		free(config->tenants[i].uids);
		free(config->tenants[i].socket);
	}
	for (unsigned i = 0; i < config->n_devices; i++) {
		free(config->devices[i].name);
		free(config->devices[i].driver);
		free(config->devices[i].unit);
		free(config->devices[i].faults);
		free(config->devices[i].worker);
	}
	kvpd_yamlpos_free(config->pos);
	free(config->devices);
	free(config->tenants);
	free(config->path);
	free(config->runtime_dir);
	free(config->state_dir);
	free(config->calibrations);
	free(config->socket);
	free(config->user);
	free(config->admin_group);
	free(config->policy);
	free(config);
	return NULL;
}

uint64_t kvpd_config_grain(const struct kvpd_device_entry *device)
{
	return strcmp(device->driver, "cuda") ? 4096 : 2 * MIB;
}

uint64_t kvpd_config_device_share(
	const struct kvpd_config *config, const struct kvpd_limits *limits, unsigned device)
{
	uint64_t bytes = config->devices[device].bytes;

	if (limits->device_share[device] != KVPD_SHARE_DEFAULT)
		return limits->device_share[device];
	return bytes / (config->n_tenants ? config->n_tenants : 1) / 4096 * 4096;
}

bool kvpd_tenant_lists(const struct kvpd_tenant_config *tenant, uid_t uid)
{
	for (unsigned i = 0; i < tenant->n_uids; i++)
		if (tenant->uids[i] == uid)
			return true;
	return false;
}

const struct kvpd_tenant_config *kvpd_config_by_uid(const struct kvpd_config *config, uid_t uid)
{
	for (unsigned i = 0; i < config->n_tenants; i++)
		if (!config->tenants[i].socket && kvpd_tenant_lists(&config->tenants[i], uid))
			return &config->tenants[i];
	return NULL;
}

const struct kvpd_tenant_config *kvpd_config_by_name(
	const struct kvpd_config *config, const char *name)
{
	for (unsigned i = 0; i < config->n_tenants; i++)
		if (!strcmp(config->tenants[i].name, name))
			return &config->tenants[i];
	return NULL;
}
