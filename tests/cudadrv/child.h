/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the driver run each in a child of its own: an error may be sticky, and the test program
 * itself must never initialise CUDA, so that it can fork.
 */
#ifndef TESTS_CUDADRV_CHILD_H
#define TESTS_CUDADRV_CHILD_H

#include <stdint.h>
#include <sys/types.h>

#include "gpu/kvp_cu.h"
#include "tests/cudadrv/cudadrv.h"

#define MIB (UINT64_C(1) << 20)

/* The child's driver. */
extern struct kvp_cu cu;

/* In a child: ends it with a line on stderr unless a call returns what is said. */
#define must(call)         child_check(call, CU_OK, #call, __FILE__, __LINE__)
#define gives(error, call) child_check(call, error, #call, __FILE__, __LINE__)
#define holds(condition)   child_check(!(condition), 0, "!(" #condition ")", __FILE__, __LINE__)
void child_check(int got, int want, const char *what, const char *file, int line);
/* Of what is not there nothing can be asked: the child ends, which is well where child_answers is open. */
#define needs(condition) child_needs(!!(condition), #condition, __FILE__, __LINE__)
void child_needs(int is, const char *what, const char *file, int line);

/*
 * Where answers are another driver's and may differ: a file to which a child writes what it was given otherwise, and ends
 * with CHILD_DIFFERS, in a line that begins with child_case; -1: nobody asks.
 */
#define CHILD_DIFFERS 97
#define CHILD_LACKS   96
extern int child_answers;
extern const char *child_case;

/* Loads the driver; open also initialises it and makes device 0's context current. */
void child_load(void);
void child_open(void);

/* Runs in a child that ends without exit handlers. The first returns its wait status. */
int child_run(void (*work)(void));
pid_t child_start(void (*work)(void));
int child_end(pid_t pid);

/* Notes of one word between a child and its parent, with a descriptor or -1. */
extern int child_link;
pid_t child_start_linked(void (*work)(void), int *ret_link);
void child_tell(int link, uint64_t word, int fd);
/* Fails the child or the test after 20 s. */
uint64_t child_hear(int link, int *ret_fd);

/* VMM: made, mapped with access `prot`; the address. A handle of 0 is not kept. */
uint64_t seg_new(uint64_t bytes, int handle_types, uint64_t *ret_handle);
uint64_t seg_map(uint64_t handle, uint64_t bytes, int prot);
int seg_export(uint64_t handle);
uint64_t seg_import(int fd);
uint64_t seg_reserve(uint64_t bytes);

struct CUstream_st *stream_new(void);
/* A kernel of the tests; unused parameters are 0. */
int launch(struct CUstream_st *stream, const char *name, uint64_t a, uint64_t b, uint64_t c,
	uint64_t d, uint64_t e);
uint64_t read_word(uint64_t at);

/* The machine of the test program, in a folder of its own. */
extern struct cudadrv *machine;
extern char machine_folder[64];
int machine_setup(const struct cudadrv_config *config);
void machine_teardown(void);

#endif
