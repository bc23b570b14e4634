/* SPDX-License-Identifier: Apache-2.0 */
/* kvrun's command line. */
#ifndef KVR_OPTIONS_H
#define KVR_OPTIONS_H

#include "tools/kvrun/kvr_half.h"
#include "tools/kvrun/kvr_kv_coded.h"

#include <stddef.h>
#include <stdint.h>

struct prompt_source {
	const char *text; /* or */
	const char *path;
};

struct options {
	const char *model;
	const char *tokenizer;        /* NULL: found beside the model */
	struct prompt_source *prompt; /* run in this order */
	size_t n_prompts;
	int lines; /* one more prompt per line of standard input */
	uint32_t steps;
	uint64_t seed;
	float temperature, top_p;
	const char *socket; /* NULL: the library's default */
	int off;            /* --kvpool off */
	int store;
	int reuse_tail;
	uint32_t want_ms;    /* 0: nothing is wanted */
	int serve;           /* compute for others, when the prompts are done; */
	int serve_idle;      /* only while it waits for that */
	uint32_t serve_rate; /* tokens a second; 0: any */
	uint32_t device;     /* KVR_NO_DEVICE; KVR_FIRST_DEVICE */
	int cuda;            /* --device cuda:N: */
	int cuda_or_cpu;     /* --device auto: that, if it can be used */
	uint32_t ordinal;
	uint32_t block_tokens;
	enum kvr_dtype dtype; /* of stored keys and values */
	int dtype_given;
	uint32_t report_every; /* 0: nothing is reported */
	uint32_t floor[2];     /* of keys and values, codecs of kvp_codec.h; both 0: exact */
	const char *logits;    /* a file for what tokens were chosen from; NULL: none */
	const char *codec;     /* as given; NULL: native */
	struct kvr_coded_opts coded;
	int mode_given;
	const char *perplexity; /* a text file; then the prompts are not looked at */
	uint32_t window, windows;
	int json;
};

/*
 * Returns 0 when there is something to run. Otherwise the program is done and *ret_exit is its
 * exit status: 0 after --help or --version, 2 after a message about what is wrong.
 */
int options_parse(int argc, char **argv, struct options *ret_options, int *ret_exit);

void options_done(struct options *options);

#endif
