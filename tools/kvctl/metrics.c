/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl metrics: figures for a monitoring system, in the text format that Prometheus reads. */
#include "tools/kvctl/kvctl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 160
#define NESTED     3 /* objects in objects */

/* What is asked: the daemon's answer itself, or each row of an array in it, by its name. */
static const struct source {
	const char *verb, *rows, *prefix;
	/* Members that tell rows apart, and what they are called as labels. */
	const char *key, *label;
	const char *more[3];
	/* Rows in each row, with its labels and two of their own. */
	const char *inner, *inner_prefix, *inner_label[2];
} sources[] = {
	{ .verb = "status", .prefix = "kvpool" },
	/* One that ends may have the same name as the next. */
	{ .verb = "tenants",
		.rows = "tenants",
		.prefix = "kvpool_tenant",
		.key = "name",
		.label = "tenant",
		.more = { "id" } },
	{ .verb = "spaces",
		.rows = "spaces",
		.prefix = "kvpool_space",
		.key = "space",
		.label = "space",
		.more = { "tenant", "tenant_id", "model" } },
	{ .verb = "devices",
		.rows = "devices",
		.prefix = "kvpool_device",
		.key = "name",
		.label = "device",
		.inner = "tenants",
		.inner_prefix = "kvpool_device_tenant",
		.inner_label = { "tenant", "tenant_id" } },
};

/* Numbers that name something. */
static const char *const ids[] = { "pid", "uid", "gid", "id", "tenant_id", "device", "space",
	"session", "numa_node", "bound_node" };

static bool is_id(const char *key)
{
	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
		if (!strcmp(key, ids[i]))
			return true;
	return false;
}

static bool is_counter(const char *name)
{
	const size_t n = strlen(name);

	return n > 6 && !strcmp(name + n - 6, "_total");
}

/* ---- families ------------------------------------------------------------------------------- */

/* All samples of one name stand together: {name: {"type", "samples": [{"labels", "value"}]}}. */
static void add(json_t *families, const char *name, const json_t *labels, const json_t *value)
{
	json_t *family = json_object_get(families, name);

	if (!family) {
		family = json_pack(
			"{s:s, s:[]}", "type", is_counter(name) ? "counter" : "gauge", "samples");
		json_object_set_new(families, name, family);
	}
	json_array_append_new(json_object_get(family, "samples"),
		json_pack("{s:O, s:O}", "labels", labels, "value", value));
}

/* Keys of maps are the daemon's own words, but may have what a name may not. */
static void join(char *name, const char *prefix, const char *key)
{
	snprintf(name, NAME_BYTES, "%s_%s", prefix, key);
	for (; *name; name++)
		if (!isalnum((unsigned char)*name))
			*name = '_';
}

static void add_object(
	json_t *families, const char *prefix, json_t *labels, const json_t *object, unsigned depth)
{
	char name[NAME_BYTES];
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)object, key, value) {
		join(name, prefix, key);
		if (json_is_number(value) && !is_id(key))
			add(families, name, labels, value);
		else if (json_is_object(value) && depth < NESTED)
			add_object(families, name, labels, value, depth + 1);
	}
}

static json_t *labelled(const json_t *with, const char *label, const json_t *value)
{
	json_t *labels = json_deep_copy(with);
	char number[24];

	if (json_is_integer(value)) {
		snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(value));
		json_object_set_new(labels, label, json_string(number));
	} else {
		json_object_set_new(labels, label,
			json_string(json_is_string(value) ? json_string_value(value) : ""));
	}
	return labels;
}

static json_t *labels_of(const struct source *s, const json_t *row)
{
	json_t *none = json_object();
	json_t *labels = labelled(none, s->label, json_object_get(row, s->key));

	json_decref(none);
	for (size_t i = 0; i < 3 && s->more[i]; i++) {
		json_t *more = labelled(labels, s->more[i], json_object_get(row, s->more[i]));

		json_decref(labels);
		labels = more;
	}
	return labels;
}

static void add_row(json_t *families, const struct source *s, const json_t *row)
{
	json_t *labels = labels_of(s, row), *inner;
	size_t i;

	add_object(families, s->prefix, labels, row, 0);
	json_array_foreach(s->inner ? json_object_get(row, s->inner) : NULL, i, inner) {
		const char *const *l = s->inner_label;
		json_t *one = labelled(labels, l[0], json_object_get(inner, l[0]));
		json_t *both = labelled(one, l[1], json_object_get(inner, l[1]));

		add_object(families, s->inner_prefix, both, inner, 0);
		json_decref(one);
		json_decref(both);
	}
	json_decref(labels);
}

/* ---- text ----------------------------------------------------------------------------------- */

static void print_text(const char *text)
{
	for (; *text; text++)
		if (*text == '\n')
			fputs("\\n", stdout);
		else if (*text == '\\' || *text == '"')
			printf("\\%c", *text);
		else
			putchar(*text);
}

static void print_sample(const char *name, const json_t *sample)
{
	json_t *labels = json_object_get(sample, "labels"), *label;
	const json_t *value = json_object_get(sample, "value");
	const char *key, *before = "{";

	fputs(name, stdout);
	json_object_foreach(labels, key, label) {
		printf("%s%s=\"", before, key);
		print_text(json_string_value(label));
		putchar('"');
		before = ",";
	}
	if (json_object_size(labels))
		putchar('}');
	if (json_is_integer(value))
		printf(" %lld\n", (long long)json_integer_value(value));
	else
		printf(" %.12g\n", json_real_value(value));
}

static void print_families(json_t *families)
{
	const char *name;
	json_t *family, *sample;
	size_t i;

	json_object_foreach(families, name, family) {
		printf("# TYPE %s %s\n", name, kvctl_text(family, "type"));
		json_array_foreach(json_object_get(family, "samples"), i, sample)
			print_sample(name, sample);
	}
}

/* ---- the command ---------------------------------------------------------------------------- */

int kvctl_metrics(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given)
{
	json_t *families = json_object(), *answer, *none = json_object(), *row;
	int status = KVCTL_OK;
	size_t k;

	(void)command;
	for (size_t i = 0; status == KVCTL_OK && i < sizeof(sources) / sizeof(sources[0]); i++) {
		const struct source *s = &sources[i];
		int r = kvctl_ask(ctl, kvctl_request(s->verb, given), &answer);

		if (r < 0)
			status = kvctl_refused(ctl, "metrics", r, answer);
		else if (!s->rows)
			add_object(families, s->prefix, none, answer, 0);
		else
			json_array_foreach(json_object_get(answer, s->rows), k, row)
				add_row(families, s, row);
		json_decref(answer);
	}
	if (status == KVCTL_OK && ctl->json)
		kvctl_print_json(families);
	else if (status == KVCTL_OK)
		print_families(families);
	json_decref(families);
	json_decref(none);
	return status;
}
