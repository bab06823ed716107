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
 * - Parts can be unmapped, protected, moved and extended: the memfd is longer than any mapping, and
 *   what is added is zero (extended.c).
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

#include "core/list.h"
#include "memory/maps.h"

/* A memfd and the registered regions in it. */
struct sr_shared {
	struct sr_shared *next;
	int fd; /* -1: closed, or the parent's */
	dev_t device;
	uint64_t inode;
	unsigned int regions;
	bool registered; /* it has had a region */
};

/*
 * sr_shared_get returns the memfd that has length bytes at address, and the offset there. It
 * returns NULL and the reason, SOFTROCE_UNSHARED_*, if the memory is not shared.
 */
struct sr_shared *sr_shared_get(void *address, size_t length, uint64_t *offset, uint32_t *reason);

/*
 * A region that the daemon accesses in the process: what it writes to the pages while they are
 * exchanged would be lost. sr_in_process_add is called after the registration, and
 * sr_in_process_remove after the deregistration, also of a region that was not added.
 */
struct sr_in_process {
	struct sr_link link;
	uintptr_t first, end;
};

void sr_in_process_add(struct sr_in_process *r, const void *address, size_t length);
void sr_in_process_remove(struct sr_in_process *r);

/* sr_shared_put ends a use of it; NULL is allowed. */
void sr_shared_put(struct sr_shared *s);

/* sr_shared_enabled reports whether the user has asked for memory that the daemon can map. */
bool sr_shared_enabled(void);

/* sr_shared_required reports whether the user wants no other memory to be registered. */
bool sr_shared_required(void);

/* sr_aligned_begin shares larger allocations (aligned.c), since the program has opened a NIC. */
void sr_aligned_begin(void);

/*
 * Memory that is shared from when the program maps it (mapped.c), after sr_mapped_begin. For
 * arguments of mmap, sr_mapped_map returns such memory, or NULL if the kernel is to map private
 * memory. sr_mapped_unmapped is called when a part of the address space was unmapped. An allocator
 * that may hold its locks must not make them wait.
 */
void sr_mapped_begin(void);
void *sr_mapped_map(void *address, size_t length, int prot, int flags, bool wait);
void sr_mapped_unmapped(const void *address, size_t length, bool wait);

/*
 * sr_remap is mremap, for memory that may be shared. NULL: it is other memory. An allocator that
 * may hold its locks must not make it wait.
 */
void *sr_remap(void *address, size_t old, size_t length, int flags, void *to, bool wait);

/* sr_advise is madvise, for memory that may be shared; real does what concerns other memory. */
int sr_advise(int (*real)(void *, size_t, int), void *address, size_t length, int advice);

/*
 * For memory that is shared from the start (aligned.c, mapped.c). The caller holds the lock.
 * sr_shared_map maps a new memfd at address, in place of what is there, and returns its inode.
 * sr_shared_is_new reports whether nothing of it was registered yet, so that it can be. After
 * sr_shared_close it cannot.
 */
bool sr_shared_map(void *address, size_t length, uint64_t *inode);
bool sr_shared_is_new(uint64_t inode);
void sr_shared_close(uint64_t inode);

/*
 * sr_shared_next_data finds the first part of a mapping, between *first and *end, that the file has
 * pages for, and changes them to it. It returns false if there is none. If it cannot find out,
 * because the lock is taken or the descriptor closed, it changes nothing.
 */
bool sr_shared_next_data(const struct sr_mapping *m, uintptr_t *first, uintptr_t *end);

/* sr_shared_next_data_locked does the same for a caller that holds the lock. */
bool sr_shared_next_data_locked(const struct sr_mapping *m, uintptr_t *first, uintptr_t *end);

/* sr_shared_any reports whether memory was ever exchanged. */
bool sr_shared_any(void);

/* sr_shared_mapping reports whether a mapping shows exchanged memory. */
bool sr_shared_mapping(const struct sr_mapping *m);

/*
 * The lock of all memfds, which a fork holds, and what a child does with them. A caller that must
 * not wait, since it may hold an allocator's lock for which a fork waits with this one held, takes
 * it if it is free.
 */
void sr_shared_lock(void);
bool sr_shared_take_lock(bool wait);
void sr_shared_unlock(void);
void sr_shared_forget(void);

#endif
