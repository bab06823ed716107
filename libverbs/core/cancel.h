/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cancellation. A thread that is cancelled unlocks nothing and frees nothing. So a function of
 * these libraries acts on a cancellation only while it waits for an event, a connection or data,
 * and then holds nothing, or releases it in a handler. All others defer it.
 */
#ifndef SOFTROCE_CANCEL_H
#define SOFTROCE_CANCEL_H

#include <pthread.h>

/* Returns the state for sr_restore_cancel. */
static inline int sr_defer_cancel(void)
{
	int state;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	return state;
}

static inline void sr_restore_cancel(int state)
{
	pthread_setcancelstate(state, &state);
}

#endif
