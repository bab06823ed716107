// SPDX-License-Identifier: Apache-2.0
/*
 * Page-aligned allocations that the daemon can map from the start: what programs register is
 * mostly allocated by these functions. So the memory need not be exchanged when it is registered,
 * which requires a program with one thread.
 *
 * Each is a mapping of a memfd. Smaller ones than a page and large ones are left to the C library,
 * as are all other allocations: an allocator keeps data of its own beside them, which a child of a
 * fork needs as it is at that moment.
 */
#include "core/cancel.h"
#include "core/export.h"
#include "memory/shared.h"
#include "core/system.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE	      ((size_t)4096)
#define LARGEST	      ((size_t)16 << 20) /* before the program opens a NIC */
#define LARGEST_OPEN  ((size_t)64 << 20)
#define MAX_TOTAL     ((size_t)1 << 30) /* which each fork copies */
#define MAX_ALIGNMENT ((size_t)2 << 20)
#define MAX_BLOCKS    64 /* each has a descriptor */
#define MAX_UNUSED    8
#define MAX_KEPT      ((size_t)16 << 20) /* larger memory is not kept when it is freed */

/* The memory of an allocation. If it is not used, it serves the next one of its length. */
struct block {
	uintptr_t start; /* 0: none */
	size_t length;
	uint64_t inode;
	bool used;
};

/* Protected by the lock of all memfds, which a fork holds. */
static struct block blocks[MAX_BLOCKS];

/* All blocks there ever were are between these addresses: to free other memory takes no lock. */
static _Atomic(uintptr_t) lowest = UINTPTR_MAX, highest;

/* The length of the largest allocation that is shared; 0: none is. */
static _Atomic(size_t) largest;

/* The next definitions of the functions, of the C library or another allocator. */
static struct {
	void (*free)(void *);
	void *(*realloc)(void *, size_t);
	size_t (*malloc_usable_size)(void *);
	int (*posix_memalign)(void **, size_t, size_t);
	void *(*aligned_alloc)(size_t, size_t);
	void *(*memalign)(size_t, size_t);
	void *(*valloc)(size_t);
	void *(*pvalloc)(size_t);
} next;

/* dlsym returns a pointer to data. */
static void find(void *function, const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);
	memcpy(function, &found, sizeof found);
}

/*
 * Finds the next definitions, once: before there are threads, because later their locks may be
 * held. It returns false to dlsym, if that frees or allocates memory.
 */
static bool find_next(void)
{
	static bool finding, found;
	if (found)
		return true;
	if (finding)
		return false;
	finding = true;
	find(&next.free, "free");
	find(&next.realloc, "realloc");
	find(&next.malloc_usable_size, "malloc_usable_size");
	find(&next.posix_memalign, "posix_memalign");
	find(&next.aligned_alloc, "aligned_alloc");
	find(&next.memalign, "memalign");
	find(&next.valloc, "valloc");
	find(&next.pvalloc, "pvalloc");
	return found = true;
}

/* A program that has an allocator of its own would free memory there. */
static bool frees_here(void)
{
	return dlsym(RTLD_DEFAULT, "free") == (void *)free &&
	       dlsym(RTLD_DEFAULT, "realloc") == (void *)realloc &&
	       dlsym(RTLD_DEFAULT, "malloc_usable_size") == (void *)malloc_usable_size;
}

__attribute__((constructor)) static void enable(void)
{
	find_next();
	if (sr_shared_enabled() && frees_here() && sysconf(_SC_PAGESIZE) == (long)PAGE)
		atomic_store(&largest, LARGEST);
}

/* Large memory costs a program that never uses a NIC more than it gains: each fork copies it. */
void sr_aligned_begin(void)
{
	if (atomic_load(&largest))
		atomic_store(&largest, LARGEST_OPEN);
}

static bool power_of_two(size_t n)
{
	return n && !(n & (n - 1));
}

static bool wanted(size_t alignment, size_t size)
{
	return size >= PAGE && size <= atomic_load_explicit(&largest, memory_order_relaxed) &&
	       power_of_two(alignment) && alignment >= PAGE && alignment <= MAX_ALIGNMENT;
}

/* Reserves addresses, of which the first is a multiple of alignment. */
static uintptr_t reserve(size_t alignment, size_t length)
{
	size_t most = length + alignment - PAGE;
	void *got = sr_system_mmap(NULL, most, PROT_NONE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (got == MAP_FAILED)
		return 0;
	uintptr_t first = (uintptr_t)got, start = (first + alignment - 1) & ~(alignment - 1);
	if (start > first)
		sr_system_munmap(got, start - first);
	if (first + most > start + length)
		sr_system_munmap((void *)(start + length), first + most - (start + length));
	return start;
}

/* A place for a block. NULL: there are too many, or they would be too large together. */
static struct block *free_place(size_t length)
{
	struct block *place = NULL;
	for (struct block *b = blocks; b < blocks + MAX_BLOCKS; b++) {
		if (b->start)
			length += b->length;
		else
			place = b;
	}
	return length <= MAX_TOTAL ? place : NULL;
}

/* Maps a new memfd. It returns NULL if there are too many, or the kernel refuses one. */
static struct block *new_block(size_t alignment, size_t length)
{
	struct block *b = free_place(length);
	uintptr_t start = b ? reserve(alignment, length) : 0;
	if (!start)
		return NULL;
	if (!sr_shared_map((void *)start, length, &b->inode)) {
		sr_system_munmap((void *)start, length);
		return NULL;
	}
	b->start = start;
	b->length = length;
	if (start < atomic_load(&lowest))
		atomic_store(&lowest, start);
	if (start + length > atomic_load(&highest))
		atomic_store(&highest, start + length);
	return b;
}

static struct block *unused_block(size_t alignment, size_t length)
{
	for (struct block *b = blocks; b < blocks + MAX_BLOCKS; b++)
		if (b->start && !b->used && b->length == length && b->start % alignment == 0)
			return b;
	return NULL;
}

static size_t count_unused(void)
{
	size_t n = 0;
	for (const struct block *b = blocks; b < blocks + MAX_BLOCKS; b++)
		n += b->start && !b->used;
	return n;
}

/* MS_INVALIDATE has no effect, but fails with EBUSY if a part is locked. */
static bool is_locked(const struct block *b)
{
	return sr_system_call(SYS_msync, (long)b->start, (long)b->length, MS_INVALIDATE, 0, 0, 0);
}

/*
 * Ends the use of a block, and reports whether it is kept. If not, the caller unmaps it. Memory
 * that was registered is not kept: the daemon may not map it again. Locked memory would count
 * against the program's limit.
 */
static bool keep_block(struct block *b)
{
	b->used = false;
	if (sr_shared_is_new(b->inode) && b->length <= MAX_KEPT && count_unused() <= MAX_UNUSED &&
	    !is_locked(b))
		return true;
	sr_shared_close(b->inode);
	b->start = 0;
	return false;
}

/*
 * Finds the block that is an allocation. NULL: there is none. Then the lock is not held, and hardly
 * ever was: few other allocations begin with a page.
 */
static struct block *lock_block_of(const void *p)
{
	uintptr_t start = (uintptr_t)p;
	if (start % PAGE || start < atomic_load_explicit(&lowest, memory_order_relaxed) ||
	    start >= atomic_load_explicit(&highest, memory_order_relaxed))
		return NULL;
	sr_shared_lock();
	for (struct block *b = blocks; b < blocks + MAX_BLOCKS; b++)
		if (b->start == start && b->used)
			return b;
	sr_shared_unlock();
	return NULL;
}

/* The length of a block, or 0 if another allocator has the memory. */
static size_t length_of(const void *p)
{
	const struct block *b = lock_block_of(p);
	if (!b)
		return 0;
	size_t length = b->length;
	sr_shared_unlock();
	return length;
}

/* Allocates a block. NULL: another allocator is to do it. */
static void *allocate(size_t alignment, size_t size)
{
	if (!wanted(alignment, size))
		return NULL;
	size_t length = (size + PAGE - 1) & ~(PAGE - 1);
	int saved = errno, cancel = sr_defer_cancel();
	sr_shared_lock();
	struct block *b = unused_block(alignment, length);
	if (!b)
		b = new_block(alignment, length);
	if (b)
		b->used = true;
	void *p = b ? (void *)b->start : NULL;
	sr_shared_unlock();
	sr_restore_cancel(cancel);
	errno = saved;
	return p;
}

SR_PUBLIC int posix_memalign(void **p, size_t alignment, size_t size)
{
	void *ours = allocate(alignment, size);
	if (!ours)
		return find_next() ? next.posix_memalign(p, alignment, size) : ENOMEM;
	*p = ours;
	return 0;
}

SR_PUBLIC void *aligned_alloc(size_t alignment, size_t size)
{
	void *ours = allocate(alignment, size);
	return ours || !find_next() ? ours : next.aligned_alloc(alignment, size);
}

SR_PUBLIC void *memalign(size_t alignment, size_t size)
{
	void *ours = allocate(alignment, size);
	return ours || !find_next() ? ours : next.memalign(alignment, size);
}

SR_PUBLIC void *valloc(size_t size)
{
	void *ours = allocate(PAGE, size);
	return ours || !find_next() ? ours : next.valloc(size);
}

/* It rounds the size up to whole pages, as blocks do. */
SR_PUBLIC void *pvalloc(size_t size)
{
	void *ours = allocate(PAGE, size);
	return ours || !find_next() ? ours : next.pvalloc(size);
}

SR_PUBLIC void free(void *p)
{
	struct block *b = lock_block_of(p);
	if (!b) {
		if (find_next())
			next.free(p);
		return;
	}
	int saved = errno, cancel = sr_defer_cancel();
	size_t length = b->length;
	bool kept = keep_block(b);
	sr_shared_unlock();
	/*
	 * Libraries that replace munmap must see the call: UCX deregisters what is unmapped, and
	 * would take later memory at the address for registered. They run without the lock.
	 */
	if (!kept)
		munmap(p, length);
	sr_restore_cancel(cancel);
	errno = saved;
}

SR_PUBLIC void *realloc(void *p, size_t size)
{
	size_t length = length_of(p);
	if (!length)
		return find_next() ? next.realloc(p, size) : NULL;
	if (size && size <= length)
		return p;
	void *larger = size ? malloc(size) : NULL;
	if (larger)
		memcpy(larger, p, length);
	if (larger || !size)
		free(p);
	return larger;
}

SR_PUBLIC size_t malloc_usable_size(void *p)
{
	size_t length = length_of(p);
	if (length)
		return length;
	return find_next() ? next.malloc_usable_size(p) : 0;
}
