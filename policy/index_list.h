/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Doubly linked lists of things that lie in an array and are known by their index there, so that a
 * link takes eight bytes and no allocation. Every list of policy/ is one of these: blocks in a
 * queue, groups of an age, ghosts. A list has a young end, where things usually come, and an old
 * end, where they usually go. Private to policy/.
 *
 * The caller says with every call where the links are; nothing here knows what else a thing holds.
 * A thing may be in as many lists at a time as it has links.
 */
#ifndef KVP_POLICY_INDEX_LIST_H
#define KVP_POLICY_INDEX_LIST_H

#include <stddef.h>
#include <stdint.h>

#define INDEX_NONE UINT32_MAX

/* Of a thing: its neighbours. Of a list: its ends. INDEX_NONE: there is none. */
struct index_link {
	uint32_t young;
	uint32_t old;
};

#define INDEX_LIST_EMPTY                               \
	{                                              \
		.young = INDEX_NONE, .old = INDEX_NONE \
	}

/* The link of thing 0, and how many bytes further on that of the next one is. */
struct index_links {
	void *first;
	size_t stride;
};

/* The links called `member` of the things in `array`. */
#define INDEX_LINKS(array, member) ((struct index_links){ &(array)->member, sizeof(*(array)) })

static inline struct index_link *index_link(struct index_links links, uint32_t i)
{
	return (struct index_link *)(void *)((char *)links.first + links.stride * i);
}

static inline void index_list_init(struct index_link *list)
{
	*list = (struct index_link)INDEX_LIST_EMPTY;
}

static inline int index_list_empty(const struct index_link *list)
{
	return list->old == INDEX_NONE;
}

/* Puts thing i between two neighbours, either of which may be missing: then i is that end. */
static inline void index_list_join(
	struct index_links links, struct index_link *list, uint32_t i, uint32_t young, uint32_t old)
{
	*index_link(links, i) = (struct index_link){ .young = young, .old = old };
	if (young != INDEX_NONE)
		index_link(links, young)->old = i;
	else
		list->young = i;
	if (old != INDEX_NONE)
		index_link(links, old)->young = i;
	else
		list->old = i;
}

static inline void index_push_young(struct index_links links, struct index_link *list, uint32_t i)
{
	index_list_join(links, list, i, INDEX_NONE, list->young);
}

static inline void index_push_old(struct index_links links, struct index_link *list, uint32_t i)
{
	index_list_join(links, list, i, list->old, INDEX_NONE);
}

/* On the old side of `young`, which is in the list; INDEX_NONE: at the young end. */
static inline void index_insert_older(
	struct index_links links, struct index_link *list, uint32_t i, uint32_t young)
{
	index_list_join(links, list, i, young,
		young != INDEX_NONE ? index_link(links, young)->old : list->young);
}

static inline void index_remove(struct index_links links, struct index_link *list, uint32_t i)
{
	const struct index_link *was = index_link(links, i);

	if (was->young != INDEX_NONE)
		index_link(links, was->young)->old = was->old;
	else
		list->young = was->old;
	if (was->old != INDEX_NONE)
		index_link(links, was->old)->young = was->young;
	else
		list->old = was->young;
}

#endif
