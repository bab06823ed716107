// SPDX-License-Identifier: Apache-2.0
/*
 * What a child of a fork can still do with a context that its parent opened. The connection and all
 * queues are the parent's. But the child has inherited the context's descriptor, so it can join
 * the context on a connection of its own, which is made at the first call that needs no queue. The
 * child can use the parent's objects; it can neither close nor change them.
 */
#include "core/conn.h"
#include "core/cancel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Which objects a child may apply an operation to. */
enum access {
	ACCESS_NONE,
	ACCESS_OWN,
	ACCESS_ALL,
};

static enum access allowed_access(uint16_t op)
{
	switch (op) {
	case SOFTROCE_OP_QUERY_DEVICE:
	case SOFTROCE_OP_QUERY_PORT:
	case SOFTROCE_OP_QUERY_GIDS:
	case SOFTROCE_OP_QUERY_PKEYS:
	case SOFTROCE_OP_QUERY_CLOCK:
	case SOFTROCE_OP_ALLOC_PD:
	case SOFTROCE_OP_REG_MR:
	case SOFTROCE_OP_QUERY_MR:
	case SOFTROCE_OP_ALLOC_DM:
	case SOFTROCE_OP_QUERY_DM:
	case SOFTROCE_OP_COPY_TO_DM:
	case SOFTROCE_OP_COPY_FROM_DM:
		return ACCESS_ALL;
	case SOFTROCE_OP_DEALLOC_PD:
	case SOFTROCE_OP_REREG_MR:
	case SOFTROCE_OP_DEREG_MR:
	case SOFTROCE_OP_FREE_DM:
		return ACCESS_OWN;
	}
	return ACCESS_NONE;
}

/* Descriptors of rings and events, which a child does not use. */
enum {
	JOIN_REPLY_FDS = 4
};

/* Allocates a PD and frees it: its handle separates inherited handles from later ones. */
static int learn_inherited(struct sr_conn *c, struct sr_conn *child)
{
	struct softroce_handle_reply pd;
	struct sr_request alloc = {
		.op = SOFTROCE_OP_ALLOC_PD, .reply = &pd, .reply_len = sizeof pd};
	int error = sr_conn_call(child, &alloc);
	if (error)
		return error;
	c->inherited = pd.handle;
	struct softroce_handle_request h = {.handle = pd.handle};
	struct sr_request dealloc = {.op = SOFTROCE_OP_DEALLOC_PD, .body = &h, .len = sizeof h};
	return sr_conn_call(child, &dealloc);
}

static int join_context(struct sr_conn *c, struct sr_conn *child)
{
	struct softroce_open_device_reply reply;
	int fds[JOIN_REPLY_FDS];
	struct sr_request r = {
		.op = SOFTROCE_OP_JOIN_DEVICE,
		.fds = &c->join_fd,
		.nfds = 1,
		.reply = &reply,
		.reply_len = sizeof reply,
		.reply_fds = fds,
		.reply_nfds = JOIN_REPLY_FDS,
	};
	int error = sr_conn_call(child, &r);
	if (error)
		return error;
	for (int i = 0; i < JOIN_REPLY_FDS; i++)
		close(fds[i]);
	return learn_inherited(c, child);
}

static struct sr_conn *new_child(struct sr_conn *c)
{
	struct sr_conn *child = calloc(1, sizeof *child);
	if (!child || sr_connect(child)) {
		free(child);
		return NULL;
	}
	if (join_context(c, child)) {
		sr_disconnect(child);
		free(child);
		return NULL;
	}
	return child;
}

/* A connection that was lost is not made again: the context has ended with the parent. */
static struct sr_conn *get_child(struct sr_conn *c)
{
	int state = sr_defer_cancel();
	pthread_mutex_lock(&c->lock);
	if (!c->child && c->join_fd >= 0)
		c->child = new_child(c);
	struct sr_conn *child = c->child;
	pthread_mutex_unlock(&c->lock);
	sr_restore_cancel(state);
	return child;
}

int sr_fork_child_call(struct sr_conn *c, const struct sr_request *r)
{
	enum access access = allowed_access(r->op);
	struct sr_conn *child = access == ACCESS_NONE ? NULL : get_child(c);
	if (!child)
		return EIO;
	struct softroce_handle_request first; /* these requests begin with the handle */
	if (access == ACCESS_OWN) {
		memcpy(&first, r->body, sizeof first);
		if (first.handle <= c->inherited)
			return EIO;
	}
	return sr_conn_call(child, r);
}
