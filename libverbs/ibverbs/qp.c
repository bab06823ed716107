// SPDX-License-Identifier: Apache-2.0
/*
 * Queue pairs and multicast groups.
 */
#include "ibverbs/qp.h"
#include "ibverbs/cq.h"
#include "ibverbs/event.h"
#include "ibverbs/pd.h"
#include "ibverbs/srq.h"

#include <stdlib.h>
#include <string.h>

/*
 * Handles are valid in their context only: that of another context could name an unrelated
 * object. This holds for an imported context too; objects of the context it joined must be
 * imported.
 */
static bool is_same_context(const struct ibv_context *c, const struct ibv_qp_init_attr_ex *a)
{
	return (!a->send_cq || a->send_cq->context == c) &&
	       (!a->recv_cq || a->recv_cq->context == c) && (!a->srq || a->srq->context == c) &&
	       (!(a->comp_mask & IBV_QP_INIT_ATTR_PD) || !a->pd || a->pd->context == c) &&
	       (!(a->comp_mask & IBV_QP_INIT_ATTR_XRCD) || !a->xrcd || a->xrcd->context == c);
}

/*
 * Fills in the request. Returns the number of rings in the reply, or -1 if an attribute is
 * missing.
 */
static int fill_request(const struct ibv_qp_init_attr_ex *a, struct softroce_create_qp_request *req)
{
	req->type = a->qp_type;
	req->sig_all = a->sq_sig_all != 0;
	req->cap = sr_qp_cap_to_abi(&a->cap);
	if (a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
		req->send_ops = (uint32_t)a->send_ops_flags; /* check_supported: at most 13 bits */
	if (a->qp_type == IBV_QPT_XRC_RECV) {
		if (!(a->comp_mask & IBV_QP_INIT_ATTR_XRCD) || !a->xrcd)
			return -1;
		req->xrcd = ((struct sr_xrcd *)a->xrcd)->handle;
		return 0;
	}
	if (!(a->comp_mask & IBV_QP_INIT_ATTR_PD) || !a->pd || !a->send_cq)
		return -1;
	req->pd = sr_base_pd(a->pd)->ibv.handle;
	req->send_cq = a->send_cq->handle;
	if (a->qp_type == IBV_QPT_XRC_SEND)
		return 1;
	if (!a->recv_cq)
		return -1;
	req->recv_cq = a->recv_cq->handle;
	if (!a->srq)
		return 2;
	req->srq = a->srq->handle;
	return 1;
}

static int map_rings(struct sr_qp *q, const struct softroce_create_qp_reply *r, int fd, int rings)
{
	struct sr_context *ctx = sr_ctx(q->ex.qp_base.context);
	const struct softroce_qp_cap *cap = &r->cap;
	struct sr_ring sq = {fd, &r->chunk, r->send_ring, r->send_slots, r->send_slot_size};
	struct sr_ring rq = {-1, &r->chunk, r->recv_ring, r->recv_slots, r->recv_slot_size};
	int error = 0;
	if (rings > 0)
		error = sr_wq_open(ctx, &q->sq, &sq, cap->max_send_wr,
				   sr_send_bytes(cap->max_send_sge, cap->max_inline_data));
	if (rings > 1 && !error)
		error = sr_wq_open(ctx, &q->rq, &rq, cap->max_recv_wr,
				   sr_recv_bytes(cap->max_recv_sge));
	size_t word = SOFTROCE_DOORBELL_BITS + (size_t)(r->doorbell / 64) * sizeof *q->doorbell;
	if (word + sizeof *q->doorbell > ctx->doorbells.size)
		return EPROTO;
	q->doorbell = (_Atomic uint64_t *)(ctx->doorbells.mem + word);
	q->doorbell_bit = UINT64_C(1) << r->doorbell % 64;
	return error;
}

static int cmd_create_qp(struct sr_qp *q, const struct ibv_qp_init_attr_ex *attr)
{
	struct sr_conn *c = &sr_ctx(q->ex.qp_base.context)->conn;
	struct softroce_create_qp_request req = {0};
	struct softroce_create_qp_reply reply = {0};
	int fd = -1, rings = fill_request(attr, &req);
	if (rings < 0)
		return EINVAL;
	if (!is_same_context(q->ex.qp_base.context, attr))
		return ENOENT;
	struct sr_request r = {
		.op = SOFTROCE_OP_CREATE_QP,
		.body = &req,
		.len = sizeof req,
		.reply = &reply,
		.reply_len = sizeof reply,
		.reply_fds = &fd,
		.reply_nfds = rings > 0,
	};
	int error = sr_call(c, &r);
	if (!error)
		error = map_rings(q, &reply, fd, rings);
	if (error && reply.handle)
		sr_command_handle(c, SOFTROCE_OP_DESTROY_QP, reply.handle);
	q->ex.qp_base.handle = reply.handle;
	q->ex.qp_base.qp_num = reply.qp_num;
	q->cap = sr_qp_cap_from_abi(&reply.cap);
	return error;
}

#define SUPPORTED_MASK                                                                             \
	(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS |             \
	 IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)

/* The operations that ibv_wr_* supports for a type of queue pair. */
static uint64_t send_ops(enum ibv_qp_type type)
{
	const uint64_t send = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	const uint64_t write = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
	const uint64_t window =
		IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV;
	switch (type) {
	case IBV_QPT_RC:
	case IBV_QPT_XRC_SEND:
		return send | write | window | IBV_QP_EX_WITH_RDMA_READ |
		       IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
		       IBV_QP_EX_WITH_ATOMIC_WRITE | SR_QP_EX_WITH_FLUSH;
	case IBV_QPT_UC:
		return send | write | window;
	case IBV_QPT_UD:
		return send;
	default:
		return 0;
	}
}

static int check_supported(const struct ibv_qp_init_attr_ex *a)
{
	switch (a->qp_type) {
	case IBV_QPT_RC:
	case IBV_QPT_UC:
	case IBV_QPT_UD:
	case IBV_QPT_XRC_SEND:
	case IBV_QPT_XRC_RECV:
		break;
	default:
		return EOPNOTSUPP;
	}
	if (a->comp_mask & ~SUPPORTED_MASK)
		return EOPNOTSUPP;
	if (a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && a->create_flags)
		return EOPNOTSUPP;
	if (a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS &&
	    a->send_ops_flags & ~send_ops(a->qp_type))
		return EOPNOTSUPP;
	return 0;
}

/* The lists of a completion queue change under both locks: see context.h. */
static void lock_lists(struct sr_cq *cq)
{
	sr_lock(&cq->lock, cq->single_threaded);
	pthread_mutex_lock(&sr_ctx(cq->ibv.context)->lock);
}

static void unlock_lists(struct sr_cq *cq)
{
	pthread_mutex_unlock(&sr_ctx(cq->ibv.context)->lock);
	sr_unlock(&cq->lock, cq->single_threaded);
}

static void link_cqs(struct sr_qp *q)
{
	struct ibv_qp *ibv = &q->ex.qp_base;
	if (ibv->send_cq && q->sq.ring.mem) {
		struct sr_cq *cq = sr_cq(ibv->send_cq);
		lock_lists(cq);
		sr_list_add(&cq->send_qps, &q->send_cq_link);
		unlock_lists(cq);
	}
	if (ibv->recv_cq && q->rq.ring.mem) {
		struct sr_cq *cq = sr_cq(ibv->recv_cq);
		lock_lists(cq);
		sr_list_add(&cq->recv_qps, &q->recv_cq_link);
		unlock_lists(cq);
	}
}

static void unlink_cq(struct ibv_cq *ibv, struct sr_link *l)
{
	if (!ibv)
		return;
	struct sr_cq *cq = sr_cq(ibv);
	lock_lists(cq);
	sr_list_del(l);
	unlock_lists(cq);
}

static void unlink_cqs(struct sr_qp *q)
{
	unlink_cq(q->ex.qp_base.send_cq, &q->send_cq_link);
	unlink_cq(q->ex.qp_base.recv_cq, &q->recv_cq_link);
}

/* Adds n to the users of the queue pair's objects. */
static void count_uses(struct sr_qp *q, int n)
{
	struct ibv_qp *ibv = &q->ex.qp_base;
	if (ibv->pd)
		sr_pd_count_users(ibv->pd, n);
	if (ibv->send_cq)
		atomic_fetch_add(&sr_cq(ibv->send_cq)->users, n);
	if (ibv->recv_cq)
		atomic_fetch_add(&sr_cq(ibv->recv_cq)->users, n);
	if (ibv->srq)
		atomic_fetch_add(&sr_srq(ibv->srq)->users, n);
	if (q->xrcd)
		atomic_fetch_add(&q->xrcd->users, n);
}

static void link_qp(struct sr_qp *q)
{
	struct sr_context *ctx = sr_ctx(q->ex.qp_base.context);
	sr_list_init(&q->send_cq_link);
	sr_list_init(&q->recv_cq_link);
	pthread_mutex_lock(&ctx->lock);
	sr_list_add(&ctx->qps, &q->link);
	pthread_mutex_unlock(&ctx->lock);
	link_cqs(q);
	count_uses(q, 1);
}

static void free_qp(struct sr_qp *q)
{
	struct sr_context *ctx = sr_ctx(q->ex.qp_base.context);
	sr_wq_close(ctx, &q->sq);
	sr_wq_close(ctx, &q->rq);
	pthread_mutex_destroy(&q->ex.qp_base.mutex);
	pthread_cond_destroy(&q->ex.qp_base.cond);
	free(q->binds);
	free(q);
}

static struct sr_qp *new_qp(struct ibv_context *context, const struct ibv_qp_init_attr_ex *a)
{
	struct sr_qp *q = calloc(1, sizeof *q);
	if (!q)
		return NULL;
	struct ibv_qp *ibv = &q->ex.qp_base;
	ibv->context = context;
	ibv->qp_context = a->qp_context;
	ibv->qp_type = a->qp_type;
	ibv->state = IBV_QPS_RESET;
	if (a->qp_type == IBV_QPT_XRC_RECV) {
		q->xrcd = a->comp_mask & IBV_QP_INIT_ATTR_XRCD ? (struct sr_xrcd *)a->xrcd : NULL;
	} else {
		ibv->pd = a->comp_mask & IBV_QP_INIT_ATTR_PD ? a->pd : NULL;
		ibv->send_cq = a->send_cq;
	}
	if (a->qp_type != IBV_QPT_XRC_RECV && a->qp_type != IBV_QPT_XRC_SEND) {
		ibv->recv_cq = a->recv_cq;
		ibv->srq = a->srq;
	}
	q->sig_all = a->sq_sig_all;
	pthread_mutex_init(&ibv->mutex, NULL);
	pthread_cond_init(&ibv->cond, NULL);
	sr_wq_init(&q->sq);
	sr_wq_init(&q->rq);
	sr_list_init(&q->link);
	return q;
}

struct ibv_qp *sr_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	int error = check_supported(attr);
	if (error)
		return sr_null(error);
	struct sr_qp *q = new_qp(context, attr);
	if (!q)
		return sr_null(ENOMEM);
	error = cmd_create_qp(q, attr);
	if (error) {
		free_qp(q);
		return sr_null(error);
	}
	attr->cap = q->cap;
	if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
		q->has_wr_ops = true;
		sr_set_wr_ops(q);
	}
	struct sr_pd *pd = (struct sr_pd *)q->ex.qp_base.pd;
	q->sq.single_threaded = q->rq.single_threaded = pd && pd->td;
	link_qp(q);
	return &q->ex.qp_base;
}

SR_PUBLIC struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex ex = {
		.qp_context = attr->qp_context,
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.sq_sig_all = attr->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
	struct ibv_qp *qp = sr_create_qp_ex(pd->context, &ex);
	if (qp)
		attr->cap = ex.cap;
	return qp;
}

SR_PUBLIC struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct sr_qp *q = sr_qp(qp);
	return q->has_wr_ops ? &q->ex : NULL;
}

static void purge_cqs(struct sr_qp *q)
{
	struct ibv_qp *ibv = &q->ex.qp_base;
	if (ibv->send_cq)
		sr_cq_purge(sr_cq(ibv->send_cq), ibv->qp_num);
	if (ibv->recv_cq && ibv->recv_cq != ibv->send_cq)
		sr_cq_purge(sr_cq(ibv->recv_cq), ibv->qp_num);
}

static void reset_wq(struct sr_wq *w)
{
	sr_lock(&w->lock, w->single_threaded);
	if (w->ring.mem)
		w->producer = atomic_load(sr_shm_word(&w->ring, SOFTROCE_RING_PRODUCER));
	sr_unlock(&w->lock, w->single_threaded);
}

SR_PUBLIC int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct sr_qp *q = sr_qp(qp);
	struct softroce_modify_qp_request req = {.handle = qp->handle};
	sr_qp_attr_to_abi(&req, qp->qp_type, attr, mask);
	int error = sr_command(&sr_ctx(qp->context)->conn, SOFTROCE_OP_MODIFY_QP, &req, sizeof req,
			       NULL, 0);
	if (error)
		return error;
	if (mask & IBV_QP_STATE) {
		if (attr->qp_state == IBV_QPS_RESET) { /* the daemon has reset the rings */
			purge_cqs(q);
			reset_wq(&q->sq);
			reset_wq(&q->rq);
		}
		sr_set_qp_state(q, attr->qp_state);
	}
	return 0;
}

/* Bursts are bounded by the NIC, as with an adapter whose bursts cannot be set. */
int sr_modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr)
{
	if (attr->comp_mask || attr->max_burst_sz || attr->typical_pkt_sz)
		return sr_error(EINVAL);
	struct ibv_qp_attr a = {.rate_limit = attr->rate_limit};
	return ibv_modify_qp(qp, &a, IBV_QP_RATE_LIMIT);
}

SR_PUBLIC int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
			   struct ibv_qp_init_attr *init)
{
	(void)mask; /* the daemon returns all attributes */
	struct softroce_handle_request req = {.handle = qp->handle};
	struct softroce_query_qp_reply reply;
	int error = sr_command(&sr_ctx(qp->context)->conn, SOFTROCE_OP_QUERY_QP, &req, sizeof req,
			       &reply, sizeof reply);
	if (error)
		return error;
	sr_qp_attr_from_abi(attr, &reply.attr);
	sr_set_qp_state(sr_qp(qp), attr->qp_state);
	*init = (struct ibv_qp_init_attr){
		.qp_context = qp->qp_context,
		.send_cq = qp->send_cq,
		.recv_cq = qp->recv_cq,
		.srq = qp->srq,
		.cap = attr->cap,
		.qp_type = qp->qp_type,
		.sq_sig_all = sr_qp(qp)->sig_all,
	};
	return 0;
}

SR_PUBLIC int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct sr_qp *q = sr_qp(qp);
	struct sr_context *ctx = sr_ctx(qp->context);
	/* The daemon may give the memory of the rings to another queue before its reply arrives. */
	unlink_cqs(q);
	int error = sr_destroy(&ctx->conn, SOFTROCE_OP_DESTROY_QP, qp->handle);
	if (error) {
		link_cqs(q);
		return error;
	}
	pthread_mutex_lock(&ctx->lock);
	sr_list_del(&q->link);
	sr_drop_async_events(ctx, qp->handle);
	pthread_mutex_unlock(&ctx->lock);
	purge_cqs(q);
	sr_wait_acknowledged(&qp->mutex, &qp->cond, &q->events_reported, &qp->events_completed);
	count_uses(q, -1);
	free_qp(q);
	return 0;
}

static int mcast(struct ibv_qp *qp, uint16_t op, const union ibv_gid *gid, uint16_t lid)
{
	struct softroce_mcast_request req = {.qp = qp->handle, .lid = lid};
	memcpy(req.gid, gid->raw, sizeof req.gid);
	return sr_command(&sr_ctx(qp->context)->conn, op, &req, sizeof req, NULL, 0);
}

SR_PUBLIC int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return mcast(qp, SOFTROCE_OP_ATTACH_MCAST, gid, lid);
}

SR_PUBLIC int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return mcast(qp, SOFTROCE_OP_DETACH_MCAST, gid, lid);
}

/* Data is written in ascending address order except for the last eight bytes of a message. */
SR_PUBLIC int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)qp, (void)op, (void)flags;
	return 0;
}

/* Enhanced connection establishment negotiates vendor options, of which there are none. */
SR_PUBLIC int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp, (void)ece;
	return sr_error(EOPNOTSUPP);
}

SR_PUBLIC int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	memset(ece, 0, sizeof *ece);
	return sr_error(EOPNOTSUPP);
}
