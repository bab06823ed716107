/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context with the objects that most programs need, and queue pairs connected to themselves.
 */
#ifndef SETUP_H
#define SETUP_H

#include "check.h"

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct setup {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq; /* uses channel */
	struct ibv_mr *mr; /* of buf, with ALL_ACCESS */
	char buf[4096];
};

#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static inline void list_devices(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	REQUIRE(list && list[0]);
	ibv_free_device_list(list);
}

static inline void look_for_devices(void)
{
	struct stat st;
	REQUIRE(!stat("/sys/class/infiniband/nic0", &st));
}

static inline struct ibv_context *open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	REQUIRE(list && list[0]);
	struct ibv_context *c = ibv_open_device(list[0]);
	REQUIRE(c);
	ibv_free_device_list(list);
	return c;
}

static inline void setup_open(struct setup *s)
{
	s->context = open_first();
	REQUIRE((s->pd = ibv_alloc_pd(s->context)));
	REQUIRE((s->channel = ibv_create_comp_channel(s->context)));
	REQUIRE((s->cq = ibv_create_cq(s->context, 64, s, s->channel, 0)));
	REQUIRE((s->mr = ibv_reg_mr(s->pd, s->buf, sizeof s->buf, ALL_ACCESS)));
}

static inline void setup_close(struct setup *s)
{
	RETURNS(0, ibv_dereg_mr(s->mr));
	RETURNS(0, ibv_destroy_cq(s->cq));
	RETURNS(0, ibv_destroy_comp_channel(s->channel));
	RETURNS(0, ibv_dealloc_pd(s->pd));
	RETURNS(0, ibv_close_device(s->context));
}

static inline struct ibv_qp_init_attr rc_attr(struct setup *s)
{
	return (struct ibv_qp_init_attr){
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.cap = {.max_send_wr = 16,
			.max_recv_wr = 16,
			.max_send_sge = 2,
			.max_recv_sge = 2,
			.max_inline_data = 32},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
}

#define INIT_MASK (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define RTR_MASK                                                                                   \
	(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |            \
	 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RTS_MASK                                                                                   \
	(IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |     \
	 IBV_QP_MAX_QP_RD_ATOMIC)

/* Of a queue pair that is connected to another one of the same NIC, whose GID is to be set. */
static inline struct ibv_qp_attr connected_attr(uint32_t dest)
{
	return (struct ibv_qp_attr){
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = ALL_ACCESS,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = dest,
		.max_dest_rd_atomic = 1,
		.max_rd_atomic = 1,
		.min_rnr_timer = 1,
		.timeout = 18,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.sgid_index = 1, .hop_limit = 1}},
	};
}

/* Connects a queue pair to another one of the same NIC. */
static inline void connect_qp(struct setup *s, struct ibv_qp *qp, uint32_t dest)
{
	struct ibv_qp_attr a = connected_attr(dest);
	REQUIRE(!ibv_query_gid(s->context, 1, 1, &a.ah_attr.grh.dgid));
	REQUIRE(!ibv_modify_qp(qp, &a, INIT_MASK));
	a.qp_state = IBV_QPS_RTR;
	REQUIRE(!ibv_modify_qp(qp, &a, RTR_MASK));
	a.qp_state = IBV_QPS_RTS;
	REQUIRE(!ibv_modify_qp(qp, &a, RTS_MASK));
}

static inline struct ibv_qp *create_qp(struct setup *s)
{
	struct ibv_qp_init_attr init = rc_attr(s);
	struct ibv_qp *qp = ibv_create_qp(s->pd, &init);
	REQUIRE(qp);
	return qp;
}

/* Creates a queue pair for work requests of the ibv_wr_* functions. */
static inline struct ibv_qp *create_qp_ex(struct setup *s, uint64_t operations)
{
	struct ibv_qp_init_attr basic = rc_attr(s);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.cap = basic.cap,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = s->pd,
		.send_ops_flags = operations,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(s->context, &init);
	REQUIRE(qp);
	return qp;
}

/* Creates a queue pair that is connected to itself, in RTS. */
static inline struct ibv_qp *loopback_qp(struct setup *s)
{
	struct ibv_qp *qp = create_qp(s);
	connect_qp(s, qp, qp->qp_num);
	return qp;
}

#endif
