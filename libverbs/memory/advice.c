// SPDX-License-Identifier: Apache-2.0
/*
 * madvise. Allocators expect memory to be zero after MADV_DONTNEED, which private anonymous memory
 * is. Of a shared file the same is achieved with MADV_REMOVE, but not after the daemon has sealed
 * the file: then it is zeroed. MADV_FREE may free memory, or not: of a shared file the kernel
 * refuses it, so it is ignored.
 */
#include "core/cancel.h"
#include "core/export.h"
#include "memory/shared.h"
#include "core/system.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

typedef int (*madvise_t)(void *, size_t, int);

/*
 * The next definition of madvise. Allocators call madvise with their locks held, and in children of
 * threaded programs: it must not be looked up then.
 */
static _Atomic(madvise_t) next = sr_system_madvise;

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

/* Zeroes what the file has of a part of a mapping, which can be written at view. */
static void zero_at(char *view, const struct sr_mapping *m, uintptr_t first, uintptr_t end)
{
	uintptr_t from = first, to = end;
	while (from < end && sr_shared_next_data(m, &from, &to)) {
		memset(view + (from - first), 0, to - from);
		from = to;
		to = end;
	}
}

/*
 * Zeroes a part of a mapping, which the program may not be allowed to write, so through a mapping
 * of its own. Of locked memory that can exceed RLIMIT_MEMLOCK.
 */
static int zero(const struct sr_mapping *m, uintptr_t first, uintptr_t end)
{
	size_t length = end - first;
	char *view = sr_system_view((void *)first, length);
	if (view == MAP_FAILED && !m->write)
		return -1;
	if (view == MAP_FAILED) {
		zero_at((char *)first, m, first, end);
		return 0;
	}
	int result = sr_system_mprotect(view, length, PROT_READ | PROT_WRITE);
	if (!result)
		zero_at(view, m, first, end);
	sr_system_munmap(view, length);
	return result;
}

static int advise_shared(madvise_t real, const struct sr_mapping *m, uintptr_t first, uintptr_t end,
			 int advice)
{
	if (advice == MADV_FREE || !real((void *)first, end - first, MADV_REMOVE))
		return 0;
	/* MADV_REMOVE requires a mapping that is writable and not locked */
	bool locked = errno == EINVAL && advice == MADV_DONTNEED_LOCKED;
	return locked || errno == EPERM || errno == EACCES ? zero(m, first, end) : -1;
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
		if (advise_shared(real, &m, from, to, advice))
			error = errno;
		first = to;
	}
	sr_lines_close(&maps);
	if (first < end && real((void *)first, end - first, advice))
		error = errno;
	return error;
}

int sr_advise(madvise_t real, void *address, size_t length, int advice)
{
	uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1, first = (uintptr_t)address;
	uintptr_t end = (first + length + mask) & ~mask;
	if (!sr_shared_any() || !concerns_private_memory(advice) || first & mask || end <= first)
		return real(address, length, advice);
	int saved = errno, cancel = sr_defer_cancel();
	int error = advise_parts(real, first, end, advice);
	sr_restore_cancel(cancel);
	/* A system call that succeeds leaves errno alone, and so must free, which may make it. */
	errno = error ? error : saved;
	return error ? -1 : 0;
}

SR_PUBLIC int madvise(void *address, size_t length, int advice)
{
	return sr_advise(atomic_load_explicit(&next, memory_order_relaxed), address, length,
			 advice);
}
