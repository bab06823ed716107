/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls that no library replaces: neither the C library's functions nor its syscall is used,
 * which sanitizers, UCX and this library itself replace.
 */
#ifndef SOFTROCE_SYSTEM_H
#define SOFTROCE_SYSTEM_H

#include <stddef.h>
#include <sys/types.h>

/* Each sets errno as the C library's function does. */
long sr_system_call(long number, long a, long b, long c, long d, long e, long f);

void *sr_system_mmap(void *address, size_t length, int prot, int flags, int fd, off_t offset);
int sr_system_munmap(void *address, size_t length);
int sr_system_madvise(void *address, size_t length, int advice);
int sr_system_mprotect(void *address, size_t length, int prot);
void *sr_system_mremap(void *address, size_t old, size_t length, int flags, void *to);

/* sr_system_view maps what a shared mapping shows, or the file behind that, at a second address. */
void *sr_system_view(void *address, size_t length);

/* sr_system_move moves a mapping of length bytes to another address, in place of what is there. */
int sr_system_move(void *from, size_t length, void *to);
#endif
