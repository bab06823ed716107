// SPDX-License-Identifier: Apache-2.0
/*
 * Queue pairs of identifiers, and the completion queues created with them.
 */
#include "rdmacm/rdmacm.h"

#include "core/ah.h"

/* Gets the attributes for the transition to attr->qp_state. 0 or an errno. */
static int init_attr(struct rdma_cm_id *ibv, struct ibv_qp_attr *attr, int *mask)
{
	struct cm_id *id = cm_id(ibv);
	struct softroce_cm_init_qp_attr_request req = {.id = id->handle, .state = attr->qp_state};
	struct softroce_cm_init_qp_attr_reply r;
	int error = cm_command(id->generation, SOFTROCE_OP_CM_INIT_QP_ATTR, &req, sizeof req, &r,
			       sizeof r);
	if (error)
		return error;
	const struct softroce_qp_attr *a = &r.attr;
	*mask = (int)r.mask;
	attr->qp_state = a->state;
	attr->cur_qp_state = a->cur_state;
	attr->path_mtu = a->path_mtu;
	attr->qkey = a->qkey;
	attr->rq_psn = a->rq_psn;
	attr->sq_psn = a->sq_psn;
	attr->dest_qp_num = a->dest_qp_num;
	attr->qp_access_flags = a->access_flags;
	attr->ah_attr = sr_ah_from_abi(&a->ah);
	attr->pkey_index = a->pkey_index;
	attr->max_rd_atomic = a->max_rd_atomic;
	attr->max_dest_rd_atomic = a->max_dest_rd_atomic;
	attr->min_rnr_timer = a->min_rnr_timer;
	attr->port_num = a->port_num;
	attr->timeout = a->timeout;
	attr->retry_cnt = a->retry_cnt;
	attr->rnr_retry = a->rnr_retry;
	return 0;
}

SR_PUBLIC int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	return cm_result(init_attr(id, attr, mask));
}

/* Modifies qp to a state with the connection manager's attributes. 0 or an errno. */
static int modify_state(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};
	int mask;
	int error = init_attr(id, &attr, &mask);
	return error ? error : ibv_modify_qp(qp, &attr, mask);
}

int cm_modify_rtr(struct rdma_cm_id *id, uint8_t responder_resources)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	int mask;
	/* The access flags were not yet known when the queue pair was created. */
	int error = modify_state(id, id->qp, IBV_QPS_INIT);
	if (!error)
		error = init_attr(id, &attr, &mask);
	if (error)
		return error;
	if (responder_resources != RDMA_MAX_RESP_RES && mask & IBV_QP_MAX_DEST_RD_ATOMIC)
		attr.max_dest_rd_atomic = responder_resources;
	return ibv_modify_qp(id->qp, &attr, mask);
}

int cm_modify_rts(struct rdma_cm_id *id, uint8_t initiator_depth)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
	int mask;
	int error = init_attr(id, &attr, &mask);
	if (error)
		return error;
	if (initiator_depth != RDMA_MAX_INIT_DEPTH && mask & IBV_QP_MAX_QP_RD_ATOMIC)
		attr.max_rd_atomic = initiator_depth;
	return ibv_modify_qp(id->qp, &attr, mask);
}

void cm_modify_err(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	if (id->qp)
		ibv_modify_qp(id->qp, &attr, IBV_QP_STATE);
}

static int modify_initial(struct rdma_cm_id *id, struct ibv_qp *qp)
{
	int error = modify_state(id, qp, IBV_QPS_INIT);
	if (error || !cm_is_ud(id))
		return error;
	error = modify_state(id, qp, IBV_QPS_RTR);
	return error ? error : modify_state(id, qp, IBV_QPS_RTS);
}

/* Destroys the completion queues that are not in use. */
static void destroy_cqs(struct rdma_cm_id *id)
{
	if (id->qp || (id->qp_type == IBV_QPT_XRC_RECV && id->srq))
		return;
	if (id->recv_cq) {
		ibv_destroy_cq(id->recv_cq);
		if (id->send_cq == id->recv_cq)
			id->send_cq = NULL;
		id->recv_cq = NULL;
	}
	if (id->send_cq) {
		ibv_destroy_cq(id->send_cq);
		id->send_cq = NULL;
	}
	if (id->recv_cq_channel) {
		ibv_destroy_comp_channel(id->recv_cq_channel);
		if (id->send_cq_channel == id->recv_cq_channel)
			id->send_cq_channel = NULL;
		id->recv_cq_channel = NULL;
	}
	if (id->send_cq_channel) {
		ibv_destroy_comp_channel(id->send_cq_channel);
		id->send_cq_channel = NULL;
	}
}

/* Creates a completion queue with its own channel. */
static int create_cq(struct rdma_cm_id *id, uint32_t size, struct ibv_comp_channel **channel,
		     struct ibv_cq **cq)
{
	*channel = ibv_create_comp_channel(id->verbs);
	if (!*channel)
		return errno;
	*cq = ibv_create_cq(id->verbs, (int)size, id, *channel, 0);
	return *cq ? 0 : errno;
}

/* Creates missing completion queues of these sizes; size 0: none is needed. */
static int create_cqs(struct rdma_cm_id *id, uint32_t recv_size, uint32_t send_size)
{
	int error = 0;
	if (recv_size && !id->recv_cq)
		error = create_cq(id, recv_size, &id->recv_cq_channel, &id->recv_cq);
	if (!error && send_size && !id->send_cq)
		error = create_cq(id, send_size, &id->send_cq_channel, &id->send_cq);
	if (error)
		destroy_cqs(id);
	return error;
}

SR_PUBLIC int rdma_create_srq_ex(struct rdma_cm_id *ibv, struct ibv_srq_init_attr_ex *attr)
{
	struct cm_id *id = cm_id(ibv);
	const struct ibv_srq_init_attr_ex given = *attr;
	if (!id->device)
		return cm_result(EINVAL);
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE)) {
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_TYPE;
		attr->srq_type = IBV_SRQT_BASIC;
	}
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd) {
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
		attr->pd = ibv->pd;
	}
	if (attr->srq_type == IBV_SRQT_XRC) {
		if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_XRCD) || !attr->xrcd) {
			attr->comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
			attr->xrcd = cm_xrcd(id->device);
			if (!attr->xrcd)
				return -1;
		}
		if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_CQ) || !attr->cq) {
			int error = create_cqs(ibv, attr->attr.max_wr, 0);
			if (error)
				return cm_result(error);
			attr->comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
			attr->cq = ibv->recv_cq;
		}
	}
	struct ibv_srq *srq = ibv_create_srq_ex(ibv->verbs, attr);
	if (!srq) {
		int error = errno;
		destroy_cqs(ibv);
		*attr = given; /* it may name what is destroyed */
		return cm_result(error);
	}
	if (!ibv->pd)
		ibv->pd = attr->pd;
	ibv->srq = srq;
	return 0;
}

SR_PUBLIC int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd,
			      struct ibv_srq_init_attr *attr)
{
	struct ibv_srq_init_attr_ex ex = {
		.srq_context = attr->srq_context,
		.attr = attr->attr,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = id->qp_type == IBV_QPT_XRC_RECV ? IBV_SRQT_XRC : IBV_SRQT_BASIC,
		.pd = pd,
	};
	int rc = rdma_create_srq_ex(id, &ex);
	attr->attr = ex.attr;
	return rc;
}

SR_PUBLIC void rdma_destroy_srq(struct rdma_cm_id *id)
{
	ibv_destroy_srq(id->srq);
	id->srq = NULL;
	destroy_cqs(id);
}

/* Fills in the attributes that the program left out. 0 or an errno. */
static int complete_attr(struct cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	struct rdma_cm_id *ibv = &id->id;
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd) {
		attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
		attr->pd = ibv->pd;
	} else if (ibv->verbs != attr->pd->context) {
		return EINVAL;
	}
	if ((ibv->recv_cq && attr->recv_cq && ibv->recv_cq != attr->recv_cq) ||
	    (ibv->send_cq && attr->send_cq && ibv->send_cq != attr->send_cq))
		return EINVAL;
	if (ibv->qp_type == IBV_QPT_XRC_RECV) {
		if (!(attr->comp_mask & IBV_QP_INIT_ATTR_XRCD) || !attr->xrcd) {
			attr->comp_mask |= IBV_QP_INIT_ATTR_XRCD;
			attr->xrcd = cm_xrcd(id->device);
			if (!attr->xrcd)
				return errno;
		}
		return 0;
	}
	if (ibv->srq && !attr->srq)
		attr->srq = ibv->srq;
	bool receives = ibv->qp_type != IBV_QPT_XRC_SEND && !attr->srq;
	uint32_t recv = attr->cap.max_recv_wr ? attr->cap.max_recv_wr : !receives;
	uint32_t send = attr->cap.max_send_wr ? attr->cap.max_send_wr : 1;
	int error = create_cqs(ibv, attr->recv_cq ? 0 : recv ? recv : 1, attr->send_cq ? 0 : send);
	if (error)
		return error;
	if (!attr->recv_cq)
		attr->recv_cq = ibv->recv_cq;
	if (!attr->send_cq)
		attr->send_cq = ibv->send_cq;
	return 0;
}

SR_PUBLIC int rdma_create_qp_ex(struct rdma_cm_id *ibv, struct ibv_qp_init_attr_ex *attr)
{
	struct cm_id *id = cm_id(ibv);
	const struct ibv_qp_init_attr_ex given = *attr;
	if (ibv->qp || !id->device)
		return cm_result(EINVAL);
	int error = complete_attr(id, attr);
	struct ibv_qp *qp = error ? NULL : ibv_create_qp_ex(ibv->verbs, attr);
	if (qp) {
		error = modify_initial(ibv, qp);
		if (error)
			ibv_destroy_qp(qp);
	} else if (!error) {
		error = errno;
	}
	if (error) {
		destroy_cqs(ibv);
		*attr = given; /* it may name what is destroyed */
		return cm_result(error);
	}
	if (qp->pd) /* NULL for an XRC target */
		ibv->pd = qp->pd;
	ibv->qp = qp;
	return 0;
}

SR_PUBLIC int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd,
			     struct ibv_qp_init_attr *attr)
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
		.pd = pd ? pd : id->pd,
	};
	int rc = rdma_create_qp_ex(id, &ex);
	attr->qp_type = ex.qp_type;
	attr->cap = ex.cap;
	return rc;
}

/* If the queue pair cannot be destroyed, errno says why, and the identifier keeps it. */
SR_PUBLIC void rdma_destroy_qp(struct rdma_cm_id *id)
{
	if (ibv_destroy_qp(id->qp))
		return;
	id->qp = NULL;
	destroy_cqs(id);
}
