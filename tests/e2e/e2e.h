/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the end-to-end tests share: a private daemon, a small model's space, prompts made from
 * numbers, payloads derived from the tokens above them, and the question whether all is clean
 * afterwards. Everything aborts with a message when it is used wrongly or the machine refuses.
 */
#ifndef E2E_H
#define E2E_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <jansson.h>

#include "libclient/kvpool.h"
#include "libclient/kvpool_admin.h"
#include "tools/common/kvt_daemon.h"

#define E2E_BT          16u /* tokens per block */
#define E2E_BLOCK_BYTES 1024u
#define E2E_WAIT_MS     20000u
/* What happens at once on an idle machine is waited for so long: tests run where others compute as well. */
#define E2E_LONG_MS 60000u

struct e2e {
	struct kvp_client *client;
	struct kvp_space *space;
};

/* Starts $KVPOOLD (set by the test's environment). */
void e2e_start(struct kvt_daemon *d, const struct kvt_daemon_opts *opts);

/* 0 or negative errno. */
int e2e_attach(struct e2e *e, const char *socket);
void e2e_detach(struct e2e *e);

/* Prompt number p: prompts of one parity share their first two blocks. */
void e2e_prompt(uint32_t p, uint32_t *tokens, uint32_t n);

/* Fills or checks a payload of the block that ends at tokens[n). */
void e2e_derive(const uint32_t *tokens, uint32_t n, void *payload);
bool e2e_derived(const uint32_t *tokens, uint32_t n, const void *payload);

/*
 * Stores what is missing of tokens[0..n), partial end included. Returns blocks stored, or the first
 * error. If the match is claimed, moves the claim along.
 */
int e2e_store(struct e2e *e, const uint32_t *tokens, uint32_t n, uint32_t timeout_ms, bool claim);

/* Matches, checks every payload; returns matched tokens, -EBADMSG for a wrong byte, or an error. */
int e2e_fetch(struct e2e *e, const uint32_t *tokens, uint32_t n);
/*
 * The same, again until all is found. A block that the daemon has just moved is a miss as long as the
 * library's thread has not mapped where it lies now.
 */
int e2e_fetch_all(struct e2e *e, const uint32_t *tokens, uint32_t n);

/* Asks {"verb": ...}; aborts if the daemon does not answer. The caller owns the answer. */
json_t *e2e_ask(const char *socket, const char *request, int *ret_status);

/*
 * Runs `check` with payloads, and waits up to E2E_LONG_MS until no client but `expected` is left and no
 * grant, lease or claim of a dead one. Returns 0, or prints what is wrong and returns -1.
 */
int e2e_clean(const char *socket, uint32_t expected_clients);

pid_t e2e_fork(void);
/* Exit status of a child, or 128 + signal. */
int e2e_reap(pid_t pid);
/* The process below the daemon that talks to a device; 0: there is none just now. */
pid_t e2e_worker(pid_t daemon);
void e2e_sleep_us(long us);
uint64_t e2e_seed(void);
uint64_t e2e_random(uint64_t *state);
_Noreturn void e2e_die(const char *what, int error);

#endif
