// SPDX-License-Identifier: Apache-2.0
/*
 * Queue pair attributes, between the form of verbs and that of the ABI.
 */
#include "ibverbs/qp.h"
#include "core/ah.h"

#include <stddef.h>
#include <string.h>

struct softroce_qp_cap sr_qp_cap_to_abi(const struct ibv_qp_cap *c)
{
	return (struct softroce_qp_cap){
		.max_send_wr = c->max_send_wr,
		.max_recv_wr = c->max_recv_wr,
		.max_send_sge = c->max_send_sge,
		.max_recv_sge = c->max_recv_sge,
		.max_inline_data = c->max_inline_data,
	};
}

struct ibv_qp_cap sr_qp_cap_from_abi(const struct softroce_qp_cap *c)
{
	return (struct ibv_qp_cap){
		.max_send_wr = c->max_send_wr,
		.max_recv_wr = c->max_recv_wr,
		.max_send_sge = c->max_send_sge,
		.max_recv_sge = c->max_recv_sge,
		.max_inline_data = c->max_inline_data,
	};
}

#define FIELD(bit, name)                                                                           \
	{                                                                                          \
		bit, offsetof(struct ibv_qp_attr, name), sizeof(((struct ibv_qp_attr *)0)->name)   \
	}

/* The attributes that each bit of the mask selects. */
static const struct {
	int bit;
	size_t at, size;
} fields[] = {
	FIELD(IBV_QP_STATE, qp_state),
	FIELD(IBV_QP_CUR_STATE, cur_qp_state),
	FIELD(IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify),
	FIELD(IBV_QP_ACCESS_FLAGS, qp_access_flags),
	FIELD(IBV_QP_PKEY_INDEX, pkey_index),
	FIELD(IBV_QP_PORT, port_num),
	FIELD(IBV_QP_QKEY, qkey),
	FIELD(IBV_QP_AV, ah_attr),
	FIELD(IBV_QP_PATH_MTU, path_mtu),
	FIELD(IBV_QP_TIMEOUT, timeout),
	FIELD(IBV_QP_RETRY_CNT, retry_cnt),
	FIELD(IBV_QP_RNR_RETRY, rnr_retry),
	FIELD(IBV_QP_RQ_PSN, rq_psn),
	FIELD(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic),
	FIELD(IBV_QP_ALT_PATH, alt_ah_attr),
	FIELD(IBV_QP_ALT_PATH, alt_pkey_index),
	FIELD(IBV_QP_ALT_PATH, alt_port_num),
	FIELD(IBV_QP_ALT_PATH, alt_timeout),
	FIELD(IBV_QP_MIN_RNR_TIMER, min_rnr_timer),
	FIELD(IBV_QP_SQ_PSN, sq_psn),
	FIELD(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic),
	FIELD(IBV_QP_PATH_MIG_STATE, path_mig_state),
	FIELD(IBV_QP_CAP, cap),
	FIELD(IBV_QP_DEST_QPN, dest_qp_num),
	FIELD(IBV_QP_RATE_LIMIT, rate_limit),
};

/*
 * Attributes that are not selected may be uninitialized memory of the program: the daemon must
 * not see them.
 */
static struct ibv_qp_attr select_attrs(const struct ibv_qp_attr *a, int mask)
{
	struct ibv_qp_attr chosen;
	memset(&chosen, 0, sizeof chosen);
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		if (mask & fields[i].bit)
			memcpy((char *)&chosen + fields[i].at, (const char *)a + fields[i].at,
			       fields[i].size);
	return chosen;
}

static struct softroce_qp_attr attr_to_abi(const struct ibv_qp_attr *a)
{
	return (struct softroce_qp_attr){
		.state = a->qp_state,
		.cur_state = a->cur_qp_state,
		.path_mtu = a->path_mtu,
		.path_mig_state = a->path_mig_state,
		.qkey = a->qkey,
		.rq_psn = a->rq_psn,
		.sq_psn = a->sq_psn,
		.dest_qp_num = a->dest_qp_num,
		.access_flags = a->qp_access_flags,
		.rate_limit = a->rate_limit,
		.cap = sr_qp_cap_to_abi(&a->cap),
		.ah = sr_ah_to_abi(&a->ah_attr),
		.alt_ah = sr_ah_to_abi(&a->alt_ah_attr),
		.pkey_index = a->pkey_index,
		.alt_pkey_index = a->alt_pkey_index,
		.en_sqd_async_notify = a->en_sqd_async_notify,
		.sq_draining = a->sq_draining,
		.max_rd_atomic = a->max_rd_atomic,
		.max_dest_rd_atomic = a->max_dest_rd_atomic,
		.min_rnr_timer = a->min_rnr_timer,
		.port_num = a->port_num,
		.timeout = a->timeout,
		.retry_cnt = a->retry_cnt,
		.rnr_retry = a->rnr_retry,
		.alt_port_num = a->alt_port_num,
		.alt_timeout = a->alt_timeout,
	};
}

void sr_qp_attr_from_abi(struct ibv_qp_attr *out, const struct softroce_qp_attr *a)
{
	*out = (struct ibv_qp_attr){
		.qp_state = a->state,
		.cur_qp_state = a->cur_state,
		.path_mtu = a->path_mtu,
		.path_mig_state = a->path_mig_state,
		.qkey = a->qkey,
		.rq_psn = a->rq_psn,
		.sq_psn = a->sq_psn,
		.dest_qp_num = a->dest_qp_num,
		.qp_access_flags = a->access_flags,
		.cap = sr_qp_cap_from_abi(&a->cap),
		.ah_attr = sr_ah_from_abi(&a->ah),
		.alt_ah_attr = sr_ah_from_abi(&a->alt_ah),
		.pkey_index = a->pkey_index,
		.alt_pkey_index = a->alt_pkey_index,
		.en_sqd_async_notify = a->en_sqd_async_notify,
		.sq_draining = a->sq_draining,
		.max_rd_atomic = a->max_rd_atomic,
		.max_dest_rd_atomic = a->max_dest_rd_atomic,
		.min_rnr_timer = a->min_rnr_timer,
		.port_num = a->port_num,
		.timeout = a->timeout,
		.retry_cnt = a->retry_cnt,
		.rnr_retry = a->rnr_retry,
		.alt_port_num = a->alt_port_num,
		.alt_timeout = a->alt_timeout,
		.rate_limit = a->rate_limit,
	};
}

/* Programs set responder attributes on an XRC initiator too, which has no responder. */
static uint32_t responder_mask(enum ibv_qp_type type)
{
	return type == IBV_QPT_XRC_SEND ? IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC : 0;
}

void sr_qp_attr_to_abi(struct softroce_modify_qp_request *req, enum ibv_qp_type type,
		       const struct ibv_qp_attr *attr, int mask)
{
	struct ibv_qp_attr chosen = select_attrs(attr, mask);
	req->mask = (uint32_t)mask & ~responder_mask(type);
	req->attr = attr_to_abi(&chosen);
}
