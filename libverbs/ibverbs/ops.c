// SPDX-License-Identifier: Apache-2.0
/*
 * The tables through which the inline functions of <infiniband/verbs.h> call.
 */
#include "ibverbs/ops.h"
#include "ibverbs/cq.h"
#include "ibverbs/mr.h"
#include "ibverbs/pd.h"
#include "ibverbs/qp.h"
#include "ibverbs/query.h"
#include "ibverbs/srq.h"

void sr_set_ops(struct sr_context *ctx)
{
	struct ibv_context_ops *o = &ctx->verbs.context.ops;
	o->alloc_mw = sr_alloc_mw;
	o->bind_mw = sr_bind_mw;
	o->dealloc_mw = sr_dealloc_mw;
	o->poll_cq = sr_poll_cq;
	o->req_notify_cq = sr_req_notify_cq;
	o->post_send = sr_post_send;
	o->post_recv = sr_post_recv;
	o->post_srq_recv = sr_post_srq_recv;

	struct verbs_context *v = &ctx->verbs;
	sr_set_unsupported(v);
	v->query_port = sr_query_port;
	v->query_device_ex = sr_query_device_ex;
	v->query_rt_values = sr_query_rt_values;
	v->modify_qp_rate_limit = sr_modify_qp_rate_limit;
	v->create_cq_ex = sr_create_cq_ex;
	v->create_qp_ex = sr_create_qp_ex;
	v->create_srq_ex = sr_create_srq_ex;
	v->get_srq_num = sr_get_srq_num;
	v->alloc_dm = sr_alloc_dm;
	v->free_dm = sr_free_dm;
	v->reg_dm_mr = sr_reg_dm_mr;
	v->open_xrcd = sr_open_xrcd;
	v->close_xrcd = sr_close_xrcd;
	v->alloc_parent_domain = sr_alloc_parent_domain;
	v->alloc_td = sr_alloc_td;
	v->dealloc_td = sr_dealloc_td;
}
