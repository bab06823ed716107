// SPDX-License-Identifier: Apache-2.0
/*
 * Objects that another process created, or another part of this one: a context, named by the
 * cmd_fd of its struct ibv_context, and its objects, named by their handles.
 */
#include "ibverbs/mr.h"
#include "ibverbs/pd.h"

#include <stdlib.h>

SR_PUBLIC struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle)
{
	struct sr_pd *pd = calloc(1, sizeof *pd);
	if (!pd)
		return sr_null(ENOMEM);
	if (sr_gone(&sr_ctx(context)->conn)) {
		free(pd);
		return sr_null(EIO);
	}
	pd->ibv.context = context;
	pd->ibv.handle = handle;
	return &pd->ibv;
}

SR_PUBLIC void ibv_unimport_pd(struct ibv_pd *pd)
{
	sr_pd_count_users(pd, -1);
}

/* Only the process that registered the memory knows its address, so addr is NULL. */
SR_PUBLIC struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
	struct sr_mr *mr = calloc(1, sizeof *mr);
	if (!mr)
		return sr_null(ENOMEM);
	struct softroce_handle_request req = {.handle = handle};
	struct softroce_query_mr_reply reply;
	int error = sr_command(&sr_ctx(pd->context)->conn, SOFTROCE_OP_QUERY_MR, &req, sizeof req,
			       &reply, sizeof reply);
	if (error) {
		free(mr);
		return sr_null(error);
	}
	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	sr_pd_count_users(pd, 1);
	mr->ibv.length = reply.length;
	mr->ibv.handle = handle;
	mr->ibv.lkey = reply.lkey;
	mr->ibv.rkey = reply.rkey;
	mr->iova = reply.iova;
	mr->access = reply.access;
	return &mr->ibv;
}

SR_PUBLIC void ibv_unimport_mr(struct ibv_mr *mr)
{
	sr_pd_count_users(mr->pd, -1);
	free(mr);
}
