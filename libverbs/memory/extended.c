// SPDX-License-Identifier: Apache-2.0
/*
 * mremap. What it adds to private anonymous memory is zero. To a mapping of a memfd the kernel adds
 * what the file has behind it. That is cleared before, or if it is mapped elsewhere, private memory
 * is added instead. Memory of a memfd moves with the lock held: a thread that reads the list of
 * mappings meanwhile, as a fork does, could miss it.
 */
#include "core/cancel.h"
#include "core/export.h"
#include "memory/shared.h"
#include "core/system.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

/* After the daemon has sealed the file, more is not cleared: that could allocate all of it. */
#define MOST_CLEARED ((size_t)64 << 20)

typedef void *(*mremap_t)(void *, size_t, size_t, int, ...);

static void *by_system_call(void *address, size_t old, size_t length, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	void *to = va_arg(args, void *);
	va_end(args);
	return sr_system_mremap(address, old, length, flags, to);
}

/* The next definition. It must not be looked up by a call, which an allocator may make. */
static _Atomic(mremap_t) next = by_system_call;

__attribute__((constructor)) static void find_next(void)
{
	void *found = dlsym(RTLD_NEXT, "mremap");
	if (found)
		atomic_store(&next, (mremap_t)found);
}

/* An extension of memory, in whole pages. */
struct extension {
	uintptr_t from, to; /* to: 0, or for MREMAP_FIXED */
	size_t old, length;
	bool moves;		   /* if it has to */
	bool wait;		   /* for the lock */
	struct sr_mapping mapping; /* that contains the memory */
};

static size_t added(const struct extension *e)
{
	return e->length - e->old;
}

/* Reports whether the arguments extend memory as the kernel permits it. */
static bool parse(struct extension *e, void *address, size_t old, size_t length, int flags,
		  void *to)
{
	size_t mask = (size_t)sysconf(_SC_PAGESIZE) - 1;
	bool fixed = flags & MREMAP_FIXED;
	*e = (struct extension){
		.from = (uintptr_t)address,
		.to = fixed ? (uintptr_t)to : 0,
		.old = (old + mask) & ~mask,
		.length = (length + mask) & ~mask,
		.moves = flags & MREMAP_MAYMOVE,
	};
	if (!old || e->old < old || e->length <= e->old || (e->from | e->to) & mask ||
	    flags & ~(MREMAP_MAYMOVE | MREMAP_FIXED))
		return false;
	if (!fixed)
		return true;
	bool apart = e->to + e->length <= e->from || e->from + e->old <= e->to;
	return e->moves && e->to && e->to + e->length > e->to && apart;
}

/* Reports whether a mapping shows a part of what the file has behind the memory. */
static bool shows_addition(const struct sr_mapping *m, const struct extension *e)
{
	uint64_t first = e->mapping.offset + (e->from + e->old - e->mapping.start);
	return sr_shared_mapping(m) && m->inode == e->mapping.inode &&
	       m->offset < first + added(e) && m->offset + (m->end - m->start) > first;
}

/* Finds the mapping of the memory, if that is of a memfd. */
static bool find_mapping(struct extension *e)
{
	struct sr_mapping *m = &e->mapping;
	return sr_mapping_find(m, e->from) && sr_shared_mapping(m) && m->end - e->from >= e->old;
}

/*
 * Reports whether a part of what the file has behind the memory is mapped, or may be. A fork reads
 * memory through mappings that can be longer than the memory now is, so this waits for it.
 */
static bool is_elsewhere(const struct extension *e)
{
	struct sr_lines maps;
	struct sr_mapping m;
	bool found = false;
	if (!sr_lines_open(&maps, "/proc/self/maps"))
		return true;
	bool locked = sr_shared_take_lock(e->wait);
	while (!found && sr_mapping_next(&m, &maps))
		found = shows_addition(&m, e);
	if (locked)
		sr_shared_unlock();
	sr_lines_close(&maps);
	return found;
}

/*
 * Clears what the file has behind the memory, through a mapping of that and of the last page of the
 * memory. False: it cannot be cleared.
 */
static bool clear(const struct extension *e)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = e->from + e->old, end = e->from + e->length;
	if (!sr_shared_next_data(&e->mapping, &first, &end))
		return true;
	char *view = sr_system_view((void *)(e->from + e->old - page), page + added(e));
	if (view == MAP_FAILED)
		return false;
	sr_system_call(SYS_munlock, (long)view, (long)(page + added(e)), 0, 0, 0, 0);
	bool good = true;
	if (added(e) > MOST_CLEARED)
		sr_system_madvise(view + page, added(e), MADV_REMOVE);
	else
		good = !sr_advise(sr_system_madvise, view + page, added(e), MADV_DONTNEED);
	sr_system_munmap(view, page + added(e));
	return good;
}

static bool map_private(const struct extension *e, uintptr_t at, int flags)
{
	const struct sr_mapping *m = &e->mapping;
	int protection = (m->read ? PROT_READ : 0) | (m->write ? PROT_WRITE : 0) |
			 (m->execute ? PROT_EXEC : 0);
	void *p = sr_system_mmap((void *)at, added(e), protection,
				 flags | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p != MAP_FAILED && p != (void *)at) { /* Linux before 4.17 */
		sr_system_munmap(p, added(e));
		return false;
	}
	return p != MAP_FAILED;
}

/*
 * Does what mremap does, for memory of a memfd. A library that has replaced mremap, as UCX does,
 * forgets the memory; it runs without the lock.
 */
static void *remap_locked(void *address, size_t old, size_t length, int flags, void *to, bool wait)
{
	atomic_load_explicit(&next, memory_order_relaxed)(address, old, old, 0, NULL);
	bool locked = sr_shared_take_lock(wait);
	void *p = sr_system_mremap(address, old, length, flags, to);
	if (locked)
		sr_shared_unlock();
	return p;
}

/* Moves the memory to where private memory can be added. */
static void *move_and_add(struct extension *e)
{
	bool fixed = e->to;
	if (!fixed) {
		void *p = sr_system_mmap(NULL, e->length, PROT_NONE,
					 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			return MAP_FAILED;
		e->to = (uintptr_t)p;
	}
	if (map_private(e, e->to + e->old, MAP_FIXED) &&
	    remap_locked((void *)e->from, e->old, e->old, MREMAP_MAYMOVE | MREMAP_FIXED,
			 (void *)e->to, e->wait) != MAP_FAILED)
		return (void *)e->to;
	int error = errno;
	if (!fixed)
		sr_system_munmap((void *)e->to, e->length);
	errno = error;
	return MAP_FAILED;
}

static void *add_private(struct extension *e)
{
	if (!e->to && map_private(e, e->from + e->old, MAP_FIXED_NOREPLACE))
		return (void *)e->from;
	if (e->moves)
		return move_and_add(e);
	errno = ENOMEM;
	return MAP_FAILED;
}

void *sr_remap(void *address, size_t old, size_t length, int flags, void *to, bool wait)
{
	struct extension e;
	struct sr_mapping m;
	if (!sr_shared_any() || !old)
		return NULL;
	int saved = errno, cancel = sr_defer_cancel();
	void *p = NULL;
	bool extends = parse(&e, address, old, length, flags, to);
	e.wait = wait;
	if (extends && find_mapping(&e) && (is_elsewhere(&e) || !clear(&e)))
		p = add_private(&e);
	else if (sr_mapping_find(&m, (uintptr_t)address) && sr_shared_mapping(&m))
		p = remap_locked(address, old, length, flags, to, wait);
	sr_restore_cancel(cancel);
	if (p != MAP_FAILED)
		errno = saved;
	return p;
}

SR_PUBLIC void *mremap(void *address, size_t old, size_t length, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	void *to = va_arg(args, void *);
	va_end(args);
	void *p = sr_remap(address, old, length, flags, to, true);
	return p ? p
		 : atomic_load_explicit(&next, memory_order_relaxed)(address, old, length, flags,
								     to);
}
