// SPDX-License-Identifier: Apache-2.0
/*
 * XRC domains.
 */
#include "ibverbs/srq.h"

#include <fcntl.h>
#include <stdlib.h>

struct ibv_xrcd *sr_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr)
{
	const uint32_t both = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	if (attr->comp_mask & ~both)
		return sr_null(EOPNOTSUPP);
	if ((attr->comp_mask & both) != both)
		return sr_null(EINVAL);
	struct sr_xrcd *x = calloc(1, sizeof *x);
	if (!x)
		return sr_null(ENOMEM);
	struct softroce_open_xrcd_request req = {
		.flags = (attr->oflags & O_CREAT ? SOFTROCE_XRCD_CREATE : 0) |
			 (attr->oflags & O_EXCL ? SOFTROCE_XRCD_EXCLUSIVE : 0),
	};
	struct softroce_handle_reply reply;
	struct sr_request r = {
		.op = SOFTROCE_OP_OPEN_XRCD,
		.body = &req,
		.len = sizeof req,
		.fds = &attr->fd,
		.nfds = attr->fd >= 0,
		.reply = &reply,
		.reply_len = sizeof reply,
	};
	int error = sr_call(&sr_ctx(context)->conn, &r);
	if (error) {
		free(x);
		return sr_null(error);
	}
	x->ibv.context = context;
	x->handle = reply.handle;
	return &x->ibv;
}

int sr_close_xrcd(struct ibv_xrcd *xrcd)
{
	struct sr_xrcd *x = (struct sr_xrcd *)xrcd;
	int error = sr_destroy_unused(xrcd->context, &x->users, SOFTROCE_OP_CLOSE_XRCD, x->handle);
	if (error)
		return error;
	free(x);
	return 0;
}
