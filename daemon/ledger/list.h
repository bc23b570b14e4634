/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive doubly linked lists with a head. Not thread-safe: a list has one owner, who calls. */
#ifndef KVPD_LIST_H
#define KVPD_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct kvpd_list {
	struct kvpd_list *prev;
	struct kvpd_list *next;
};

#define kvpd_container(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* Walks a list whose current element may be removed by the body. */
#define kvpd_each(it, tmp, head)                                      \
	for ((it) = (head)->next, (tmp) = (it)->next; (it) != (head); \
		(it) = (tmp), (tmp) = (it)->next)

static inline void kvpd_list_init(struct kvpd_list *head)
{
	head->prev = head->next = head;
}

static inline bool kvpd_list_empty(const struct kvpd_list *head)
{
	return head->next == head;
}

static inline void kvpd_list_append(struct kvpd_list *head, struct kvpd_list *item)
{
	item->prev = head->prev;
	item->next = head;
	head->prev->next = item;
	head->prev = item;
}

/* Leaves the item an empty list of its own, so that removing it again is harmless. */
static inline void kvpd_list_remove(struct kvpd_list *item)
{
	item->prev->next = item->next;
	item->next->prev = item->prev;
	kvpd_list_init(item);
}

/* Moves all items of a list to the end of another, in their order. */
static inline void kvpd_list_take_all(struct kvpd_list *to, struct kvpd_list *from)
{
	if (kvpd_list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	kvpd_list_init(from);
}

#endif
