/* SPDX-License-Identifier: Apache-2.0 */
/* kvrun's report on a finished prompt or a scored text. */
#ifndef KVR_OUTPUT_H
#define KVR_OUTPUT_H

#include "tools/kvrun/kvr_kv_coded.h"
#include "tools/kvrun/kvr_kv_pool.h"
#include "tools/kvrun/kvr_model.h"

#include <stddef.h>
#include <stdint.h>

struct result {
	uint32_t prompt_tokens;
	uint32_t reused_tokens;
	uint32_t computed_tokens;
	double ttft_ms;   /* from the prompt's text to the first new token */
	double decode_ms; /* of all others */
	const char *stop; /* "steps", "eos" or "context" */
	char *text;
	size_t text_bytes;
	uint32_t *tokens;
	size_t n_tokens;
	uint64_t digest_lo; /* XXH3-128 over every row of logits that was sampled from */
	uint64_t digest_hi;
	int off; /* --kvpool off; else `pool` counts */
	struct kvr_pool_report pool;
	const char *codec; /* NULL: native; else the two below */
	enum kvr_coded_mode mode;
	struct kvr_coded_report coded;
};

/* One line of JSON on standard output. Text that is not UTF-8 is shown with U+FFFD in its place. */
int output_json(const struct kvr_model *model, uint32_t block_tokens, const struct result *r);

/* One line for people on standard error; the text itself has been printed already. */
void output_summary(const struct result *r);

struct score {
	const char *path;
	const char *codec; /* NULL: native */
	uint32_t window, windows;
	double nats; /* per predicted token */
};

int output_score(const struct kvr_model *model, const struct score *s, int json);

#endif
