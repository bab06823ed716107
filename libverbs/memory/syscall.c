// SPDX-License-Identifier: Apache-2.0
/*
 * The C library's syscall. UCX overwrites the code of mmap, munmap and madvise, and then makes the
 * system calls with this function. So what these three do to shared memory is done here, too.
 */
#include "core/export.h"
#include "memory/shared.h"
#include "core/system.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>

typedef long (*syscall_t)(long, long, long, long, long, long, long);

/* The next definition. It must not be looked up by a call, which an allocator may make. */
static _Atomic(syscall_t) next = sr_system_call;

__attribute__((constructor)) static void find_next(void)
{
	void *found = dlsym(RTLD_NEXT, "syscall");
	if (found)
		atomic_store(&next, (syscall_t)found);
}

/* An allocator that makes the call may hold its locks, so this does not wait for any. */
static long on_memory(long number, long a, long b, long c, long d, long e, long f)
{
	syscall_t real = atomic_load_explicit(&next, memory_order_relaxed);
	void *p = NULL;
	if (number == SYS_madvise)
		return sr_advise(sr_system_madvise, (void *)a, (size_t)b, (int)c);
	if (number == SYS_mmap)
		p = sr_mapped_map((void *)a, (size_t)b, (int)c, (int)d, false);
	if (p)
		return (long)p;
	long result = real(number, a, b, c, d, e, f);
	if (number == SYS_munmap && !result)
		sr_mapped_unmapped((void *)a, (size_t)b, false);
	return result;
}

/*
 * The declaration of syscall has an ellipsis instead of the last six arguments, which are passed in
 * the same way.
 */
SR_PUBLIC long sr_syscall(long number, long a, long b, long c, long d, long e,
			  long f) __asm__("syscall");

long sr_syscall(long number, long a, long b, long c, long d, long e, long f)
{
	if (number == SYS_mmap || number == SYS_munmap || number == SYS_madvise)
		return on_memory(number, a, b, c, d, e, f);
	return atomic_load_explicit(&next, memory_order_relaxed)(number, a, b, c, d, e, f);
}
