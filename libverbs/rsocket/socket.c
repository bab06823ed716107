// SPDX-License-Identifier: Apache-2.0
/*
 * The table of sockets by descriptor, and waiting on a socket.
 */
#include "rsocket/rs.h"

#include "core/at_fork.h"
#include "core/cancel.h"

#include <stdlib.h>
#include <time.h>

#define MAX_FD 65536

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rs *table[MAX_FD];
static int table_end; /* no descriptor in it is larger */

/* What the cancellation state of this thread was before rs_lock. */
static _Thread_local int cancel_state;

static void before_fork(void)
{
	pthread_mutex_lock(&table_lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&table_lock);
}

static void after_fork_child(void)
{
	for (int fd = 0; fd < table_end; fd++) {
		struct rs *s = table[fd];
		if (!s)
			continue;
		if (pthread_mutex_trylock(&s->lock)) {
			table[fd] = NULL;
			continue;
		}
		pthread_mutex_unlock(&s->lock);
		pthread_cond_init(&s->cond, NULL);
		s->polling = false;
		s->refs = 1;
	}
	pthread_mutex_unlock(&table_lock);
}

SR_AT_FORK(before_fork, after_fork_parent, after_fork_child)

struct rs *rs_get(int fd)
{
	struct rs *s = NULL;
	pthread_mutex_lock(&table_lock);
	if (fd >= 0 && fd < MAX_FD && table[fd]) {
		s = table[fd];
		s->refs++;
	}
	pthread_mutex_unlock(&table_lock);
	if (!s)
		errno = EBADF;
	return s;
}

void rs_put(struct rs *s)
{
	int saved = errno;
	pthread_mutex_lock(&table_lock);
	bool last = --s->refs == 0;
	pthread_mutex_unlock(&table_lock);
	if (last) {
		s->ops->release(s);
		pthread_mutex_destroy(&s->lock);
		pthread_cond_destroy(&s->cond);
		free(s);
	}
	errno = saved;
}

void rs_lock(struct rs *s)
{
	int state = sr_defer_cancel();
	pthread_mutex_lock(&s->lock);
	cancel_state = state;
}

struct rs *rs_enter(int fd)
{
	struct rs *s = rs_get(fd);
	if (s)
		rs_lock(s);
	return s;
}

void rs_leave(struct rs *s)
{
	int state = cancel_state;
	pthread_mutex_unlock(&s->lock);
	rs_put(s);
	sr_restore_cancel(state);
}

int rs_add(struct rs *s)
{
	if (s->fd >= MAX_FD)
		return EMFILE;
	pthread_mutex_lock(&table_lock);
	table[s->fd] = s;
	if (s->fd >= table_end)
		table_end = s->fd + 1;
	s->refs = 1;
	pthread_mutex_unlock(&table_lock);
	return 0;
}

bool rs_remove(struct rs *s, int fd)
{
	pthread_mutex_lock(&table_lock);
	bool removed = table[fd] == s;
	if (removed) {
		table[fd] = NULL;
		s->refs--;
	}
	pthread_mutex_unlock(&table_lock);
	return removed;
}

struct rs *rs_new(const struct rs_ops *ops, const struct rs *listener)
{
	struct rs *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->cond, NULL);
	s->ops = ops;
	s->fd = -1;
	s->opt = listener ? listener->opt : *rs_default_options();
	return s;
}

static int64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t rs_now(void)
{
	return now_us() / 1000;
}

int64_t rs_deadline(int64_t timeout)
{
	return timeout ? rs_now() + timeout : INT64_MAX;
}

/* Polls for completions, for up to polling_time. True: there were some. */
static bool busy_poll(struct rs *s)
{
	unsigned int before = s->event_count;
	int us = rs_default_poll();
	rs_process_cq(s);
	for (int64_t end = us ? now_us() + us : 0;
	     s->event_count == before && us && now_us() < end;)
		rs_process_cq(s);
	return s->event_count != before;
}

int rs_descriptors(const struct rs *s, struct pollfd out[2])
{
	out[0] = (struct pollfd){.fd = s->fd, .events = POLLIN};
	if (!s->comp)
		return 1;
	out[1] = (struct pollfd){.fd = s->comp->fd, .events = POLLIN};
	return 2;
}

/* The end of a call whose thread is cancelled, with the lock held. */
static void leave_cancelled(void *arg)
{
	struct rs *s = arg;
	pthread_mutex_unlock(&s->lock);
	rs_put(s);
}

static void end_polling(void *arg)
{
	struct rs *s = arg;
	pthread_mutex_lock(&s->lock);
	s->polling = false;
	pthread_cond_broadcast(&s->cond); /* another thread polls */
	leave_cancelled(s);
}

/* Polls on behalf of all waiting threads. 0, ETIMEDOUT or EINTR. */
static int poll_once(struct rs *s, int timeout)
{
	struct pollfd p[2];
	int got, error;
	s->ops->arm_cq(s);
	if (busy_poll(s))
		return 0;
	int n = rs_descriptors(s, p);
	s->polling = true;
	pthread_mutex_unlock(&s->lock);
	pthread_cleanup_push(end_polling, s);
	sr_restore_cancel(cancel_state);
	got = poll(p, n, timeout);
	error = errno;
	sr_defer_cancel();
	pthread_cleanup_pop(0);
	pthread_mutex_lock(&s->lock);
	s->polling = false;
	s->ops->take_cq_events(s);
	rs_process_cq(s);
	rs_process_cm_events(s);
	pthread_cond_broadcast(&s->cond);
	if (got < 0)
		return error;
	return got == 0 ? ETIMEDOUT : 0;
}

/* Waits for the thread that polls. 0 or ETIMEDOUT. */
static int wait_for_poller(struct rs *s, const struct timespec *deadline)
{
	int error;
	pthread_cleanup_push(leave_cancelled, s);
	sr_restore_cancel(cancel_state);
	error = deadline ? pthread_cond_clockwait(&s->cond, &s->lock, CLOCK_MONOTONIC, deadline)
			 : pthread_cond_wait(&s->cond, &s->lock);
	sr_defer_cancel();
	pthread_cleanup_pop(0);
	return error;
}

int rs_wait(struct rs *s, int timeout)
{
	if (!s->polling)
		return poll_once(s, timeout);
	if (timeout < 0)
		return wait_for_poller(s, NULL);
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	int64_t ns = t.tv_nsec + (int64_t)(timeout % 1000) * 1000000;
	t.tv_sec += timeout / 1000 + ns / 1000000000;
	t.tv_nsec = ns % 1000000000;
	return wait_for_poller(s, &t);
}
