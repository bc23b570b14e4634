/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the engine says what is wrong. Functions that judge something a user supplied (a model, a
 * tokenizer, a prompt) return a negative errno and fill a message that names the thing, the value
 * found and what would be right; all others return the errno alone.
 */
#ifndef KVR_ERROR_H
#define KVR_ERROR_H

#define KVR_ERROR_BYTES 512

struct kvr_error {
	char text[KVR_ERROR_BYTES]; /* one line, no newline, always terminated */
};

/*
 * Formats the message, cut to fit, and returns `code` unchanged, so that a failure is one
 * statement: return kvr_fail(err, -EINVAL, "..."). `err` may be NULL. Control bytes in the result
 * are replaced, since messages quote names out of files that may be hostile.
 */
int kvr_fail(struct kvr_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
