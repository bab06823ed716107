/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the workers of the torture test share. A round opens a device, runs all workers for some
 * tenths of a second and closes everything.
 */
#ifndef TORTURE_H
#define TORTURE_H

#include "net.h"
#include "setup.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define QPS	  4
#define BUDGET	  512 /* work requests whose completions were not polled */
#define UNCOUNTED (UINT64_C(1) << 63)

static struct setup s;
static struct ibv_cq_ex *cq; /* of all queue pairs of the round; uses s.channel */
static struct ibv_qp *qps[QPS];
static atomic_bool stop, draining; /* the end of a round; then outstanding work is flushed */
static atomic_uint posted, completed;
static bool daemon_dies;     /* calls may fail because it does */
static atomic_uint refused;  /* calls that did, */
static atomic_ulong done[8]; /* and what was done: see report */

enum work {
	MESSAGES,
	OBJECTS,
	EVENTS,
	CONNECTIONS,
	SOCKETS,
	CHILDREN,
	CANCELLED,
};

static inline void count(enum work w)
{
	atomic_fetch_add(&done[w], 1);
}

/* Each worker has its own random numbers. */
static _Thread_local uint64_t random_state;

static inline unsigned int below(unsigned int n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (unsigned int)(random_state >> 20) % n;
}

static inline bool readable(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	return poll(&p, 1, ms) > 0;
}

/* A call that may fail only if the daemon dies. False: it has failed. */
#define OK(call) (try_call((call), #call, __FILE__, __LINE__))

static inline bool try_call(bool succeeded, const char *call, const char *file, int line)
{
	int error = errno;
	if (succeeded)
		return true;
	atomic_fetch_add(&refused, 1);
	if (!daemon_dies) {
		fprintf(stderr, "%s:%d: %s failed: %s\n", file, line, call, strerror(error));
		abort();
	}
	return false;
}

/* Calls that must not fail, daemon or not. */
#define MUST(call)                                                                                 \
	do {                                                                                       \
		int must_ = (call);                                                                \
		if (must_) {                                                                       \
			fprintf(stderr, "%s:%d: %s: %d (%s)\n", __FILE__, __LINE__, #call, must_,  \
				strerror(errno));                                                  \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

#endif
