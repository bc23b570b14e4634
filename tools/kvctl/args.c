/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctl's command lines: what a command takes is a table, from which come the parser, the messages
 * that say what would be right, and the help. Nothing that is given is ignored in silence.
 */
#include "tools/kvctl/kvctl.h"

#include <ctype.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPTIONS 16
#define KEY_LEAST   8u /* digits that name a block if no other begins so */
#define KEY_WHOLE   32u

const struct kvctl_option kvctl_common_options[] = {
	{ "socket", "PATH",
		"the daemon's main socket ($KVPOOL_SOCKET, else /run/kvpool/kvpool.sock)",
		KVCTL_TAKES_TEXT, 0, 0, 0 },
	{ "timeout", "SECONDS", "how long to wait for an answer (30)", KVCTL_TAKES_SECONDS, 0.001,
		86400, 0 },
	{ "json", NULL, "one line of JSON instead, errors too", KVCTL_TAKES_NOTHING, 0, 0, 0 },
	{ "help", NULL, "this", KVCTL_TAKES_NOTHING, 0, 0, 0 },
	{ 0 },
};

/* ---- values -------------------------------------------------------------------------------- */

static bool is_word_of(const char *words, const char *text)
{
	size_t n = strlen(text);

	for (const char *at = words; n && at; at = strchr(at, '|')) {
		at += *at == '|';
		if (!strncmp(at, text, n) && (at[n] == '|' || !at[n]))
			return true;
	}
	return false;
}

/* "a, b, c" of "a|b|c". */
static const char *listed(const char *words, char *buf, size_t bytes)
{
	size_t used = 0;

	for (; *words && used + 3 < bytes; words++) {
		buf[used++] = *words == '|' ? ',' : *words;
		if (*words == '|')
			buf[used++] = ' ';
	}
	buf[used] = 0;
	return buf;
}

static int wrong_value(
	struct kvctl *ctl, const char *command, const struct kvctl_option *o, const char *text)
{
	char all[128], given[1024] = "";

	if (*text)
		snprintf(given, sizeof(given), ", not '%s'", text);
	switch (o->takes) {
	case KVCTL_TAKES_WORD:
		return kvctl_fail(ctl, command, KVCTL_USAGE, "--%s takes one of %s%s", o->name,
			listed(o->value, all, sizeof(all)), given);
	case KVCTL_TAKES_TEXT:
		return kvctl_fail(ctl, command, KVCTL_USAGE, "--%s needs a value: --%s %s", o->name,
			o->name, o->value);
	case KVCTL_TAKES_BYTES:
		return kvctl_fail(ctl, command, KVCTL_USAGE,
			"--%s takes bytes, such as 512MiB or 8G, up to %.0f TiB%s", o->name,
			o->max / (double)(UINT64_C(1) << 40), given);
	default:
		return kvctl_fail(ctl, command, KVCTL_USAGE, "--%s takes %s from %.15g to %.15g%s",
			o->name, o->takes == KVCTL_TAKES_NUMBER ? "a whole number" : "seconds",
			o->min, o->max, given);
	}
}

/* "512", "8G", "8GiB": powers of 1024. NULL: not that, or out of range. */
static json_t *bytes_of(const struct kvctl_option *o, const char *text)
{
	static const char units[] = "KMGT";
	size_t digits = strspn(text, "0123456789");
	const char *unit = text[digits] ? strchr(units, text[digits]) : NULL;
	double n = strtod(text, NULL);

	if (!digits || (text[digits] && !unit) ||
		(unit && text[digits + 1] && strcmp(text + digits + 1, "iB")))
		return NULL;
	for (const char *u = units; unit && u <= unit; u++)
		n *= 1024;
	return n >= o->min && n <= o->max ? json_integer((json_int_t)n) : NULL;
}

/* The option's value as JSON; NULL: not possible. */
static json_t *value_of(const struct kvctl_option *o, const char *text)
{
	double n;
	char *end;

	switch (o->takes) {
	case KVCTL_TAKES_NOTHING:
		return json_true();
	case KVCTL_TAKES_TEXT:
		return *text ? json_string(text) : NULL;
	case KVCTL_TAKES_WORD:
		return is_word_of(o->value, text) ? json_string(text) : NULL;
	case KVCTL_TAKES_BYTES:
		return bytes_of(o, text);
	default:
		break;
	}
	if (o->otherwise > 0 && !text)
		return json_real(o->otherwise);
	n = strtod(text, &end);
	if (*text < '0' || *text > '9' || *end || !(n >= o->min && n <= o->max))
		return NULL;
	if (o->takes == KVCTL_TAKES_SECONDS)
		return json_real(n);
	/* Digits only: strtod() takes 1e3, and rounds what is large. */
	return text[strspn(text, "0123456789")]
		       ? NULL
		       : json_integer((json_int_t)strtoull(text, NULL, 10));
}

int kvctl_set_common(struct kvctl *ctl, const char *command, const struct kvctl_option *option,
	const char *value)
{
	json_t *v = value_of(option, value);

	if (!v)
		return wrong_value(ctl, command, option, value);
	if (!strcmp(option->name, "socket"))
		ctl->socket = value;
	else if (!strcmp(option->name, "timeout"))
		ctl->timeout_ms = (uint32_t)(json_number_value(v) * 1000);
	json_decref(v);
	return 0;
}

/* ---- help ---------------------------------------------------------------------------------- */

void kvctl_print_options(FILE *to, const struct kvctl_option *options)
{
	char head[80];

	for (; options->name; options++) {
		const char *value = options->value ? options->value : "";

		snprintf(head, sizeof(head), options->otherwise > 0 ? "--%s[=%s]" : "--%s %s",
			options->name, value);
		if (strlen(head) > 24)
			fprintf(to, "  %s\n  %-24s %s\n", head, "", options->help);
		else
			fprintf(to, "  %-24s %s\n", head, options->help);
	}
}

void kvctl_help(FILE *to, const struct kvctl_command *command)
{
	fprintf(to, "usage: kvctl %s%s%s%s\n\n%s\n", command->name,
		command->options->name ? " [OPTION]..." : "", command->operand ? " " : "",
		command->operand ? command->operand : "", command->summary);
	if (command->more)
		fprintf(to, "%s\n", command->more);
	fputc('\n', to);
	kvctl_print_options(to, command->options);
	kvctl_print_options(to, kvctl_common_options);
}

/* "--tenant, --space, --help": all options of the command. */
static const char *all_of(const struct kvctl_command *command, char *buf, size_t bytes)
{
	const struct kvctl_option *lists[] = { command->options, kvctl_common_options };
	size_t used = 0;

	for (int i = 0; i < 2; i++)
		for (const struct kvctl_option *o = lists[i]; o->name && used < bytes; o++)
			used += (size_t)snprintf(
				buf + used, bytes - used, "%s--%s", used ? ", " : "", o->name);
	return buf;
}

/* ---- reading ------------------------------------------------------------------------------- */

/* getopt's table of a command's options and the common ones; option i returns 256 + i. */
static size_t make_longs(const struct kvctl_command *command, struct option *longs,
	const struct kvctl_option **options)
{
	const struct kvctl_option *lists[] = { command->options, kvctl_common_options };
	size_t n = 0;

	for (int i = 0; i < 2; i++)
		for (const struct kvctl_option *o = lists[i]; o->name && n < MAX_OPTIONS - 1; o++) {
			longs[n] = (struct option){ o->name,
				o->takes == KVCTL_TAKES_NOTHING ? no_argument
				: o->otherwise > 0              ? optional_argument
								: required_argument,
				NULL, (int)(256 + n) };
			options[n++] = o;
		}
	memset(&longs[n], 0, sizeof(longs[n]));
	return n;
}

/* Says what is wrong with an option that getopt refused. */
static int complain(struct kvctl *ctl, const struct kvctl_command *command, int c, char **argv,
	const struct kvctl_option *const *options)
{
	const char *text = argv[optind - 1];
	char all[256];

	if (c == ':')
		return wrong_value(ctl, command->name, options[optopt - 256], "");
	if (optopt >= 256)
		return kvctl_fail(ctl, command->name, KVCTL_USAGE, "--%s takes no value: '%s'",
			options[optopt - 256]->name, text);
	return kvctl_fail(ctl, command->name, KVCTL_USAGE,
		"there is no option %s here; there are %s (kvctl %s --help)", text,
		all_of(command, all, sizeof(all)), command->name);
}

static int take(struct kvctl *ctl, const struct kvctl_command *command,
	const struct kvctl_option *o, bool common, const char *text, json_t *given)
{
	json_t *v;

	/* The value was forgotten, and getopt took the next option for it. */
	if (text && !strncmp(text, "--", 2))
		return wrong_value(ctl, command->name, o, text);
	if (common && o->takes != KVCTL_TAKES_NOTHING)
		return kvctl_set_common(ctl, command->name, o, text);
	if (common)
		return 0; /* --json was seen before; --help is not come to here */
	if (json_object_get(given, o->name))
		return kvctl_fail(ctl, command->name, KVCTL_USAGE, "--%s is given twice", o->name);
	v = value_of(o, text);
	if (!v)
		return wrong_value(ctl, command->name, o, text);
	json_object_set_new(given, o->name, v);
	return 0;
}

/* What is to be done, and perhaps with which device, or file. */
static int take_action(struct kvctl *ctl, const struct kvctl_command *command, int argc,
	char **argv, json_t *given)
{
	const char *action = optind < argc ? argv[optind++] : "";
	bool file = strstr(command->operand, "[FILE]") != NULL;
	char words[64], all[128];

	snprintf(words, sizeof(words), "%.*s", (int)strcspn(command->operand, " "),
		command->operand);
	if (!is_word_of(words, action))
		return kvctl_fail(ctl, command->name, KVCTL_USAGE, "one of %s is to be given%s%s%s",
			listed(words, all, sizeof(all)), *action ? ", not '" : "", action,
			*action ? "'" : "");
	json_object_set_new(given, "action", json_string(action));
	if (optind < argc)
		json_object_set_new(given, file ? "file" : "device", json_string(argv[optind++]));
	return optind == argc ? 0
			      : kvctl_fail(ctl, command->name, KVCTL_USAGE,
					"one %s at a time, '%s' is one too many",
					file ? "file" : "device", argv[optind]);
}

/* What is to be done with which space, and what it is given: NAME, and any number of KEY=VALUE. */
static int take_settings(struct kvctl *ctl, const struct kvctl_command *command, int argc,
	char **argv, json_t *given)
{
	static const char *const keys[] = { "precision", "budget", "hot_tokens", "stale_tokens",
		"floor" };

	if (argc - optind < 3 || strcmp(argv[optind], "set") != 0)
		return kvctl_fail(ctl, command->name, KVCTL_USAGE, "usage: kvctl %s %s",
			command->name, command->operand);
	json_object_set_new(given, "space", json_string(argv[optind + 1]));
	for (optind += 2; optind < argc; optind++) {
		const char *text = argv[optind], *value = strchr(text, '=');
		char key[32] = "";
		size_t i = 0;

		if (value)
			snprintf(key, sizeof(key), "%.*s", (int)(value - text), text);
		while (i < sizeof(keys) / sizeof(keys[0]) && strcmp(key, keys[i]) != 0)
			i++;
		if (i == sizeof(keys) / sizeof(keys[0]))
			return kvctl_fail(ctl, command->name, KVCTL_USAGE,
				"precision=, budget=, hot_tokens=, stale_tokens= and floor= can be "
				"set, not '%s'",
				text);
		if (json_object_get(given, key))
			return kvctl_fail(
				ctl, command->name, KVCTL_USAGE, "%s= is given twice", key);
		json_object_set_new(given, key, json_string(value + 1));
	}
	return 0;
}

static int take_operand(struct kvctl *ctl, const struct kvctl_command *command, int argc,
	char **argv, json_t *given)
{
	if (command->operand && strchr(command->operand, '='))
		return take_settings(ctl, command, argc, argv, given);
	if (command->operand && strchr(command->operand, '|'))
		return take_action(ctl, command, argc, argv, given);
	if (command->operand && optind < argc) {
		const char *key = argv[optind++];
		size_t digits = strspn(key, "0123456789abcdefABCDEF");

		if (key[digits] || digits < KEY_LEAST || digits > KEY_WHOLE)
			return kvctl_fail(ctl, command->name, KVCTL_USAGE,
				"a key is %u hexadecimal digits, or the first %u or more, not '%s'",
				KEY_WHOLE, KEY_LEAST, key);
		json_object_set_new(given, "key", json_string(key));
	} else if (command->operand && command->operand[0] != '[') {
		return kvctl_fail(ctl, command->name, KVCTL_USAGE,
			"which block? Give its key, or the first 8 digits or more of it (kvctl "
			"blocks lists them)");
	}
	if (optind == argc)
		return 0;
	return kvctl_fail(ctl, command->name, KVCTL_USAGE,
		command->operand ? "one key at a time, '%s' is one too many"
				 : "takes options only, not '%s' (kvctl %s --help)",
		argv[optind], command->name);
}

int kvctl_read(struct kvctl *ctl, const struct kvctl_command *command, int argc, char **argv,
	json_t **ret_given)
{
	const struct kvctl_option *options[MAX_OPTIONS];
	struct option longs[MAX_OPTIONS];
	size_t n_own = 0;
	json_t *given = json_object();
	int c, r = 0;

	*ret_given = NULL;
	make_longs(command, longs, options);
	while (command->options[n_own].name)
		n_own++;
	opterr = 0;
	optind = 0; /* makes getopt start anew */
	while (r == 0 && (c = getopt_long(argc, argv, ":h", longs, NULL)) != -1) {
		if (c == ':' || c == '?') {
			r = complain(ctl, command, c, argv, options);
		} else if (c == 'h' || !strcmp(options[c - 256]->name, "help")) {
			kvctl_help(stdout, command);
			json_decref(given);
			return KVCTL_OK;
		} else {
			/* getopt leaves a value that may be missing to the next argument. */
			if (options[c - 256]->otherwise > 0 && !optarg && optind < argc &&
				isdigit((unsigned char)argv[optind][0]))
				optarg = argv[optind++];
			r = take(ctl, command, options[c - 256], (size_t)(c - 256) >= n_own, optarg,
				given);
		}
	}
	if (r == 0)
		r = take_operand(ctl, command, argc, argv, given);
	if (r == 0)
		*ret_given = given;
	else
		json_decref(given);
	return r;
}
