/* SPDX-License-Identifier: Apache-2.0 */
/* A cache in private memory, as engines without kvpool have it. */
#include "tools/kvrun/kvr_kv.h"

#include <errno.h>
#include <stdlib.h>

struct heap_kv {
	struct kvr_kv kv; /* first: the engine's handle */
	void **block;
	uint32_t n_blocks; /* kept from one sequence to the next */
};

static struct heap_kv *heap_of(struct kvr_kv *kv)
{
	return (struct heap_kv *)kv;
}

static int heap_start(
	struct kvr_kv *kv, const uint32_t *tokens, uint32_t n, uint32_t limit, uint32_t *ret_reused)
{
	(void)kv, (void)tokens, (void)n, (void)limit;
	*ret_reused = 0;
	return 0;
}

static int heap_grow(struct kvr_kv *kv, uint32_t index)
{
	struct heap_kv *h = heap_of(kv);

	if (index == h->n_blocks) {
		void **block = realloc(h->block, (h->n_blocks + 1) * sizeof(*block));

		if (!block)
			return -ENOMEM;
		h->block = block;
		block[index] = kvr_block_alloc(&kv->geom);
		if (!block[index])
			return -ENOMEM;
		h->n_blocks++;
	}
	return 0;
}

static void *heap_block(struct kvr_kv *kv, uint32_t index)
{
	return heap_of(kv)->block[index];
}

static void heap_seal(struct kvr_kv *kv, uint32_t index, const uint32_t *tokens, uint32_t n)
{
	(void)kv, (void)index, (void)tokens, (void)n;
}

static void heap_end(struct kvr_kv *kv)
{
	(void)kv; /* the blocks are kept for the next sequence */
}

static void heap_free(struct kvr_kv *kv)
{
	struct heap_kv *h = heap_of(kv);

	for (uint32_t i = 0; i < h->n_blocks; i++)
		free(h->block[i]);
	free(h->block);
	free(h);
}

static const struct kvr_kv_ops heap_ops = {
	.start = heap_start,
	.grow = heap_grow,
	.block = heap_block,
	.seal = heap_seal,
	.end = heap_end,
	.free = heap_free,
};

int kvr_kv_heap_new(const struct kvr_geom *geom, struct kvr_kv **ret_kv)
{
	struct heap_kv *h;

	if (!kvr_geom_valid(geom))
		return -EINVAL;
	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	h->kv = (struct kvr_kv){ .ops = &heap_ops, .geom = *geom };
	*ret_kv = &h->kv;
	return 0;
}

struct kvr_kv *kvr_kv_free(struct kvr_kv *kv)
{
	if (kv)
		kv->ops->free(kv);
	return NULL;
}

void *kvr_block_alloc(const struct kvr_geom *geom)
{
	void *p;

	return posix_memalign(&p, 64, kvr_block_bytes(geom)) == 0 ? p : NULL;
}
