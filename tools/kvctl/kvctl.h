/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of kvctl share: one question to the daemon is asked by ask.c, command lines are
 * read by args.c, answers are laid out by table.c; a command is a row in main.c. One thread.
 */
#ifndef KVCTL_H
#define KVCTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

/* Exit statuses, also in kvctl(1). */
#define KVCTL_OK     0
#define KVCTL_BAD    1 /* refused, or check or doctor found something */
#define KVCTL_USAGE  2
#define KVCTL_NOBODY 3 /* no kvpoold there, or it does not let this user administer it */

struct kvp_admin;

struct kvctl {
	const char *socket; /* NULL: the library's default */
	uint32_t timeout_ms;
	bool json;
	struct kvp_admin *admin; /* opened by the first question */
};

/* ---- args.c */

enum kvctl_takes {
	KVCTL_TAKES_NOTHING,
	KVCTL_TAKES_TEXT,
	KVCTL_TAKES_WORD,    /* one of those in `value`, which are separated by | */
	KVCTL_TAKES_NUMBER,  /* a whole one, from min to max */
	KVCTL_TAKES_SECONDS, /* from min to max, and fractions */
	KVCTL_TAKES_BYTES, /* a whole number of bytes, or of KiB, MiB, GiB or TiB, from min to max */
};

struct kvctl_option {
	const char *name;  /* NULL ends the list */
	const char *value; /* what the help calls it */
	const char *help;
	enum kvctl_takes takes;
	double min, max;
	double otherwise; /* of SECONDS: the value may be left out and is this then; 0: it may not */
};

struct kvctl_command {
	const char *name;
	const char *operand; /* what may follow: "KEY", "[KEY]", "a|b|c [NAME]", or NULL */
	const char *summary; /* a line */
	const char *more;    /* further lines for the command's own help, or NULL */
	const struct kvctl_option *options;
	/* given: the options by their names, operands as "key", or "action" and "device" or "file"; borrowed. An
	 * exit status. */
	int (*run)(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);
};

/*
 * Reads the command line behind the command's name; options of kvctl itself may stand there too. 0
 * and *ret_given; or an exit status with *ret_given NULL, also KVCTL_OK after --help.
 */
int kvctl_read(struct kvctl *ctl, const struct kvctl_command *command, int argc, char **argv,
	json_t **ret_given);
/* An option of kvctl itself, before or behind the command: --socket and --timeout. */
extern const struct kvctl_option kvctl_common_options[];
/* Takes the value of one of these, which is checked. 0 or an exit status. */
int kvctl_set_common(struct kvctl *ctl, const char *command, const struct kvctl_option *option,
	const char *value);
void kvctl_print_options(FILE *to, const struct kvctl_option *options);
/* What the command takes. */
void kvctl_help(FILE *to, const struct kvctl_command *command);

/* ---- ask.c */

/*
 * Asks the daemon. Takes the request. 0, or the request's negative errno; *ret_answer is set in
 * both cases and belongs to the caller. Exits with KVCTL_NOBODY and a message if there is nobody to
 * ask.
 */
int kvctl_ask(struct kvctl *ctl, json_t *request, json_t **ret_answer);
/* As above, but -ENOTCONN (and no message) if there is nobody to ask. */
int kvctl_try(struct kvctl *ctl, json_t *request, json_t **ret_answer);
/* The verb with what the command line gave. */
json_t *kvctl_request(const char *verb, const json_t *given);
/*
 * Says why the command failed: on stderr, or with --json as {"error", "exit"} on stdout. Returns
 * the exit status.
 */
__attribute__((format(printf, 4, 5))) int kvctl_fail(
	struct kvctl *ctl, const char *command, int status, const char *format, ...);
/* As above, in the daemon's words. Returns KVCTL_BAD. */
int kvctl_refused(struct kvctl *ctl, const char *command, int error, const json_t *answer);
/* One line of JSON on stdout. */
void kvctl_print_json(const json_t *document);

/* ---- table.c */

enum kvctl_kind {
	KVCTL_TEXT,
	KVCTL_COUNT,
	KVCTL_BYTES,
	KVCTL_RATE,    /* so many a second */
	KVCTL_SECONDS, /* a duration */
	KVCTL_PERCENT, /* of a fraction; empty if it is not there */
	KVCTL_FLAG,    /* yes or empty */
	KVCTL_KEY,     /* the first 16 digits of a key */
};

struct kvctl_column {
	const char *key; /* NULL ends the list */
	const char *title;
	enum kvctl_kind kind;
	int rank; /* where room is short, columns of higher rank are left out first; 0: never */
};

/*
 * An array of objects, aligned; with a line that says so if it is empty. It fits the terminal, or
 * $COLUMNS: long texts are cut short, columns are left out, and a line below says which.
 */
void kvctl_print_table(
	FILE *to, const json_t *rows, const struct kvctl_column *columns, const char *none);
/* Lines that the terminal has; 0: standard output is none. */
int kvctl_terminal_lines(void);
/*
 * The text without what a terminal would obey, in at most `columns` columns of it; names are chosen
 * by clients. Returns the columns it takes.
 */
int kvctl_printable(const char *text, int columns, char *out, size_t bytes);
/* "1.5 GiB"; buf holds at least 32 bytes. */
const char *kvctl_bytes(double bytes, char *buf);
const char *kvctl_duration(double seconds, char *buf);
/* So many a second: one digit after the point where that is much of it. */
const char *kvctl_rate(double rate, char *buf);
void kvctl_nap_ms(uint32_t ms);
double kvctl_number(const json_t *object, const char *key);    /* 0 if it is not there */
const char *kvctl_text(const json_t *object, const char *key); /* "" if it is not there */

/* ---- the commands */

int kvctl_status(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);
int kvctl_list(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);
int kvctl_one_block(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);
int kvctl_evict(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);
int kvctl_drain(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);
int kvctl_check(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);
int kvctl_space(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);
int kvctl_device(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);
int kvctl_what_if(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);
int kvctl_metrics(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);
int kvctl_thresholds(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);
int kvctl_version(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);
int kvctl_doctor(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given);

extern const struct kvctl_column kvctl_tenant_columns[];
extern const struct kvctl_column kvctl_device_columns[];
extern const struct kvctl_column kvctl_client_columns[];
/*
 * Adds what tables show: "hit_ratio", of all tokens that the object's clients have asked for, and
 * the members of its "rates".
 */
void kvctl_add_ratios(json_t *rows);
/* Likewise of devices: "queued" and "oldest_seconds", of all classes of copies. */
void kvctl_add_queues(json_t *devices);

#endif
