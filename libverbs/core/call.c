// SPDX-License-Identifier: Apache-2.0
/*
 * Calls of the daemon, as the rest of the libraries make them.
 */
#include "core/conn.h"

#include <errno.h>

int sr_call(struct sr_conn *c, const struct sr_request *r)
{
	int error = c->forked ? sr_fork_child_call(c, r) : sr_conn_call(c, r);
	if (error)
		errno = error;
	return error;
}

int sr_command(struct sr_conn *c, uint16_t op, const void *body, size_t len, void *reply,
	       size_t reply_len)
{
	struct sr_request r = {
		.op = op, .body = body, .len = len, .reply = reply, .reply_len = reply_len};
	return sr_call(c, &r);
}

int sr_command_fd(struct sr_conn *c, uint16_t op, const void *body, size_t len, void *reply,
		  size_t reply_len, int *fd)
{
	struct sr_request r = {.op = op,
			       .body = body,
			       .len = len,
			       .reply = reply,
			       .reply_len = reply_len,
			       .reply_fds = fd,
			       .reply_nfds = 1};
	return sr_call(c, &r);
}

int sr_command_handle(struct sr_conn *c, uint16_t op, uint32_t handle)
{
	struct softroce_handle_request h = {.handle = handle};
	return sr_command(c, op, &h, sizeof h, NULL, 0);
}

int sr_destroy(struct sr_conn *c, uint16_t op, uint32_t handle)
{
	int error = sr_command_handle(c, op, handle);
	return error == EIO ? 0 : error;
}
