/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket: requests to the daemon and their replies.
 *
 * Functions return 0 or an errno unless noted otherwise. EIO means that the daemon is gone.
 */
#ifndef SOFTROCE_CONN_H
#define SOFTROCE_CONN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/softroce_abi.h"

/* Writes why a call fails to standard error, if $IBV_SHOW_WARNINGS is set. */
__attribute__((format(printf, 1, 2))) void sr_warn(const char *format, ...);

struct sr_call;

/*
 * A connection. Several threads may have calls outstanding: each sends its request, then one of the
 * waiting threads reads from the socket and dispatches each reply by its tag. The lock is not held
 * while a thread waits. It is the last in any order of locks; a forked child initializes it.
 */
struct sr_conn {
	int fd; /* -1: closed, or inherited by fork */
	atomic_int gone;
	atomic_int stolen; /* see sr_conn_stolen */
	dev_t dev;	   /* identity of the socket behind fd; ino 0: unknown */
	ino_t ino;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	uint64_t tag; /* of the last request */
	bool reading; /* a thread is in recvmsg */
	struct sr_call *waiting;
	uint8_t *buf; /* the receive buffer, used by the thread that reads */

	/* After fork: see fork_child.c. */
	int join_fd; /* descriptor with which a child joins the context, or -1 */
	bool forked; /* this process is a child: the connection is its parent's */
	struct sr_conn *child;
	uint32_t inherited; /* handles up to this one are of the parent's objects */
};

/* A request. The caller keeps its descriptors. */
struct sr_request {
	uint16_t op;
	const void *body;
	size_t len;
	const void *tail; /* sent after body */
	size_t tail_len;
	const int *fds;
	int nfds;
	void *reply;		 /* receives the body of a successful reply */
	size_t reply_len;	 /* shortest acceptable body */
	int *reply_fds;		 /* receives the descriptors of the reply */
	int reply_nfds;		 /* how many it must have */
	void **whole_reply;	 /* unless NULL: receives the whole body, allocated with malloc, */
	size_t *whole_reply_len; /* and its length */
};

/* conn.c */
int sr_connect(struct sr_conn *c);
void sr_disconnect(struct sr_conn *c);

/* sr_conn_call sends a request on this connection and waits for its reply. */
int sr_conn_call(struct sr_conn *c, const struct sr_request *r);

/* sr_conn_forked runs in a child: it disables the child's copy and leaves the parent's alone. */
void sr_conn_forked(struct sr_conn *c);

/*
 * sr_conn_stolen checks, with a system call, whether the program has closed the connection's
 * descriptor, as daemon-like programs do that close every descriptor they do not know. The number
 * may then denote a file of the program, and so may the numbers of all descriptors that came over
 * the connection. The library no longer reads, writes or closes any of them and treats the daemon
 * as gone.
 */
bool sr_conn_stolen(struct sr_conn *c);

/* sr_close_fd closes fd, which came over the connection or is its socket, unless it was stolen. */
void sr_close_fd(struct sr_conn *c, int fd);

/* sr_make_blocking clears O_NONBLOCK; event sockets arrive with it set. */
void sr_make_blocking(int fd);

/*
 * sr_drop_events removes the bytes of n events from a socket, and counts in *dropped those that are
 * missing because other threads have read them. Each thread that has read a byte and then looked
 * for an event calls sr_byte_used. The caller holds the lock of *dropped.
 */
void sr_drop_events(struct sr_conn *c, int fd, uint32_t *dropped, uint32_t n);
void sr_byte_used(struct sr_conn *c, int fd, uint32_t *dropped, bool found);

/* sr_alive checks, with a system call, whether the daemon is still there. */
bool sr_alive(struct sr_conn *c);

/* sr_gone returns the last known state, without a system call. */
static inline bool sr_gone(struct sr_conn *c)
{
	return atomic_load_explicit(&c->gone, memory_order_relaxed);
}

/* fork_child.c: the call of a child, on a connection of its own, if the operation allows it. */
int sr_fork_child_call(struct sr_conn *c, const struct sr_request *r);

/*
 * call.c: sends a request and waits for its reply, also in a child of a fork. Sets errno on
 * failure.
 */
int sr_call(struct sr_conn *c, const struct sr_request *r);

/* Common forms of sr_call: no descriptors, one descriptor in the reply, a handle as the body. */
int sr_command(struct sr_conn *c, uint16_t op, const void *body, size_t len, void *reply,
	       size_t reply_len);
int sr_command_fd(struct sr_conn *c, uint16_t op, const void *body, size_t len, void *reply,
		  size_t reply_len, int *fd);
int sr_command_handle(struct sr_conn *c, uint16_t op, uint32_t handle);

/* sr_destroy destroys an object. It succeeds if the daemon is gone, and the object with it. */
int sr_destroy(struct sr_conn *c, uint16_t op, uint32_t handle);

#endif
