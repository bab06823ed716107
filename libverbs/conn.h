/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket: requests to the daemon and their replies.
 */
#ifndef SOFTROCE_CONN_H
#define SOFTROCE_CONN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "softroce_abi.h"

struct sr_call;

/*
 * A connection. Several threads may call at the same time: each sends its request, one of those
 * that wait reads, and hands each reply to whom it belongs.
 */
struct sr_conn {
	int fd; /* -1: closed, or inherited by fork */
	atomic_int gone;
	atomic_int robbed; /* see sr_robbed */
	dev_t dev;	   /* of the socket behind fd; ino 0: unknown */
	ino_t ino;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	uint64_t tag;
	int reading; /* a thread is in recvmsg */
	struct sr_call *waiting;
	uint8_t *buf; /* of the one that reads */

	int join_fd; /* with which a child may join the context, or -1 */
	bool forked; /* this is a child: the connection is its parent's */
	struct sr_conn *heir;
	uint32_t inherited; /* handles up to this are of the parent's objects */
};

/* What to ask. Descriptors of the request stay the caller's. */
struct sr_request {
	uint16_t op;
	const void *body;
	size_t len;
	const void *tail; /* more of the body */
	size_t tail_len;
	const int *fds;
	int nfds;
	void *reply;	   /* filled with the body of a good reply */
	size_t reply_len;  /* bytes that the reply must have at least */
	int *got;	   /* filled with the descriptors that came */
	int want;	   /* how many must */
	void **whole;	   /* or the whole body, allocated, */
	size_t *whole_len; /* and its length */
};

/* All functions return 0 or an errno. */
int sr_connect(struct sr_conn *c);
void sr_disconnect(struct sr_conn *c);

/* sr_forked makes the connection useless in a child, and leaves the parent's alone. */
void sr_forked(struct sr_conn *c);

/* heir.c: sr_call in a child, as far as that has any reach. */
int sr_call_heir(struct sr_conn *c, const struct sr_request *r);
void sr_forget_heir(struct sr_conn *c);

/* sr_call asks and waits for the answer. EIO: the daemon is gone. */
int sr_call(struct sr_conn *c, const struct sr_request *r);

/* The common shapes of requests: without descriptors, with one that comes, and about one object. */
int sr_ask(struct sr_conn *c, uint16_t op, const void *body, size_t len, void *reply,
	   size_t reply_len);
int sr_ask_fd(struct sr_conn *c, uint16_t op, const void *body, size_t len, void *reply,
	      size_t reply_len, int *fd);
int sr_close_handle(struct sr_conn *c, uint16_t op, uint32_t handle);

/*
 * sr_robbed looks, with a system call, whether the program has closed the connection's descriptor,
 * as those do that close all they do not know. The number may stand for something of the program's
 * own then, and so may those of the other descriptors that belong with it: nothing is read, written
 * or closed there any more, and the daemon is as good as gone.
 */
bool sr_robbed(struct sr_conn *c);

/* sr_close_fd closes a descriptor that came over the connection, or is it, if there is one. */
void sr_close_fd(struct sr_conn *c, int fd);

/* sr_alive looks, with a system call, whether the daemon is still there. */
int sr_alive(struct sr_conn *c);

/* sr_gone says what is known without looking. */
static inline int sr_gone(struct sr_conn *c)
{
	return atomic_load_explicit(&c->gone, memory_order_relaxed);
}

/* sr_warn writes to stderr where $IBV_SHOW_WARNINGS is set. */
void sr_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
