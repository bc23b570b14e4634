/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces in memory: requests in time order, each a chain of blocks, numbered densely.
 *
 * Mooncake: JSON lines {"timestamp" ms, "input_length", "output_length", "hash_ids"}, one id per
 * 512-token block. Agent: JSON lines {"timestamp" us, "input" whole prompt, "output",
 * "session_id"}, in one file or all *.jsonl files of a folder; its tokens are the bytes of the
 * prompt. oracleGeneral: packed little-endian <IQIq> (seconds, object, bytes, next access).
 *
 * A block is identified by all that comes before it: the same id or text below another parent is
 * another block. A file is not trusted: sizes, counts and types are checked, and the line is named.
 */
#ifndef KVREPLAY_TRACE_H
#define KVREPLAY_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_BLOCK_NONE UINT32_C(0xffffffff)

enum trace_format { TRACE_MOONCAKE, TRACE_AGENT, TRACE_ORACLE };

struct trace_block {
	uint64_t content; /* hash id, digest of the text, or object id */
	uint32_t parent;  /* TRACE_BLOCK_NONE: first of its chain */
	uint32_t depth;
	uint32_t tokens; /* valid ones; fewer than block_tokens: partial */
	uint32_t bytes;  /* oracleGeneral: the object's; else 1 */
};

struct trace_request {
	uint64_t time_ns;
	uint64_t first; /* its blocks are ref[first] .. ref[first + blocks - 1] */
	uint64_t text;  /* agent: offset of its prompt in trace.text */
	uint32_t blocks;
	uint32_t tokens; /* oracleGeneral: bytes */
	uint32_t output_tokens;
	uint32_t session; /* agent: number of its session, else 0 */
};

struct trace {
	enum trace_format format;
	uint32_t block_tokens;
	uint32_t n_requests;
	uint32_t n_blocks;   /* distinct */
	uint32_t n_sessions; /* at least 1 */
	uint32_t longest;    /* blocks of the longest request */
	uint64_t n_refs;
	struct trace_request *request;
	uint32_t *ref;
	struct trace_block *block;
	char *text; /* agent, with keep_text: all prompts, one after another */
	uint64_t text_len;
};

struct trace_options {
	uint32_t block_tokens; /* agent; 0: 64 */
	bool overlap;          /* agent: all sessions begin at the same time */
	bool keep_text;        /* agent */
	double time_scale;     /* all intervals times this; 0: 1 */
	uint32_t from;         /* leave out the requests before this one */
	uint32_t count;        /* and all but so many from there on; 0: none */
};

/* -EINVAL: no such format. */
int trace_format_parse(const char *name, enum trace_format *ret_format);

/*
 * Reads a trace; free it with trace_done(). On failure says what and where in `error`.
 * -EBADMSG: the content is wrong. -EFBIG: more than 2^31 references. -ERANGE: a time_scale that
 * makes times of 2^64 ns. -ENOMEM, or of open/read.
 */
int trace_load(const char *path, enum trace_format format, const struct trace_options *options,
	struct trace *ret_trace, char *error, size_t error_len);
void trace_done(struct trace *t);

/* Bar on stderr if that is a terminal; done == total ends it. One thread at a time. */
void progress(const char *what, uint64_t done, uint64_t total);

#endif
