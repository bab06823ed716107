// SPDX-License-Identifier: Apache-2.0
/*
 * madvise. Allocators expect memory to be zero after MADV_DONTNEED, which private anonymous memory
 * is. Of a shared file the same is achieved with MADV_REMOVE. MADV_FREE may free memory, or not: of
 * a shared file the kernel refuses it, so it is ignored.
 */
#include "core/cancel.h"
#include "core/export.h"
#include "memory/shared.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

typedef int (*madvise_t)(void *, size_t, int);

static int system_madvise(void *address, size_t length, int advice)
{
	return (int)syscall(SYS_madvise, address, length, advice);
}

/*
 * The next definition of madvise. Allocators call madvise with their locks held, and in children of
 * threaded programs: it must not be looked up then.
 */
static _Atomic(madvise_t) next = system_madvise;

__attribute__((constructor)) static void find_next(void)
{
	madvise_t found = (madvise_t)dlsym(RTLD_NEXT, "madvise");
	if (found)
		atomic_store(&next, found);
}

static bool concerns_private_memory(int advice)
{
	return advice == MADV_DONTNEED || advice == MADV_DONTNEED_LOCKED || advice == MADV_FREE;
}

static int advise_shared(madvise_t real, void *address, size_t length, int advice)
{
	return advice == MADV_FREE ? 0 : real(address, length, MADV_REMOVE);
}

/* Applies the advice to the memory up to a mapping of exchanged memory, then to that. */
static int advise_parts(madvise_t real, uintptr_t first, uintptr_t end, int advice)
{
	struct sr_lines maps;
	struct sr_mapping m;
	int error = 0;
	if (!sr_lines_open(&maps, "/proc/self/maps"))
		return EAGAIN;
	while (sr_mapping_next(&m, &maps) && m.start < end) {
		if (m.end <= first || !sr_shared_mapping(&m))
			continue;
		uintptr_t from = m.start > first ? m.start : first;
		uintptr_t to = m.end < end ? m.end : end;
		if (from > first && real((void *)first, from - first, advice))
			error = errno;
		if (advise_shared(real, (void *)from, to - from, advice))
			error = errno;
		first = to;
	}
	sr_lines_close(&maps);
	if (first < end && real((void *)first, end - first, advice))
		error = errno;
	return error;
}

SR_PUBLIC int madvise(void *address, size_t length, int advice)
{
	madvise_t real = atomic_load_explicit(&next, memory_order_relaxed);
	uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1, first = (uintptr_t)address;
	uintptr_t end = (first + length + mask) & ~mask;
	if (!sr_shared_any() || !concerns_private_memory(advice) || first & mask || end <= first)
		return real(address, length, advice);
	int cancel = sr_defer_cancel();
	int error = advise_parts(real, first, end, advice);
	sr_restore_cancel(cancel);
	if (!error)
		return 0;
	errno = error;
	return -1;
}
