/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of devices under the real daemon share: a daemon with one device, "one", of 256 slots; a
 * client; prompts that are stored, leased and copied there; and what an administrator asks. Everything
 * aborts with a message when the machine refuses.
 */
#ifndef TESTS_DEVICE_H
#define TESTS_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/e2e/e2e.h"

#define DEV_BLOCKS 40u
#define DEV_TOKENS (DEV_BLOCKS * E2E_BT)

struct dev_world {
	struct kvt_daemon daemon;
	struct e2e e;
};

struct dev_prompt {
	uint32_t tokens[DEV_TOKENS];
	struct kvp_prefix *match; /* leased */
};

/*
 * `device`: the rest of its entry in the configuration, which may say `bytes` and `segment` of its own; `more`: further
 * lines of that.
 */
void dev_start(struct dev_world *w, const char *device, const char *more);
/* To the daemon's socket of this name; NULL: to its main one. */
void dev_attach(struct dev_world *w, const char *socket);
/* Both. */
void dev_begin(struct dev_world *w, const char *device, const char *more);
/* Nothing may be left of the client. */
void dev_end(struct dev_world *w);

/* Stores the prompt of this number, and leases it. */
void dev_put(struct dev_world *w, struct dev_prompt *p, uint32_t number);
void dev_release(struct dev_prompt *p);
/*
 * Has it copied, and waits. How many of its blocks lie there, and *ret_why; or a negative errno,
 * -ETIMEDOUT: it was not answered.
 */
int dev_warm(struct dev_world *w, struct dev_prompt *p, int *ret_why);
/* Until all of it is there; false: it does not come to that in half a minute. */
bool dev_warm_all(struct dev_world *w, struct dev_prompt *p);
/* How many of its blocks lie there without a gap; -1: one of them is not what was stored. */
int dev_read(struct dev_world *w, const struct dev_prompt *p);

/* The answer to {"verb": verb, "device": "one"}; the caller owns it. Aborts if it is refused. */
json_t *dev_ask(struct dev_world *w, const char *verb);
/* The device's row of `devices`. */
json_t *dev_row(struct dev_world *w);
uint64_t dev_figure(struct dev_world *w, const char *name);
/* Asks again and again until the device is in that state, half a minute at most. */
bool dev_await(struct dev_world *w, const char *verb, const char *state);

#endif
