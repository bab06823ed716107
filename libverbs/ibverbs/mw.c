// SPDX-License-Identifier: Apache-2.0
/*
 * Memory windows.
 */
#include "ibverbs/mr.h"
#include "ibverbs/pd.h"
#include "ibverbs/qp.h"

#include <stdlib.h>

struct ibv_mw *sr_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw = calloc(1, sizeof *mw);
	if (!mw)
		return sr_null(ENOMEM);
	struct softroce_alloc_mw_request req = {.pd = sr_base_pd(pd)->ibv.handle, .type = type};
	struct softroce_alloc_mw_reply reply;
	int error = sr_command(&sr_ctx(pd->context)->conn, SOFTROCE_OP_ALLOC_MW, &req, sizeof req,
			       &reply, sizeof reply);
	if (error) {
		free(mw);
		return sr_null(error);
	}
	mw->context = pd->context;
	mw->pd = pd;
	mw->rkey = reply.rkey;
	mw->handle = reply.handle;
	mw->type = type;
	sr_pd_count_users(pd, 1);
	return mw;
}

int sr_dealloc_mw(struct ibv_mw *mw)
{
	int error = sr_destroy(&sr_ctx(mw->context)->conn, SOFTROCE_OP_DEALLOC_MW, mw->handle);
	if (error)
		return error;
	sr_pd_count_users(mw->pd, -1);
	free(mw);
	return 0;
}

/*
 * Binds a window of type 1. The inline function has compared the protection domains of window and
 * region. If that of the queue pair is another one, the work request fails.
 */
int sr_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr *bad, wr = {
					 .wr_id = bind->wr_id,
					 .opcode = IBV_WR_BIND_MW,
					 .send_flags = bind->send_flags,
					 .bind_mw = {.mw = mw,
						     .rkey = ibv_inc_rkey(mw->rkey),
						     .bind_info = bind->bind_info},
				 };
	return sr_post_send(qp, &wr, &bad);
}
