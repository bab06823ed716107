// SPDX-License-Identifier: Apache-2.0
/*
 * Calls with invalid arguments, or in the invalid state. Some return an errno, others set it.
 */
#include "setup.h"

#include <stdint.h>

static void queries(struct setup *s)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	__be16 pkey;
	struct ibv_gid_entry entries[64];
	struct ibv_context *c = s->context;
	RETURNS(EINVAL, ibv_query_port(c, 0, &port));
	RETURNS(EINVAL, ibv_query_port(c, 2, &port));
	FAILS(EINVAL, ibv_query_gid(c, 2, 0, &gid) == -1);
	FAILS(EINVAL, ibv_query_gid(c, 1, -1, &gid) == -1);
	FAILS(EINVAL, ibv_query_gid(c, 1, INT32_MAX, &gid) == -1);
	FAILS(EINVAL, ibv_query_pkey(c, 0, 0, &pkey) == -1);
	FAILS(EINVAL, ibv_query_pkey(c, 1, INT32_MAX, &pkey) == -1);
	CHECK(ibv_get_pkey_index(c, 1, 0xffff) == 0 && ibv_get_pkey_index(c, 1, 0x1234) == -1);
	RETURNS(EINVAL, ibv_query_gid_ex(c, 2, 0, entries, 0));
	RETURNS(EOPNOTSUPP, ibv_query_gid_ex(c, 1, 0, entries, 1));
	RETURNS(ENODATA, ibv_query_gid_ex(c, 1, 200, entries, 0));
	CHECK(ibv_query_gid_table(c, entries, 0, 0) == -EINVAL);
	CHECK(ibv_query_gid_table(c, entries, 64, 1) == -EOPNOTSUPP);
	CHECK(ibv_query_gid_table(c, entries, 64, 0) == 6);
}

static void memory(struct setup *s, struct setup *other)
{
	char *b = s->buf;
	FAILS(EINVAL, !ibv_reg_mr(s->pd, b, 4096, IBV_ACCESS_REMOTE_WRITE));
	FAILS(EINVAL, !ibv_reg_mr(s->pd, b, 4096, IBV_ACCESS_REMOTE_ATOMIC));
	FAILS(EFAULT, !ibv_reg_mr(s->pd, NULL, 4096, 0));
	FAILS(EFAULT, !ibv_reg_mr(s->pd, (void *)4096, 8, 0));
	FAILS(EINVAL, !ibv_reg_mr(s->pd, (void *)-4096l, 8192, 0));
	FAILS(EINVAL, !ibv_reg_mr_iova(s->pd, b, 10, UINT64_MAX - 5, 0));
	RETURNS(EBUSY, ibv_dealloc_pd(s->pd));
	FAILS(EINVAL, ibv_rereg_mr(s->mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	FAILS(EINVAL, ibv_rereg_mr(s->mr, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	/*
	 * Handles are valid in their context only: that of another context could name an unrelated
	 * object.
	 */
	FAILS(ENOENT, ibv_rereg_mr(s->mr, IBV_REREG_MR_CHANGE_PD, other->pd, NULL, 0, 0) ==
			      IBV_REREG_MR_ERR_INPUT);
	FAILS(ENOENT, !ibv_import_mr(s->pd, 12345));
	FAILS(EINVAL, !ibv_import_device(0));
	FAILS(EBADF, !ibv_import_device(-1));
}

static void queues(struct setup *s, struct setup *other)
{
	struct ibv_device_attr dev;
	REQUIRE(!ibv_query_device(s->context, &dev));
	FAILS(EINVAL, !ibv_create_cq(s->context, 0, NULL, NULL, 0));
	FAILS(EINVAL, !ibv_create_cq(s->context, -5, NULL, NULL, 0));
	FAILS(EINVAL, !ibv_create_cq(s->context, dev.max_cqe + 1, NULL, NULL, 0));
	FAILS(EINVAL, !ibv_create_cq(s->context, 1, NULL, NULL, 1));
	FAILS(EINVAL, !ibv_create_cq(s->context, 1, NULL, NULL, -1));
	FAILS(ENOENT, !ibv_create_cq(s->context, 1, NULL, other->channel, 0));
	RETURNS(EINVAL, ibv_resize_cq(s->cq, 0));
	RETURNS(EINVAL, ibv_resize_cq(s->cq, dev.max_cqe + 1));
	RETURNS(0, ibv_resize_cq(s->cq, 100));
	RETURNS(EBUSY, ibv_destroy_comp_channel(s->channel));

	struct ibv_qp_init_attr a;
#define REJECTED(error, change)                                                                    \
	do {                                                                                       \
		a = rc_attr(s);                                                                    \
		change;                                                                            \
		FAILS(error, !ibv_create_qp(s->pd, &a));                                           \
	} while (0)
	REJECTED(EOPNOTSUPP, a.qp_type = 0);
	REJECTED(EOPNOTSUPP, a.qp_type = IBV_QPT_RAW_PACKET);
	REJECTED(EINVAL, a.send_cq = NULL);
	REJECTED(EINVAL, a.recv_cq = NULL);
	REJECTED(ENOENT, a.send_cq = other->cq);
	REJECTED(ENOENT, a.recv_cq = other->cq);
	REJECTED(EINVAL, a.cap.max_send_wr = dev.max_qp_wr + 1);
	REJECTED(EINVAL, a.cap.max_recv_wr = UINT32_MAX);
	REJECTED(EINVAL, a.cap.max_send_sge = dev.max_sge + 1);
	REJECTED(EINVAL, a.cap.max_inline_data = 1 << 20);
	REJECTED(EINVAL, a.qp_type = IBV_QPT_XRC_RECV);
}

static void shared_queues(struct setup *s, struct setup *other)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 10, .max_sge = 1}}, none = init;
	struct ibv_srq *srq = ibv_create_srq(s->pd, &init),
		       *other_srq = ibv_create_srq(other->pd, &init);
	REQUIRE(srq && other_srq && init.attr.max_wr >= 10);
	none.attr.max_wr = 0;
	FAILS(EINVAL, !ibv_create_srq(s->pd, &none));
	struct ibv_srq_attr attr = {.srq_limit = 100};
	uint32_t number;
	RETURNS(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	RETURNS(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	RETURNS(EINVAL, ibv_modify_srq(srq, &attr, 64));
	RETURNS(EOPNOTSUPP, ibv_get_srq_num(srq, &number));
	struct ibv_qp_init_attr a = rc_attr(s);
	a.srq = other_srq;
	FAILS(ENOENT, !ibv_create_qp(s->pd, &a));
	a.srq = srq;
	struct ibv_qp *qp = ibv_create_qp(s->pd, &a);
	REQUIRE(qp);
	RETURNS(EBUSY, ibv_destroy_srq(srq));
	struct ibv_recv_wr wr = {.num_sge = 0}, *bad = NULL;
	RETURNS(EINVAL, ibv_post_recv(qp, &wr, &bad));
	CHECK(bad == &wr);
	wr.num_sge = -1;
	RETURNS(EINVAL, ibv_post_srq_recv(srq, &wr, &bad));
	struct ibv_ops_wr op = {0}, *bad_op = NULL;
	RETURNS(EOPNOTSUPP, ibv_post_srq_ops(srq, &op, &bad_op));
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_srq(srq));
	RETURNS(0, ibv_destroy_srq(other_srq));
}

static void states(struct setup *s)
{
	struct ibv_qp_init_attr init = rc_attr(s);
	struct ibv_qp *qp = ibv_create_qp(s->pd, &init);
	REQUIRE(qp);
	RETURNS(EBUSY, ibv_destroy_cq(s->cq));
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	RETURNS(EINVAL, ibv_modify_qp(qp, &a, IBV_QP_STATE));
	RETURNS(EINVAL, ibv_modify_qp(qp, &a, INIT_MASK | IBV_QP_QKEY));
	RETURNS(EINVAL, ibv_modify_qp(qp, &a, INIT_MASK | 1 << 30));
	a.port_num = 2;
	RETURNS(EINVAL, ibv_modify_qp(qp, &a, INIT_MASK));
	a.port_num = 1;
	a.pkey_index = 99;
	RETURNS(EINVAL, ibv_modify_qp(qp, &a, INIT_MASK));
	a.pkey_index = 0;
	a.qp_state = IBV_QPS_RTS;
	RETURNS(EINVAL, ibv_modify_qp(qp, &a, INIT_MASK));
	a.qp_state = 55;
	RETURNS(EINVAL, ibv_modify_qp(qp, &a, INIT_MASK));
	struct ibv_recv_wr recv = {.num_sge = 0}, *bad_recv = NULL;
	RETURNS(EINVAL, ibv_post_recv(qp, &recv, &bad_recv)); /* in the Reset state */
	CHECK(bad_recv == &recv);
	a.qp_state = IBV_QPS_INIT;
	RETURNS(0, ibv_modify_qp(qp, &a, INIT_MASK));
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send = NULL;
	RETURNS(EINVAL, ibv_post_send(qp, &send, &bad_send)); /* before RTS */
	CHECK(bad_send == &send);
	RETURNS(0, ibv_destroy_qp(qp));
}

/* Work requests before the first invalid one are posted; those after it are not looked at. */
static void posting(struct setup *s)
{
	struct ibv_qp *qp = loopback_qp(s);
	struct ibv_sge sge[3] = {{(uintptr_t)s->buf, 16, s->mr->lkey},
				 {(uintptr_t)s->buf, 16, s->mr->lkey},
				 {(uintptr_t)s->buf, 4000, s->mr->lkey}};
	struct ibv_send_wr wr[3], *bad = NULL;
	for (int i = 0; i < 3; i++)
		wr[i] = (struct ibv_send_wr){
			.wr_id = i,
			.next = i < 2 ? &wr[i + 1] : NULL,
			.sg_list = sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.wr.rdma = {.remote_addr = (uintptr_t)s->buf + 2048, .rkey = s->mr->rkey},
		};
	struct ibv_wc wc[4];
	int n = 0;
	struct {
		struct ibv_send_wr as;
		int error;
	} invalid[] = {{wr[1], EINVAL},
		       {wr[1], EINVAL},
		       {wr[1], EINVAL},
		       {wr[1], EINVAL},
		       {wr[1], EINVAL}};
	invalid[0].as.num_sge = 3; /* more than max_send_sge */
	invalid[1].as.num_sge = -1;
	invalid[2].as.opcode = 77;
	invalid[3].as.opcode = IBV_WR_TSO;
	invalid[4].as.send_flags = IBV_SEND_INLINE; /* more than max_inline_data */
	invalid[4].as.sg_list = &sge[2];
	for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
		wr[1] = invalid[i].as;
		bad = NULL;
		RETURNS(invalid[i].error, ibv_post_send(qp, wr, &bad));
		CHECK(bad == &wr[1]);
		while (!(n = ibv_poll_cq(s->cq, 4, wc)))
			;
		CHECK(n == 1 && wc[0].wr_id == 0 && wc[0].status == IBV_WC_SUCCESS);
	}
	wr[0].next = NULL;
	/* The receive queue is full. */
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	REQUIRE(!ibv_query_qp(qp, &a, IBV_QP_CAP, &init));
	struct ibv_recv_wr recv[2] = {{.next = &recv[1]}, {.num_sge = 3}}, *bad_recv;
	RETURNS(EINVAL, ibv_post_recv(qp, recv, &bad_recv));
	CHECK(bad_recv == &recv[1]);
	for (uint32_t i = 1; i < init.cap.max_recv_wr; i++)
		REQUIRE(!ibv_post_recv(qp, &(struct ibv_recv_wr){0}, &bad_recv));
	recv[0].next = NULL;
	RETURNS(ENOMEM, ibv_post_recv(qp, recv, &bad_recv));
	CHECK(bad_recv == recv);
	RETURNS(0, ibv_destroy_qp(qp)); /* its completions are removed from the CQ */
	RETURNS(0, ibv_poll_cq(s->cq, 4, wc));
}

static void addresses(struct setup *s)
{
	struct ibv_ah_attr a = {.port_num = 1, .grh.sgid_index = 1};
	FAILS(EINVAL, !ibv_create_ah(s->pd, &a)); /* not global */
	a.is_global = 1;
	FAILS(EINVAL, !ibv_create_ah(s->pd, &a)); /* without a destination */
	REQUIRE(!ibv_query_gid(s->context, 1, 1, &a.grh.dgid));
	a.grh.sgid_index = 200;
	FAILS(EINVAL, !ibv_create_ah(s->pd, &a));
	a.grh.sgid_index = 1;
	a.port_num = 2;
	FAILS(EINVAL, !ibv_create_ah(s->pd, &a));
	a.port_num = 1;
	struct ibv_ah *ah = ibv_create_ah(s->pd, &a);
	REQUIRE(ah);
	RETURNS(0, ibv_destroy_ah(ah));
}

/* Calls for features that this NIC does not have, through their inline functions. */
static void unsupported(struct setup *s)
{
	struct ibv_context *c = s->context;
	struct ibv_qp *qp = loopback_qp(s);
	struct ibv_ece ece = {0};
	struct ibv_sge sge = {0};
	FAILS(EOPNOTSUPP, !ibv_create_flow(qp, &(struct ibv_flow_attr){0}));
	FAILS(EOPNOTSUPP, !ibv_create_flow_action_esp(c, &(struct ibv_flow_action_esp_attr){0}));
	FAILS(EOPNOTSUPP, !ibv_create_wq(c, &(struct ibv_wq_init_attr){0}));
	FAILS(EOPNOTSUPP, !ibv_create_rwq_ind_table(c, &(struct ibv_rwq_ind_table_init_attr){0}));
	FAILS(EOPNOTSUPP, !ibv_create_counters(c, &(struct ibv_counters_init_attr){0}));
	FAILS(EOPNOTSUPP, !ibv_open_qp(c, &(struct ibv_qp_open_attr){0}));
	FAILS(EOPNOTSUPP, !ibv_alloc_null_mr(s->pd));
	RETURNS(EOPNOTSUPP, ibv_advise_mr(s->pd, 0, 0, &sge, 1));
	RETURNS(EOPNOTSUPP, ibv_modify_cq(s->cq, &(struct ibv_modify_cq_attr){0}));
	RETURNS(EOPNOTSUPP, ibv_set_ece(qp, &ece));
	RETURNS(EOPNOTSUPP, ibv_query_ece(qp, &ece));
	struct ibv_ah_attr ah = {0};
	uint8_t mac[6];
	uint16_t vlan;
	RETURNS(EOPNOTSUPP, ibv_resolve_eth_l2_from_gid(c, &ah, mac, &vlan));
	RETURNS(0, ibv_destroy_qp(qp));
}

int main(void)
{
	struct setup s, other;
	setup_open(&s);
	setup_open(&other);
	queries(&s);
	memory(&s, &other);
	queues(&s, &other);
	shared_queues(&s, &other);
	states(&s);
	posting(&s);
	addresses(&s);
	unsupported(&s);
	setup_close(&s);
	setup_close(&other);
	return failures != 0;
}
