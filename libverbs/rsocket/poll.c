// SPDX-License-Identifier: Apache-2.0
/*
 * rpoll and rselect.
 */
#include "rsocket/dgram.h"

#include "core/cancel.h"

#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

static short dgram_events(struct rs *s, short events)
{
	short found = 0;
	if (ds_can_recv(s))
		found |= POLLIN;
	if (ds_can_send(s))
		found |= POLLOUT;
	return (found & events) | (s->error ? POLLERR : 0);
}

/* Returns the events of a socket. The caller holds its lock. */
static short socket_events(struct rs *s, short events)
{
	short found = 0;
	rs_process_cm_events(s);
	rs_process_cq(s);
	if (s->ds)
		return dgram_events(s, events);
	switch (s->state) {
	case RS_NEW:
	case RS_BOUND:
		return POLLOUT & events;
	case RS_LISTENING: {
		struct pollfd p = {.fd = s->fd, .events = POLLIN};
		return poll(&p, 1, 0) > 0 ? POLLIN & events : 0;
	}
	case RS_CONNECTED:
		if (rs_can_recv(s) || !s->readable)
			found |= POLLIN;
		if (rs_can_send(s) || !s->writable)
			found |= POLLOUT;
		return found & events;
	case RS_DISCONNECTED:
		/* Programs treat POLLHUP as an error, so the data is read first. */
		if (rs_can_recv(s) && events & POLLIN)
			return POLLIN;
		return ((POLLIN | POLLOUT) & events) | POLLHUP;
	case RS_FAILED:
		return ((POLLIN | POLLOUT) & events) | POLLERR;
	default:
		return 0; /* connecting */
	}
}

static int check_all(struct pollfd *fds, nfds_t n)
{
	int found = 0;
	for (nfds_t i = 0; i < n; i++) {
		struct rs *s = fds[i].fd < 0 ? NULL : rs_enter(fds[i].fd);
		fds[i].revents = 0;
		if (s) {
			s->ops->arm_cq(s);
			fds[i].revents = socket_events(s, fds[i].events);
			rs_leave(s);
		} else if (fds[i].fd >= 0) {
			poll(&fds[i], 1, 0);
		}
		found += fds[i].revents != 0;
	}
	return found;
}

/* Fills in the descriptors to poll, up to two for each socket. Returns their number. */
static nfds_t poll_fds(const struct pollfd *fds, nfds_t n, struct pollfd *out)
{
	nfds_t count = 0;
	for (nfds_t i = 0; i < n; i++) {
		struct rs *s = fds[i].fd < 0 ? NULL : rs_enter(fds[i].fd);
		if (!s) {
			out[count++] = fds[i];
			continue;
		}
		count += (nfds_t)rs_descriptors(s, out + count);
		rs_leave(s);
	}
	return count;
}

static void take_events(const struct pollfd *fds, nfds_t n)
{
	for (nfds_t i = 0; i < n; i++) {
		struct rs *s = fds[i].fd < 0 ? NULL : rs_enter(fds[i].fd);
		if (!s)
			continue;
		if (!s->polling)
			s->ops->take_cq_events(s);
		rs_leave(s);
	}
}

/* Only poll acts on a cancellation, in the state that the program has set. */
static int poll_all(struct pollfd *fds, nfds_t n, int timeout, struct pollfd *all, int state)
{
	int64_t end = rs_now() + timeout;
	int wake_up = rs_default_wake_up();
	for (;;) {
		int found = check_all(fds, n);
		int64_t left = timeout < 0 ? wake_up : end - rs_now();
		if (found || left <= 0)
			return found;
		nfds_t count = poll_fds(fds, n, all);
		sr_restore_cancel(state);
		int got = poll(all, count, (int)(left < wake_up ? left : wake_up));
		sr_defer_cancel();
		if (got < 0)
			return -1;
		take_events(fds, n);
	}
}

SR_PUBLIC int rpoll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct pollfd *all = calloc(n * 2 + 1, sizeof *all);
	if (!all)
		return rs_fail(ENOMEM);
	int state = sr_defer_cancel(), found, error;
	pthread_cleanup_push(free, all);
	found = poll_all(fds, n, timeout, all, state);
	error = errno;
	pthread_cleanup_pop(1);
	sr_restore_cancel(state);
	errno = error;
	return found;
}

/* Converts to the timeout of poll. */
static int timeval_to_ms(const struct timeval *t)
{
	if (!t)
		return -1;
	if (t->tv_sec < 0 || t->tv_sec > INT_MAX / 1000 - 1)
		return t->tv_sec < 0 ? 0 : INT_MAX;
	return (int)(t->tv_sec * 1000 + (t->tv_usec + 999) / 1000);
}

SR_PUBLIC int rselect(int n, fd_set *readable, fd_set *writable, fd_set *except,
		      struct timeval *timeout)
{
	if (n < 0 || n > FD_SETSIZE)
		return rs_fail(EINVAL);
	struct pollfd *fds = calloc((size_t)n + 1, sizeof *fds);
	if (!fds)
		return rs_fail(ENOMEM);
	nfds_t count = 0;
	for (int fd = 0; fd < n; fd++) {
		short events = 0;
		if (readable && FD_ISSET(fd, readable))
			events |= POLLIN;
		if (writable && FD_ISSET(fd, writable))
			events |= POLLOUT;
		if (events || (except && FD_ISSET(fd, except)))
			fds[count++] = (struct pollfd){.fd = fd, .events = events};
	}
	int rc;
	pthread_cleanup_push(free, fds);
	rc = rpoll(fds, count, timeval_to_ms(timeout));
	pthread_cleanup_pop(0);
	for (nfds_t i = 0; i < count && rc >= 0; i++)
		if (fds[i].revents & POLLNVAL)
			rc = rs_fail(EBADF);
	if (rc < 0) {
		int error = errno;
		free(fds);
		return rs_fail(error);
	}
	int found = 0;
	for (nfds_t i = 0; i < count; i++) {
		struct {
			fd_set *set;
			short events;
		} sets[3] = {{readable, POLLIN | POLLHUP | POLLERR},
			     {writable, POLLOUT},
			     {except, POLLERR}};
		for (int j = 0; j < 3; j++) {
			if (!sets[j].set || !FD_ISSET(fds[i].fd, sets[j].set))
				continue;
			if (fds[i].revents & sets[j].events)
				found++;
			else
				FD_CLR(fds[i].fd, sets[j].set);
		}
	}
	free(fds);
	return found;
}
