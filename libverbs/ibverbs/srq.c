// SPDX-License-Identifier: Apache-2.0
/*
 * Shared receive queues.
 */
#include "ibverbs/srq.h"
#include "ibverbs/cq.h"
#include "ibverbs/event.h"
#include "ibverbs/pd.h"

#include <stdlib.h>

static int map_ring(struct sr_srq *s, const struct softroce_srq_reply *r, int fd)
{
	s->max_sge = r->attr.max_sge;
	struct sr_ring ring = {fd, &r->chunk, r->ring, r->slots, r->slot_size};
	return sr_wq_open(sr_ctx(s->ibv.context), &s->wq, &ring, r->attr.max_wr,
			  sr_recv_bytes(r->attr.max_sge));
}

static int cmd_create_srq(struct sr_srq *s, const struct softroce_create_srq_request *req,
			  struct ibv_srq_attr *granted)
{
	struct sr_conn *c = &sr_ctx(s->ibv.context)->conn;
	struct softroce_srq_reply reply = {0};
	int fd;
	int error = sr_command_fd(c, SOFTROCE_OP_CREATE_SRQ, req, sizeof *req, &reply, sizeof reply,
				  &fd);
	if (!error)
		error = map_ring(s, &reply, fd);
	if (error && reply.handle)
		sr_command_handle(c, SOFTROCE_OP_DESTROY_SRQ, reply.handle);
	if (error)
		return error;
	s->ibv.handle = reply.handle;
	s->srq_num = reply.number;
	granted->max_wr = reply.attr.max_wr;
	granted->max_sge = reply.attr.max_sge;
	return 0;
}

static void free_srq(struct sr_srq *s)
{
	sr_wq_close(sr_ctx(s->ibv.context), &s->wq);
	pthread_mutex_destroy(&s->ibv.mutex);
	pthread_cond_destroy(&s->ibv.cond);
	free(s);
}

/* Adds n to the users of the queue's objects. */
static void count_uses(struct sr_srq *s, int n)
{
	sr_pd_count_users(s->ibv.pd, n);
	if (!s->xrcd)
		return;
	atomic_fetch_add(&s->xrcd->users, n);
	atomic_fetch_add(&s->cq->users, n);
}

/* xrcd and cq are NULL, or of an SRQ of XRC. */
static struct ibv_srq *create(struct ibv_pd *pd, struct sr_xrcd *xrcd, struct sr_cq *cq,
			      void *srq_context, struct ibv_srq_attr *attr)
{
	struct sr_srq *s = calloc(1, sizeof *s);
	if (!s)
		return sr_null(ENOMEM);
	s->ibv.context = pd->context;
	s->ibv.srq_context = srq_context;
	s->ibv.pd = pd;
	pthread_mutex_init(&s->ibv.mutex, NULL);
	pthread_cond_init(&s->ibv.cond, NULL);
	sr_wq_init(&s->wq);
	s->wq.single_threaded = ((struct sr_pd *)pd)->td != NULL;
	s->xrcd = xrcd;
	s->cq = cq;
	struct softroce_create_srq_request req = {
		.pd = sr_base_pd(pd)->ibv.handle,
		.type = xrcd ? SOFTROCE_SRQ_XRC : SOFTROCE_SRQ_BASIC,
		.xrcd = xrcd ? xrcd->handle : 0,
		.cq = cq ? cq->ibv.handle : 0,
		.attr = {.max_wr = attr->max_wr, .max_sge = attr->max_sge},
	};
	int error = cmd_create_srq(s, &req, attr);
	if (error) {
		free_srq(s);
		return sr_null(error);
	}
	count_uses(s, 1);
	struct sr_context *ctx = sr_ctx(pd->context);
	pthread_mutex_lock(&ctx->lock);
	sr_list_add(&ctx->srqs, &s->link);
	pthread_mutex_unlock(&ctx->lock);
	return &s->ibv;
}

SR_PUBLIC struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
	return create(pd, NULL, NULL, init->srq_context, &init->attr);
}

#define SUPPORTED_MASK                                                                             \
	(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |                  \
	 IBV_SRQ_INIT_ATTR_CQ)

struct ibv_srq *sr_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
	const uint32_t xrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	enum ibv_srq_type type =
		attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE ? attr->srq_type : IBV_SRQT_BASIC;
	if (attr->comp_mask & ~SUPPORTED_MASK || type == IBV_SRQT_TM)
		return sr_null(EOPNOTSUPP);
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd)
		return sr_null(EINVAL);
	if (attr->pd->context != context)
		return sr_null(ENOENT);
	if (type != IBV_SRQT_XRC)
		return create(attr->pd, NULL, NULL, attr->srq_context, &attr->attr);
	if ((attr->comp_mask & xrc) != xrc || !attr->xrcd || !attr->cq)
		return sr_null(EINVAL);
	if (attr->xrcd->context != context || attr->cq->context != context)
		return sr_null(ENOENT);
	return create(attr->pd, (struct sr_xrcd *)attr->xrcd, sr_cq(attr->cq), attr->srq_context,
		      &attr->attr);
}

SR_PUBLIC int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	struct sr_srq *s = sr_srq(srq);
	struct softroce_modify_srq_request req = {
		.handle = srq->handle,
		.mask = (uint32_t)mask,
		.attr = {.max_wr = attr->max_wr,
			 .max_sge = attr->max_sge,
			 .srq_limit = attr->srq_limit},
	};
	struct softroce_srq_reply reply = {0};
	int fd = -1;
	struct sr_request r = {
		.op = SOFTROCE_OP_MODIFY_SRQ,
		.body = &req,
		.len = sizeof req,
		.reply = &reply,
		.reply_len = sizeof reply,
		.reply_fds = &fd,
		.reply_nfds = mask & IBV_SRQ_MAX_WR ? 1 : 0,
	};
	/* The old ring must not be posted to between the request and the reply. */
	sr_lock(&s->wq.lock, s->wq.single_threaded);
	int error = sr_call(&sr_ctx(srq->context)->conn, &r);
	if (r.reply_nfds && reply.handle)
		error = sr_moved(sr_ctx(srq->context), &s->wq.ring, error, map_ring(s, &reply, fd));
	sr_unlock(&s->wq.lock, s->wq.single_threaded);
	return sr_error(error);
}

SR_PUBLIC int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	struct softroce_handle_request req = {.handle = srq->handle};
	struct softroce_srq_attr a;
	int error = sr_command(&sr_ctx(srq->context)->conn, SOFTROCE_OP_QUERY_SRQ, &req, sizeof req,
			       &a, sizeof a);
	if (!error)
		*attr = (struct ibv_srq_attr){
			.max_wr = a.max_wr, .max_sge = a.max_sge, .srq_limit = a.srq_limit};
	return error;
}

int sr_get_srq_num(struct ibv_srq *srq, uint32_t *srq_num)
{
	struct sr_srq *s = sr_srq(srq);
	if (!s->srq_num)
		return sr_error(EOPNOTSUPP);
	*srq_num = s->srq_num;
	return 0;
}

SR_PUBLIC int ibv_destroy_srq(struct ibv_srq *srq)
{
	struct sr_srq *s = sr_srq(srq);
	struct sr_context *ctx = sr_ctx(srq->context);
	int error =
		sr_destroy_unused(srq->context, &s->users, SOFTROCE_OP_DESTROY_SRQ, srq->handle);
	if (error)
		return error;
	pthread_mutex_lock(&ctx->lock);
	sr_list_del(&s->link);
	sr_drop_async_events(ctx, srq->handle);
	pthread_mutex_unlock(&ctx->lock);
	sr_wait_acknowledged(&srq->mutex, &srq->cond, &s->events_reported, &srq->events_completed);
	count_uses(s, -1);
	free_srq(s);
	return 0;
}
