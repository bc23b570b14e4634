/* SPDX-License-Identifier: Apache-2.0 */
/* Results of kvrun as JSON and for people. */
#include "tools/kvrun/output.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the well-formed UTF-8 sequence at `s`, 0 if there is none. */
static size_t utf8_valid(const unsigned char *s, size_t left)
{
	size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

	if (n == 0 || n > left || s[0] > 0xf4)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	/* over-long, surrogates, beyond U+10FFFF */
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
		(s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	return n;
}

static json_t *json_text(const char *text, size_t bytes)
{
	char *out = malloc(3 * bytes + 1);
	size_t n = 0;
	json_t *json;

	if (!out)
		return NULL;
	for (size_t i = 0; i < bytes;) {
		size_t m = utf8_valid((const unsigned char *)text + i, bytes - i);

		memcpy(out + n, m ? text + i : "\xef\xbf\xbd", m ? m : 3);
		n += m ? m : 3;
		i += m ? m : 1;
	}
	json = json_stringn(out, n);
	free(out);
	return json;
}

/* Prints and drops `root`; a NULL or incomplete one came from memory running out. */
static int print_json(json_t *root, int complete)
{
	int ok = root && complete &&
		 json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) == 0 &&
		 putchar('\n') != EOF && fflush(stdout) == 0;

	json_decref(root);
	return ok ? 0 : -EIO;
}

static double per_second(double count, double ms)
{
	return ms > 0 ? count * 1e3 / ms : 0;
}

static json_t *json_coded(const struct result *r)
{
	return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "name", r->codec, "mode",
		r->mode == KVR_PRIMARY ? "primary" : "shadow", "blocks",
		(json_int_t)r->coded.blocks, "bytes", (json_int_t)r->coded.bytes, "native_bytes",
		(json_int_t)r->coded.native_bytes, "errors", (json_int_t)r->coded.errors);
}

/* The 32 bytes of struct kvp_space_desc that name the weights: 16 of the digest, and zeros. */
static void weights_text(const struct kvr_model *model, char text[static 65])
{
	const uint64_t words[4] = { model->digest_lo, model->digest_hi };
	const uint8_t *bytes = (const uint8_t *)words;

	for (size_t i = 0; i < sizeof(words); i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

int output_json(const struct kvr_model *model, uint32_t block_tokens, const struct result *r)
{
	json_t *tokens = json_array(), *root;
	char digest[33], weights[65];
	int ok = 1;

	weights_text(model, weights);

	snprintf(digest, sizeof(digest), "%016" PRIx64 "%016" PRIx64, r->digest_hi, r->digest_lo);
	for (size_t i = 0; i < r->n_tokens; i++)
		ok &= json_array_append_new(tokens, json_integer(r->tokens[i])) == 0;
	root = json_pack("{s:o, s:s, s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:s, s:s, s:o, s:o}",
		"model", json_text(model->name, strlen(model->name)), "weights_digest", weights,
		"kvpool",
		r->off             ? "off"
		: r->pool.attached ? "attached"
				   : "detached",
		"block_tokens", (int)block_tokens, "prompt_tokens", (int)r->prompt_tokens,
		"reused_tokens", (int)r->reused_tokens, "computed_tokens", (int)r->computed_tokens,
		"ttft_ms", r->ttft_ms, "prefill_tokens_per_s",
		per_second(r->prompt_tokens, r->ttft_ms), "decode_tokens_per_s",
		per_second(r->n_tokens ? (double)r->n_tokens - 1 : 0, r->decode_ms), "stop",
		r->stop, "logits_xxh3", digest, "text", json_text(r->text, r->text_bytes), "tokens",
		tokens);
	if (root && !r->off)
		ok &= json_object_set_new(root, "blocks",
			      json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I}", "read",
				      (int)r->pool.blocks_read, "device",
				      (int)r->pool.blocks_device, "coded",
				      (int)r->pool.blocks_coded, "decoded",
				      (int)r->pool.blocks_decoded, "coding_errors",
				      (json_int_t)r->pool.coding_errors, "slots",
				      (int)r->pool.blocks_slots, "private",
				      (int)r->pool.blocks_private, "published",
				      (int)r->pool.published)) == 0;
	if (root && r->pool.wanted)
		ok &= json_object_set_new(root, "wanted",
			      json_pack("{s:i, s:s}", "blocks", (int)r->pool.wanted, "outcome",
				      r->pool.want_why ? strerror(-r->pool.want_why) : "cached")) ==
		      0;
	if (root && r->pool.attention)
		ok &= json_object_set_new(root, "attention_reports",
			      json_integer((json_int_t)r->pool.attention)) == 0;
	if (root && r->codec)
		ok &= json_object_set_new(root, "codec", json_coded(r)) == 0;
	return print_json(root, ok);
}

void output_summary(const struct result *r)
{
	fprintf(stderr,
		"%u prompt tokens: %u reused, %u computed; first token after %.1f ms; then %zu "
		"tokens at %.1f/s; stopped by %s; kvpool %s\n",
		r->prompt_tokens, r->reused_tokens, r->computed_tokens, r->ttft_ms,
		r->n_tokens ? r->n_tokens - 1 : 0,
		per_second(r->n_tokens ? (double)r->n_tokens - 1 : 0, r->decode_ms), r->stop,
		r->off             ? "off"
		: r->pool.attached ? "attached"
				   : "not attached");
	if (r->codec)
		fprintf(stderr,
			"%u blocks in %s: %.1f kB beside %.1f kB of native ones; %" PRIu64
			" errors\n",
			r->coded.blocks, r->codec, (double)r->coded.bytes / 1e3,
			(double)r->coded.native_bytes / 1e3, r->coded.errors);
}

int output_score(const struct kvr_model *model, const struct score *s, int json)
{
	int n;

	if (!json) {
		n = printf(
			"%s%s%s, %u windows of %u tokens: %.4f nats per token, perplexity %.4f\n",
			s->path, s->codec ? " in " : "", s->codec ? s->codec : "", s->windows,
			s->window, s->nats, exp(s->nats));
		return n > 0 && fflush(stdout) == 0 ? 0 : -EIO;
	}
	return print_json(json_pack("{s:o, s:o, s:s*, s:i, s:i, s:f, s:f}", "model",
				  json_text(model->name, strlen(model->name)), "text",
				  json_text(s->path, strlen(s->path)), "codec", s->codec, "window",
				  (int)s->window, "windows", (int)s->windows, "nll_nats", s->nats,
				  "ppl", exp(s->nats)),
		1);
}
