// SPDX-License-Identifier: Apache-2.0
#include "core/system.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define MAX_ERRNO 4095

/* Another architecture has no definition of system_call. */
#if defined __x86_64__
static long system_call(long number, long a, long b, long c, long d, long e, long f)
{
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}
#elif defined __aarch64__
static long system_call(long number, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;
	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
}
#endif

long sr_system_call(long number, long a, long b, long c, long d, long e, long f)
{
	long result = system_call(number, a, b, c, d, e, f);
	if (result < 0 && result >= -MAX_ERRNO) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

void *sr_system_mmap(void *address, size_t length, int prot, int flags, int fd, off_t offset)
{
	return (void *)sr_system_call(SYS_mmap, (long)address, (long)length, prot, flags, fd,
				      offset);
}

int sr_system_munmap(void *address, size_t length)
{
	return (int)sr_system_call(SYS_munmap, (long)address, (long)length, 0, 0, 0, 0);
}

int sr_system_madvise(void *address, size_t length, int advice)
{
	return (int)sr_system_call(SYS_madvise, (long)address, (long)length, advice, 0, 0, 0);
}

int sr_system_mprotect(void *address, size_t length, int prot)
{
	return (int)sr_system_call(SYS_mprotect, (long)address, (long)length, prot, 0, 0, 0);
}

void *sr_system_mremap(void *address, size_t old, size_t length, int flags, void *to)
{
	return (void *)sr_system_call(SYS_mremap, (long)address, (long)old, (long)length, flags,
				      (long)to, 0);
}

void *sr_system_view(void *address, size_t length)
{
	return sr_system_mremap(address, 0, length, MREMAP_MAYMOVE, NULL);
}

int sr_system_move(void *from, size_t length, void *to)
{
	void *at = sr_system_mremap(from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	return at == MAP_FAILED ? -1 : 0;
}
