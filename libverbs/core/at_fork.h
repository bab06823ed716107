/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handlers of a fork. They are registered when the library is loaded: a fork that has begun does
 * not run handlers that another thread registers, but its child inherits what that thread locks
 * next.
 */
#ifndef SOFTROCE_AT_FORK_H
#define SOFTROCE_AT_FORK_H

#include <pthread.h>

#define SR_AT_FORK(before, after_parent, after_child)                                              \
	__attribute__((constructor)) static void watch_forks(void)                                 \
	{                                                                                          \
		pthread_atfork(before, after_parent, after_child);                                 \
	}

#endif
