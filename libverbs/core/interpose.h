/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of the C library that these libraries interpose.
 */
#ifndef SOFTROCE_INTERPOSE_H
#define SOFTROCE_INTERPOSE_H

#include <dlfcn.h>
#include <stdatomic.h>

/* Declares real: the next definition of a function, of the C library or another preloaded one. */
#define REAL(name, type)                                                                           \
	static _Atomic(type) found;                                                                \
	type real = atomic_load_explicit(&found, memory_order_relaxed);                            \
	if (!real)                                                                                 \
	atomic_store_explicit(&found, real = (type)dlsym(RTLD_NEXT, name), memory_order_relaxed)

#endif
