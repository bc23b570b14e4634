/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests beside a real kvpoold share: checks that print where and end the program, and an
 * engine with a small model and the KV of one prompt.
 */
#ifndef LIVE_H
#define LIVE_H

#include <signal.h>
#include <stdio.h>
#include <sys/types.h>

#include "libclient/kvpool.h"

#define T           64u /* tokens per block */
#define BLOCKS      24u
#define N           (BLOCKS * T)
#define TOKEN_BYTES (2u * 2 * 4 * (32 + 32)) /* 2 layers, bf16 */
#define WAIT_MS     20000u

/* A stopped daemon that must not be left so; 0: none. */
extern pid_t stopped;

/* Ends the program with status 1. */
_Noreturn void give_up(void);

#define CHECK(x)                                                                        \
	do {                                                                            \
		if (!(x)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); \
			give_up();                                                      \
		}                                                                       \
	} while (0)
#define EQUAL(a, b)                                                                              \
	do {                                                                                     \
		long long a_ = (long long)(a), b_ = (long long)(b);                              \
		if (a_ != b_) {                                                                  \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #a, \
				a_, b_);                                                         \
			give_up();                                                               \
		}                                                                                \
	} while (0)

extern const struct kvp_layer layers[2];

struct kvp_space_desc model(const char *name, uint32_t layout);

struct engine {
	struct kvp_client *client;
	struct kvp_space *space;
	uint32_t tokens[N + T];
	uint8_t *kv; /* NCLD, of tokens[0..N + T) */
	struct kvp_view_plane planes[2];
	struct kvp_view view;
};

/* Bytes that follow from the token and its place. */
void fill(struct engine *e, uint32_t seed);
struct engine *engine_new(const char *name, uint32_t layout, uint32_t seed);
void engine_free(struct engine *e);

/* Stores the first n tokens and waits until all are there. */
void store(struct engine *e, uint32_t n, uint32_t flags);
struct kvp_prefix *find(
	struct engine *e, uint32_t n, uint32_t flags, struct kvp_prefix_info *ret_info);
/* A new extent is a miss until the library has mapped it: a moment, if its thread gets the processor. */
struct kvp_prefix *find_soon(
	struct engine *e, uint32_t n, uint32_t want_tokens, struct kvp_prefix_info *ret_info);
/*
 * How many of the first n tokens are found: as many as are wanted, or, if that never comes, what was found in the
 * end. So may be a miss for a moment what the daemon has moved: for what is there, not for what must not be.
 */
uint32_t found_soon(struct engine *e, uint32_t n, uint32_t flags, uint32_t want_tokens);
/* The first n tokens of the prefix are those of the engine's kv. */
void same_bytes(struct engine *e, struct kvp_prefix *m, uint32_t n);

struct live_test {
	const char *name;
	void (*run)(void);
};

/* Runs them one after the other; the exit status. 77: there is no daemon. */
int live_main(const struct live_test *tests, size_t n);

#endif
