// SPDX-License-Identifier: Apache-2.0
/*
 * Anonymous memory that the daemon can map from the start: programs with threads, such as those of
 * UCX, map what they register with mmap. Before a program opens a NIC its mappings are left alone,
 * and so are those of an allocator of its own, in which a child of a fork needs the allocator's
 * data as they are at that moment.
 */
#include "core/cancel.h"
#include "core/export.h"
#include "memory/shared.h"
#include "core/system.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALLEST  ((size_t)64 << 10)
#define LARGEST	  ((size_t)64 << 20)
#define MAX_AREAS 32 /* each has a descriptor */

/* Memory that mmap has returned. It is in use as long as anything shows a part of the file. */
static struct area {
	uintptr_t start, end; /* where it was; 0: none */
	uint64_t inode;
	bool shown;
} areas[MAX_AREAS];

static atomic_bool enabled;

typedef void *(*mmap_t)(void *, size_t, int, int, int, off_t);
typedef int (*munmap_t)(void *, size_t);

/* The next definitions. They must not be looked up by a call, which an allocator may make. */
static _Atomic(mmap_t) next_mmap = sr_system_mmap;
static _Atomic(munmap_t) next_munmap = sr_system_munmap;

/* The C library maps the memory of its own allocator with a function that nothing replaces. */
static bool allocates_with_libc(void)
{
	Dl_info allocator, libc;
	void *malloc_found = dlsym(RTLD_DEFAULT, "malloc"),
	     *libc_found = dlsym(RTLD_DEFAULT, "abort");
	return malloc_found && libc_found && dladdr(malloc_found, &allocator) &&
	       dladdr(libc_found, &libc) && allocator.dli_fbase == libc.dli_fbase;
}

__attribute__((constructor)) static void find_next(void)
{
	void *found = dlsym(RTLD_NEXT, "mmap");
	if (found)
		atomic_store(&next_mmap, (mmap_t)found);
	found = dlsym(RTLD_NEXT, "munmap");
	if (found)
		atomic_store(&next_munmap, (munmap_t)found);
}

void sr_mapped_begin(void)
{
	if (sr_shared_enabled() && allocates_with_libc())
		atomic_store(&enabled, true);
}

/* Frees the areas of which nothing is mapped. The caller holds the lock. */
static void forget_unmapped(void)
{
	struct sr_lines maps;
	struct sr_mapping m;
	if (!sr_lines_open(&maps, "/proc/self/maps"))
		return;
	for (struct area *a = areas; a < areas + MAX_AREAS; a++)
		a->shown = false;
	while (sr_mapping_next(&m, &maps))
		for (struct area *a = areas; a < areas + MAX_AREAS; a++)
			a->shown |= sr_shared_mapping(&m) && m.inode == a->inode;
	sr_lines_close(&maps);
	for (struct area *a = areas; a < areas + MAX_AREAS; a++) {
		if (!a->start || a->shown)
			continue;
		sr_shared_close(a->inode);
		a->start = 0;
	}
}

static struct area *free_area(void)
{
	for (struct area *a = areas; a < areas + MAX_AREAS; a++)
		if (!a->start)
			return a;
	return NULL;
}

/* Maps a new memfd. NULL: the kernel is to map private memory. The caller holds the lock. */
static void *map_shared(size_t length)
{
	/* A program may have unmapped memory with system calls. */
	forget_unmapped();
	struct area *a = free_area();
	void *p = a ? sr_system_mmap(NULL, length, PROT_NONE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
		    : MAP_FAILED;
	if (p == MAP_FAILED)
		return NULL;
	if (!sr_shared_map(p, length, &a->inode)) {
		sr_system_munmap(p, length);
		return NULL;
	}
	a->start = (uintptr_t)p;
	a->end = a->start + length;
	return p;
}

void *sr_mapped_map(void *address, size_t length, int prot, int flags, bool wait)
{
	if (!atomic_load_explicit(&enabled, memory_order_relaxed) || address || length < SMALLEST ||
	    length > LARGEST || prot != (PROT_READ | PROT_WRITE) ||
	    flags != (MAP_PRIVATE | MAP_ANONYMOUS))
		return NULL;
	int saved = errno, cancel = sr_defer_cancel();
	void *p = NULL;
	if (sr_shared_take_lock(wait)) {
		p = map_shared(length);
		sr_shared_unlock();
	}
	sr_restore_cancel(cancel);
	errno = saved;
	return p;
}

SR_PUBLIC void *mmap(void *address, size_t length, int prot, int flags, int fd, off_t offset)
{
	void *p = sr_mapped_map(address, length, prot, flags, true);
	return p ? p
		 : atomic_load_explicit(&next_mmap, memory_order_relaxed)(address, length, prot,
									  flags, fd, offset);
}

SR_PUBLIC void *mmap64(void *address, size_t length, int prot, int flags, int fd, off64_t offset)
{
	return mmap(address, length, prot, flags, fd, offset);
}

static bool has_area(uintptr_t first, uintptr_t end)
{
	for (const struct area *a = areas; a < areas + MAX_AREAS; a++)
		if (a->start && a->start < end && a->end > first)
			return true;
	return false;
}

void sr_mapped_unmapped(const void *address, size_t length, bool wait)
{
	if (!atomic_load_explicit(&enabled, memory_order_relaxed))
		return;
	int saved = errno, cancel = sr_defer_cancel();
	if (sr_shared_take_lock(wait)) {
		if (has_area((uintptr_t)address, (uintptr_t)address + length))
			forget_unmapped();
		sr_shared_unlock();
	}
	sr_restore_cancel(cancel);
	errno = saved;
}

SR_PUBLIC int munmap(void *address, size_t length)
{
	int result = atomic_load_explicit(&next_munmap, memory_order_relaxed)(address, length);
	if (!result)
		sr_mapped_unmapped(address, length, true);
	return result;
}
