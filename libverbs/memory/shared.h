/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the program that the daemon can map.
 *
 * When memory is registered, its pages are exchanged: their contents are copied to a memfd, which
 * is then mapped at the same address. To the program it remains the memory that it was:
 *
 * - Only private anonymous memory is exchanged, in whole pages that have nothing else in them, and
 *   only while the process has a single thread, so nothing accesses it meanwhile.
 * - A child of a fork gets a private copy, as of pages that a NIC has pinned (fork.c).
 * - MADV_DONTNEED clears the memory, and MADV_FREE is accepted (advice.c).
 * - Parts can be unmapped, protected, moved and extended: the memfd is longer than any mapping.
 * What is no longer mapped is not used, because each registration asks the kernel what is where.
 *
 * Memory with properties that would be lost is not exchanged: see unshared in shared.c.
 */
#ifndef SOFTROCE_SHARED_H
#define SOFTROCE_SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "memory/maps.h"

/* A memfd and the registered regions in it. */
struct sr_shared {
	struct sr_shared *next;
	int fd; /* -1: closed, or the parent's */
	dev_t device;
	uint64_t inode;
	unsigned int regions;
};

/*
 * sr_shared_get returns the memfd that has length bytes at address, and the offset there. It
 * returns NULL and the reason, SOFTROCE_UNSHARED_*, if the memory is not shared.
 */
struct sr_shared *sr_shared_get(void *address, size_t length, uint64_t *offset, uint32_t *reason);

/* sr_shared_put ends a use of it; NULL is allowed. */
void sr_shared_put(struct sr_shared *s);

/*
 * sr_shared_next_data finds the first part of a mapping, between *first and *end, that the file has
 * pages for, and changes them to it. It returns false if there is none. If it cannot find out,
 * because the lock is taken or the descriptor closed, it changes nothing.
 */
bool sr_shared_next_data(const struct sr_mapping *m, uintptr_t *first, uintptr_t *end);

/* sr_shared_any reports whether memory was ever exchanged. */
bool sr_shared_any(void);

/* sr_shared_mapping reports whether a mapping shows exchanged memory. */
bool sr_shared_mapping(const struct sr_mapping *m);

/* For forks: the lock of all memfds, and what a child does with them. */
void sr_shared_lock(void);
void sr_shared_unlock(void);
void sr_shared_forget(void);

#endif
