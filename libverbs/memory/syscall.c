// SPDX-License-Identifier: Apache-2.0
/*
 * The C library's syscall. UCX overwrites the code of mmap, munmap, mremap and madvise, and then
 * makes the system calls with this function. So what these do to shared memory is done here, too.
 */
#include "core/export.h"
#include "memory/shared.h"
#include "core/system.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

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
	if (number == SYS_mremap)
		p = sr_remap((void *)a, (size_t)b, (size_t)c, (int)d, (void *)e, false);
	if (p)
		return (long)p;
	long result = real(number, a, b, c, d, e, f);
	if (number == SYS_munmap && !result)
		sr_mapped_unmapped((void *)a, (size_t)b, false);
	return result;
}

/*
 * It reads all arguments that a system call may have, as the C library does. If it had seven of its
 * own, the compiler could write to where the last one is on the stack. With fewer, that is a
 * variable of the caller, which another thread may be changing: a futex, for instance.
 */
SR_PUBLIC long syscall(long number, ...)
{
	va_list args;
	va_start(args, number);
	long a = va_arg(args, long), b = va_arg(args, long), c = va_arg(args, long);
	long d = va_arg(args, long), e = va_arg(args, long), f = va_arg(args, long);
	va_end(args);
	if (number == SYS_mmap || number == SYS_munmap || number == SYS_mremap ||
	    number == SYS_madvise)
		return on_memory(number, a, b, c, d, e, f);
	return atomic_load_explicit(&next, memory_order_relaxed)(number, a, b, c, d, e, f);
}
