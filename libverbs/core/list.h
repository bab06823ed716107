/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An intrusive doubly linked list, as the kernel's list_head.
 */
#ifndef SOFTROCE_LIST_H
#define SOFTROCE_LIST_H

#include <stddef.h>

struct sr_link {
	struct sr_link *next, *prev;
};

/* The struct of the given type that contains member at ptr. */
#define sr_container(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#define sr_for_each(pos, list)                                                                     \
	for (struct sr_link *pos = (list)->next; pos != (list); pos = pos->next)

static inline void sr_list_init(struct sr_link *l)
{
	l->next = l->prev = l;
}

static inline void sr_list_add(struct sr_link *list, struct sr_link *l)
{
	l->prev = list->prev;
	l->next = list;
	list->prev->next = l;
	list->prev = l;
}

/* Removing an element twice is allowed. */
static inline void sr_list_del(struct sr_link *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	sr_list_init(l);
}

#endif
