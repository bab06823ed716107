// SPDX-License-Identifier: Apache-2.0
/*
 * The table of sockets by descriptor, and waiting on a socket.
 */
#include "rsocket/rs.h"

#include <stdlib.h>
#include <time.h>

#define MAX_FD 65536

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rs *table[MAX_FD];

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

int rs_add(struct rs *s)
{
	if (s->fd >= MAX_FD)
		return EMFILE;
	pthread_mutex_lock(&table_lock);
	table[s->fd] = s;
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

/* Polls on behalf of all waiting threads. 0, ETIMEDOUT or EINTR. */
static int poll_once(struct rs *s, int timeout)
{
	struct pollfd p[2];
	s->ops->arm_cq(s);
	if (busy_poll(s))
		return 0;
	int n = rs_descriptors(s, p);
	s->polling = true;
	pthread_mutex_unlock(&s->lock);
	int got = poll(p, n, timeout);
	int error = errno;
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

int rs_wait(struct rs *s, int timeout)
{
	if (!s->polling)
		return poll_once(s, timeout);
	if (timeout < 0)
		return pthread_cond_wait(&s->cond, &s->lock);
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	int64_t ns = t.tv_nsec + (int64_t)(timeout % 1000) * 1000000;
	t.tv_sec += timeout / 1000 + ns / 1000000000;
	t.tv_nsec = ns % 1000000000;
	return pthread_cond_clockwait(&s->cond, &s->lock, CLOCK_MONOTONIC, &t);
}
