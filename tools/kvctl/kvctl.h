/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of kvctl share. One thread. */
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

/* ---- ask.c */

/*
 * Asks the daemon. Takes the request. 0, or the request's negative errno; *ret_answer is set in
 * both cases and belongs to the caller. Exits with KVCTL_NOBODY and a message if there is nobody to
 * ask.
 */
int kvctl_ask(struct kvctl *ctl, json_t *request, json_t **ret_answer);
/* As above, but -ENOTCONN (and no message) if there is nobody to ask. */
int kvctl_try(struct kvctl *ctl, json_t *request, json_t **ret_answer);
/* Says on stderr why the request was refused, in the daemon's words. */
void kvctl_refused(const char *command, int error, const json_t *answer);
/* One line of JSON on stdout. */
void kvctl_print_json(const json_t *document);

/* ---- table.c */

enum kvctl_kind {
	KVCTL_TEXT,
	KVCTL_COUNT,
	KVCTL_BYTES,
	KVCTL_MS,   /* a duration */
	KVCTL_FLAG, /* its title's first word if true */
	KVCTL_KEY,  /* the first 16 digits of a key */
};

struct kvctl_column {
	const char *key; /* NULL ends the list */
	const char *title;
	enum kvctl_kind kind;
};

/* An array of objects, aligned; with a line that says so if it is empty. */
void kvctl_print_table(
	FILE *to, const json_t *rows, const struct kvctl_column *columns, const char *none);
/* "1.5 GiB"; buf holds at least 32 bytes. */
const char *kvctl_bytes(double bytes, char *buf);
const char *kvctl_duration(double seconds, char *buf);
double kvctl_number(const json_t *object, const char *key);    /* 0 if it is not there */
const char *kvctl_text(const json_t *object, const char *key); /* "" if it is not there */

/* ---- status.c */

int kvctl_status(struct kvctl *ctl, int argc, char **argv);
extern const struct kvctl_column kvctl_tenant_columns[];
extern const struct kvctl_column kvctl_client_columns[];

/* ---- doctor.c */

int kvctl_doctor(struct kvctl *ctl, int argc, char **argv);

#endif
