/* SPDX-License-Identifier: Apache-2.0 */
/* llama2.c's tokenizer file: pieces, scores, merges; and the tokenizer of plain bytes. */
#include "tools/kvrun/kvr_tokenizer.h"
#include "tools/kvrun/kvr_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX      (64u << 20)
#define TOKEN_BOS     1u
#define TOKEN_EOS     2u
#define TOKEN_BYTE_0  3u   /* of the raw bytes */
#define TOKEN_PIECE_0 259u /* of what encoding looks up and merges */
#define TOKEN_NONE    UINT32_MAX

static const char byte_table[256] = {
#define ROW(n)                                                                         \
	(char)(n), (char)((n) + 1), (char)((n) + 2), (char)((n) + 3), (char)((n) + 4), \
		(char)((n) + 5), (char)((n) + 6), (char)((n) + 7)
#define ROWS(n) ROW(n), ROW((n) + 8), ROW((n) + 16), ROW((n) + 24)
	ROWS(0), ROWS(32), ROWS(64), ROWS(96), ROWS(128), ROWS(160), ROWS(192), ROWS(224)
#undef ROWS
#undef ROW
};

struct entry {
	const char *bytes; /* in `file` or in byte_table */
	uint32_t length;
	float score;
};

struct kvr_tokenizer {
	uint32_t vocab;
	int merges; /* else the byte tokenizer, without the members below */
	char *file;
	struct entry *entry;
	uint32_t *sorted; /* ids from TOKEN_PIECE_0 on, by content, then by id */
	uint32_t n_sorted;
	uint32_t longest;
};

static uint32_t load_u32le(const char *p)
{
	const unsigned char *u = (const unsigned char *)p;

	return u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
}

static int compare_bytes(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
	int r = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);

	return r ? r : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static int by_content(const void *a, const void *b, void *arg)
{
	const struct entry *e = arg;
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	int r = compare_bytes(e[x].bytes, e[x].length, e[y].bytes, e[y].length);

	return r ? r : (x > y) - (x < y);
}

/* The lowest id with this content, or TOKEN_NONE. */
static uint32_t find(const struct kvr_tokenizer *t, const char *bytes, size_t length)
{
	uint32_t low = 0, high = t->n_sorted;

	if (length > t->longest)
		return TOKEN_NONE;
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		const struct entry *e = &t->entry[t->sorted[mid]];

		if (compare_bytes(e->bytes, e->length, bytes, length) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	if (low < t->n_sorted) {
		const struct entry *e = &t->entry[t->sorted[low]];

		if (compare_bytes(e->bytes, e->length, bytes, length) == 0)
			return t->sorted[low];
	}
	return TOKEN_NONE;
}

static int parse_entries(
	struct kvr_tokenizer *t, size_t bytes, const char *path, struct kvr_error *err)
{
	size_t at = 4;

	for (uint32_t i = 0; i < t->vocab; i++) {
		struct entry *e = &t->entry[i];
		uint32_t score;

		if (bytes - at < 8)
			return kvr_fail(err, -EINVAL,
				"%s: ends after %u of the model's %u tokens: it is truncated or "
				"belongs to another model",
				path, i, t->vocab);
		score = load_u32le(t->file + at);
		memcpy(&e->score, &score, sizeof(e->score));
		e->length = load_u32le(t->file + at + 4);
		at += 8;
		if (e->length > bytes - at)
			return kvr_fail(err, -EINVAL, "%s: token %u has a length of %u bytes", path,
				i, e->length);
		if (!(e->score > -1e30f && e->score < 1e30f))
			return kvr_fail(err, -EINVAL, "%s: token %u has no finite score", path, i);
		e->bytes = t->file + at;
		at += e->length;
		if (i >= TOKEN_BYTE_0 && i < TOKEN_PIECE_0) { /* spelled "<0x0A>" there */
			e->bytes = &byte_table[i - TOKEN_BYTE_0];
			e->length = 1;
		}
		if (e->length > t->longest)
			t->longest = e->length;
	}
	if (at != bytes)
		return kvr_fail(err, -EINVAL,
			"%s: %zu bytes follow the model's %u tokens: it belongs to another model",
			path, bytes - at, t->vocab);
	return 0;
}

static int open_merges(struct kvr_tokenizer *t, const char *path, struct kvr_error *err)
{
	size_t bytes;
	int r = kvr_file_load(path, FILE_MAX, err, &t->file, &bytes);

	if (r < 0)
		return r;
	if (bytes < 4 || t->vocab < TOKEN_PIECE_0)
		return kvr_fail(
			err, -EINVAL, "%s: not a tokenizer for a vocabulary of %u", path, t->vocab);
	t->entry = calloc(t->vocab, sizeof(*t->entry));
	t->sorted = calloc(t->vocab, sizeof(*t->sorted));
	if (!t->entry || !t->sorted)
		return kvr_fail(err, -ENOMEM, "%s: no memory", path);
	r = parse_entries(t, bytes, path, err);
	if (r < 0)
		return r;
	for (uint32_t i = TOKEN_PIECE_0; i < t->vocab; i++)
		t->sorted[t->n_sorted++] = i;
	qsort_r(t->sorted, t->n_sorted, sizeof(*t->sorted), by_content, t->entry);
	return 0;
}

int kvr_tokenizer_open(const char *path, uint32_t vocab, struct kvr_error *err,
	struct kvr_tokenizer **ret_tokenizer)
{
	struct kvr_tokenizer *t;
	int r = 0;

	if (!path && (vocab < 256 || vocab > 264))
		return kvr_fail(err, -EINVAL,
			"a vocabulary of %u tokens needs a tokenizer file: give one with "
			"--tokenizer",
			vocab);
	t = calloc(1, sizeof(*t));
	if (!t)
		return kvr_fail(err, -ENOMEM, "no memory for the tokenizer");
	t->vocab = vocab;
	t->merges = path != NULL;
	if (path)
		r = open_merges(t, path, err);
	if (r < 0) {
		kvr_tokenizer_free(t);
		return r;
	}
	*ret_tokenizer = t;
	return 0;
}

struct kvr_tokenizer *kvr_tokenizer_free(struct kvr_tokenizer *t)
{
	if (t) {
		free(t->sorted);
		free(t->entry);
		free(t->file);
		free(t);
	}
	return NULL;
}

/*
 * Merging works on a doubly linked list of pieces and a heap of candidate pairs. A candidate is
 * stale, and skipped, once one of its pieces was merged away or changed.
 */
struct piece {
	uint32_t token; /* TOKEN_NONE: merged into an earlier piece */
	uint32_t prev;  /* index, TOKEN_NONE at the ends */
	uint32_t next;
};

struct candidate {
	float score;
	uint32_t left; /* index of the first piece: text order */
	uint32_t left_token, right_token;
	uint32_t merged;
};

struct merge {
	const struct kvr_tokenizer *t;
	struct piece *piece;
	uint32_t n_pieces;
	struct candidate *heap;
	size_t n_heap;
	char *joined; /* 2 * longest bytes */
};

static int better(const struct candidate *a, const struct candidate *b)
{
	return a->score > b->score || (!(a->score < b->score) && a->left < b->left);
}

static void heap_push(struct merge *m, struct candidate c)
{
	size_t i = m->n_heap++;

	for (; i > 0 && better(&c, &m->heap[(i - 1) / 2]); i = (i - 1) / 2)
		m->heap[i] = m->heap[(i - 1) / 2];
	m->heap[i] = c;
}

static struct candidate heap_pop(struct merge *m)
{
	struct candidate top = m->heap[0], last = m->heap[--m->n_heap];
	size_t i = 0;

	for (size_t child = 1; child < m->n_heap; child = 2 * i + 1) {
		if (child + 1 < m->n_heap && better(&m->heap[child + 1], &m->heap[child]))
			child++;
		if (!better(&m->heap[child], &last))
			break;
		m->heap[i] = m->heap[child];
		i = child;
	}
	m->heap[i] = last;
	return top;
}

/* Looks whether the piece at `left` and its successor make a token. */
static void consider(struct merge *m, uint32_t left)
{
	const struct entry *a, *b;
	uint32_t right, id;

	if (left == TOKEN_NONE || m->piece[left].next == TOKEN_NONE)
		return;
	right = m->piece[left].next;
	if (m->piece[left].token < TOKEN_PIECE_0 || m->piece[right].token < TOKEN_PIECE_0)
		return;
	a = &m->t->entry[m->piece[left].token];
	b = &m->t->entry[m->piece[right].token];
	if (a->length + b->length > m->t->longest)
		return;
	memcpy(m->joined, a->bytes, a->length);
	memcpy(m->joined + a->length, b->bytes, b->length);
	id = find(m->t, m->joined, a->length + b->length);
	if (id != TOKEN_NONE)
		heap_push(m, (struct candidate){ m->t->entry[id].score, left, m->piece[left].token,
				     m->piece[right].token, id });
}

static void merge_all(struct merge *m)
{
	for (uint32_t i = 0; i < m->n_pieces; i++)
		consider(m, i);
	while (m->n_heap > 0) {
		struct candidate c = heap_pop(m);
		struct piece *left = &m->piece[c.left];
		struct piece *right;

		if (left->token != c.left_token || left->next == TOKEN_NONE)
			continue;
		right = &m->piece[left->next];
		if (right->token != c.right_token)
			continue;
		left->token = c.merged;
		right->token = TOKEN_NONE;
		left->next = right->next;
		if (left->next != TOKEN_NONE)
			m->piece[left->next].prev = c.left;
		consider(m, left->prev);
		consider(m, c.left);
	}
}

/* Bytes of the UTF-8 sequence that starts at `s`; ill-formed text goes on byte by byte. */
static size_t utf8_length(const char *s, size_t left)
{
	unsigned char c = (unsigned char)s[0];
	size_t n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;

	if (n > left)
		return 1;
	for (size_t i = 1; i < n; i++)
		if (((unsigned char)s[i] & 0xc0) != 0x80)
			return 1;
	return n;
}

static void add_piece(struct merge *m, uint32_t token)
{
	uint32_t i = m->n_pieces++;

	m->piece[i] = (struct piece){ token, i ? i - 1 : TOKEN_NONE, TOKEN_NONE };
	if (i)
		m->piece[i - 1].next = i;
}

static void split(struct merge *m, const char *text, size_t bytes)
{
	uint32_t space = find(m->t, " ", 1);

	if (bytes > 0 && space != TOKEN_NONE)
		add_piece(m, space);
	for (size_t at = 0; at < bytes;) {
		size_t n = utf8_length(text + at, bytes - at);
		uint32_t id = find(m->t, text + at, n);

		if (id != TOKEN_NONE)
			add_piece(m, id);
		else
			for (size_t i = 0; i < n; i++)
				add_piece(m, TOKEN_BYTE_0 + (unsigned char)text[at + i]);
		at += n;
	}
}

static int encode_merges(const struct kvr_tokenizer *t, uint32_t bos, const char *text,
	size_t bytes, uint32_t **ret_tokens, size_t *ret_count)
{
	struct merge m = { .t = t };
	size_t n = 0;
	uint32_t *tokens;

	/* each piece is a candidate's left side once, and each merge adds two candidates */
	m.piece = malloc((bytes + 1) * sizeof(*m.piece));
	m.heap = malloc(3 * (bytes + 1) * sizeof(*m.heap));
	m.joined = malloc(2 * (size_t)t->longest + 1);
	tokens = malloc((bytes + 2) * sizeof(*tokens));
	if (!m.piece || !m.heap || !m.joined || !tokens) {
		free(tokens);
		tokens = NULL;
		goto out;
	}
	split(&m, text, bytes);
	merge_all(&m);
	tokens[n++] = bos;
	for (uint32_t i = 0; i < m.n_pieces; i++)
		if (m.piece[i].token != TOKEN_NONE)
			tokens[n++] = m.piece[i].token;
out:
	free(m.joined);
	free(m.heap);
	free(m.piece);
	if (!tokens)
		return -ENOMEM;
	*ret_tokens = tokens;
	*ret_count = n;
	return 0;
}

int kvr_encode(const struct kvr_tokenizer *t, uint32_t bos, const char *text, size_t bytes,
	uint32_t **ret_tokens, size_t *ret_count)
{
	uint32_t *tokens;

	if (bytes > KVR_TEXT_MAX)
		return -EFBIG;
	if (t->merges)
		return encode_merges(t, bos, text, bytes, ret_tokens, ret_count);
	tokens = malloc((bytes + 1) * sizeof(*tokens));
	if (!tokens)
		return -ENOMEM;
	tokens[0] = bos;
	for (size_t i = 0; i < bytes; i++)
		tokens[i + 1] = (unsigned char)text[i];
	*ret_tokens = tokens;
	*ret_count = bytes + 1;
	return 0;
}

const char *kvr_decode(
	const struct kvr_tokenizer *t, uint32_t prev, uint32_t token, size_t *ret_bytes)
{
	const struct entry *e;

	*ret_bytes = 0;
	if (token >= t->vocab)
		return "";
	if (!t->merges) {
		if (token > 255)
			return "";
		*ret_bytes = 1;
		return &byte_table[token];
	}
	if (token == TOKEN_BOS || token == TOKEN_EOS)
		return "";
	e = &t->entry[token];
	if (prev == TOKEN_BOS && e->length > 0 && e->bytes[0] == ' ') {
		*ret_bytes = e->length - 1;
		return e->bytes + 1;
	}
	*ret_bytes = e->length;
	return e->bytes;
}
