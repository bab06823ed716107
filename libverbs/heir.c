// SPDX-License-Identifier: Apache-2.0
/*
 * What a child of a fork can still do with a context that its parent has opened. The connection is
 * the parent's, and so are all queues. But the child has the context's descriptor, so it
 * can join the context, on a connection of its own: the heir. It is made when something is asked
 * for that no queue is needed for. What the parent has made the child can use, but neither close
 * nor change.
 */
#include "conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is asked for: anything, what changes an object, or what is out of the child's reach. */
enum reach {
	FREELY,
	OWN,
	NEVER
};

static enum reach reach(uint16_t op)
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
		return FREELY;
	case SOFTROCE_OP_DEALLOC_PD:
	case SOFTROCE_OP_REREG_MR:
	case SOFTROCE_OP_DEREG_MR:
	case SOFTROCE_OP_FREE_DM:
		return OWN;
	}
	return NEVER;
}

/* Descriptors of rings and events, which an heir has no use for. */
enum {
	JOINED_FDS = 4
};

/* Handles only grow: those that were inherited are below that of an object which is made now. */
static int join(struct sr_conn *c, struct sr_conn *heir)
{
	struct softroce_open_device_reply reply;
	struct softroce_handle_reply mark;
	int fds[JOINED_FDS];
	struct sr_request r = {
		.op = SOFTROCE_OP_JOIN_DEVICE,
		.fds = &c->join_fd,
		.nfds = 1,
		.reply = &reply,
		.reply_len = sizeof reply,
		.got = fds,
		.want = JOINED_FDS,
	};
	int error = sr_call(heir, &r);
	if (error)
		return error;
	for (int i = 0; i < JOINED_FDS; i++)
		close(fds[i]);
	error = sr_ask(heir, SOFTROCE_OP_ALLOC_PD, NULL, 0, &mark, sizeof mark);
	if (error)
		return error;
	c->inherited = mark.handle;
	return sr_close_handle(heir, SOFTROCE_OP_DEALLOC_PD, mark.handle);
}

static struct sr_conn *make(struct sr_conn *c)
{
	struct sr_conn *heir = calloc(1, sizeof *heir);
	if (!heir || sr_connect(heir)) {
		free(heir);
		return NULL;
	}
	if (join(c, heir)) {
		sr_disconnect(heir);
		free(heir);
		return NULL;
	}
	return heir;
}

/* An heir that has lost its connection stays: the context has ended with the parent. */
static struct sr_conn *heir_of(struct sr_conn *c)
{
	pthread_mutex_lock(&c->lock);
	if (!c->heir && c->join_fd >= 0)
		c->heir = make(c);
	struct sr_conn *heir = c->heir;
	pthread_mutex_unlock(&c->lock);
	return heir;
}

int sr_call_heir(struct sr_conn *c, const struct sr_request *r)
{
	enum reach to = reach(r->op);
	struct sr_conn *heir = to == NEVER ? NULL : heir_of(c);
	if (!heir)
		return EIO;
	struct softroce_handle_request first; /* with the handle such requests begin */
	if (to == OWN) {
		memcpy(&first, r->body, sizeof first);
		if (first.handle <= c->inherited)
			return EIO;
	}
	return sr_call(heir, r);
}

void sr_forget_heir(struct sr_conn *c)
{
	if (c->heir)
		sr_disconnect(c->heir);
	free(c->heir);
	c->heir = NULL;
}
