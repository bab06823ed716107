// SPDX-License-Identifier: Apache-2.0
/*
 * What a NIC fails, and does not report, that lacks optional features.
 */
#include "setup.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

static void test_timestamps(struct setup *s)
{
	struct ibv_device_attr_ex d;
	RETURNS(0, ibv_query_device_ex(s->context, NULL, &d));
	CHECK(!d.completion_timestamp_mask && !d.hca_core_clock);
	for (uint32_t wanted = 0; wanted <= IBV_VALUES_MASK_RAW_CLOCK; wanted++) {
		struct ibv_values_ex now = {.comp_mask = wanted};
		RETURNS(EOPNOTSUPP, ibv_query_rt_values_ex(s->context, &now));
	}
	struct ibv_cq_init_attr_ex a = {.cqe = 16};
	for (int wallclock = 0; wallclock <= 1; wallclock++) {
		a.wc_flags = wallclock ? IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
				       : IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
		FAILS(EOPNOTSUPP, !ibv_create_cq_ex(s->context, &a));
	}
	a.wc_flags = IBV_WC_STANDARD_FLAGS;
	struct ibv_cq_ex *q = ibv_create_cq_ex(s->context, &a);
	REQUIRE(q);
	RETURNS(0, ibv_destroy_cq(ibv_cq_ex_to_cq(q)));
}

/* Only the queue pairs that use shared receive queues are affected. */
static void test_shared_receive_queues(struct setup *s)
{
	struct ibv_device_attr_ex d;
	RETURNS(0, ibv_query_device_ex(s->context, NULL, &d));
	CHECK(!d.orig_attr.max_srq && !d.orig_attr.max_srq_wr && !d.orig_attr.max_srq_sge);
	CHECK(!(d.orig_attr.device_cap_flags & (IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_XRC)));
	CHECK(d.odp_caps.per_transport_caps.ud_odp_caps ==
	      (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV));
	CHECK(d.orig_attr.atomic_cap == IBV_ATOMIC_NONE);
	CHECK(!(d.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_ATOMIC));
	struct ibv_srq_init_attr a = {.attr = {.max_wr = 16, .max_sge = 1}};
	FAILS(EOPNOTSUPP, !ibv_create_srq(s->pd, &a));
	struct ibv_srq_init_attr_ex ex = {
		.attr = a.attr, .comp_mask = IBV_SRQ_INIT_ATTR_PD, .pd = s->pd};
	FAILS(EOPNOTSUPP, !ibv_create_srq_ex(s->context, &ex));
}

static void test_multicast(struct setup *s)
{
	struct ibv_device_attr d;
	RETURNS(0, ibv_query_device(s->context, &d));
	CHECK(!d.max_mcast_grp && !d.max_mcast_qp_attach && !d.max_total_mcast_qp_attach);
	struct ibv_qp_init_attr a = {.send_cq = s->cq,
				     .recv_cq = s->cq,
				     .cap = {.max_send_wr = 1, .max_recv_wr = 1},
				     .qp_type = IBV_QPT_UD};
	struct ibv_qp *q = ibv_create_qp(s->pd, &a);
	REQUIRE(q);
	union ibv_gid group = {.raw = {0xff, 0x0e, [15] = 1}};
	RETURNS(EOPNOTSUPP, ibv_attach_mcast(q, &group, 0));
	RETURNS(EOPNOTSUPP, ibv_detach_mcast(q, &group, 0));
	RETURNS(0, ibv_destroy_qp(q));
}

/*
 * The identifier joins without a queue pair, as a program does that only sends. With one, the
 * library attaches it when the event arrives, and reports its error.
 */
static void test_joining(void)
{
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr = {htonl(0xc0000201)}};
	struct sockaddr_in group = {.sin_family = AF_INET, .sin_addr = {htonl(0xef010101)}};
	struct ibv_qp_init_attr a = {.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_UD};
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	REQUIRE(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_UDP));
	REQUIRE(!rdma_bind_addr(id, (struct sockaddr *)&own));
	for (int with_qp = 0; with_qp <= 1; with_qp++) {
		REQUIRE(!with_qp || !rdma_create_qp(id, NULL, &a));
		REQUIRE(!rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
		REQUIRE(!rdma_get_cm_event(channel, &event));
		CHECK(event->event ==
		      (with_qp ? RDMA_CM_EVENT_MULTICAST_ERROR : RDMA_CM_EVENT_MULTICAST_JOIN));
		CHECK(event->status == (with_qp ? -EOPNOTSUPP : 0));
		RETURNS(0, rdma_ack_cm_event(event));
		RETURNS(0, rdma_leave_multicast(id, (struct sockaddr *)&group));
	}
	rdma_destroy_qp(id);
	RETURNS(0, rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);

	/* An identifier without a channel waits for the event. */
	REQUIRE(!rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP));
	REQUIRE(!rdma_bind_addr(id, (struct sockaddr *)&own) && !rdma_create_qp(id, NULL, &a));
	FAILS(EOPNOTSUPP, rdma_join_multicast(id, (struct sockaddr *)&group, NULL) == -1);
	rdma_destroy_qp(id);
	RETURNS(0, rdma_destroy_id(id));
}

static struct ibv_qp *try_qp_ex(struct setup *s, enum ibv_qp_type type, uint64_t operations)
{
	struct ibv_qp_init_attr basic = rc_attr(s);
	struct ibv_qp_init_attr_ex a = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.cap = basic.cap,
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = s->pd,
		.send_ops_flags = operations,
	};
	return ibv_create_qp_ex(s->context, &a);
}

/* The other operations can be had, and without a list of operations none is required. */
static void test_operations(struct setup *s)
{
	const uint64_t others = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
				IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
				IBV_QP_EX_WITH_RDMA_READ;
	const uint64_t hidden[] = {
		IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
		IBV_QP_EX_WITH_LOCAL_INV,	   IBV_QP_EX_WITH_BIND_MW,
		IBV_QP_EX_WITH_SEND_WITH_INV,	   1 << 11, /* IBV_QP_EX_WITH_FLUSH */
		IBV_QP_EX_WITH_ATOMIC_WRITE};
	for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
		FAILS(EOPNOTSUPP, !try_qp_ex(s, IBV_QPT_RC, others | hidden[i]));
	FAILS(EOPNOTSUPP, !try_qp_ex(s, IBV_QPT_UC, IBV_QP_EX_WITH_LOCAL_INV));
	struct ibv_qp *q = try_qp_ex(s, IBV_QPT_RC, others);
	REQUIRE(q);
	RETURNS(0, ibv_destroy_qp(q));
	RETURNS(0, ibv_destroy_qp(create_qp(s)));
}

/* A window of type 2 must be invalidated before it is bound again, one of type 1 need not be. */
static void test_windows(struct setup *s)
{
	struct ibv_device_attr d;
	RETURNS(0, ibv_query_device(s->context, &d));
	CHECK(d.max_mw && d.device_cap_flags & IBV_DEVICE_MEM_WINDOW);
	CHECK(!(d.device_cap_flags &
		(IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS)));
	FAILS(EOPNOTSUPP, !ibv_alloc_mw(s->pd, IBV_MW_TYPE_2));
	static char memory[64];
	struct ibv_mr *mr = ibv_reg_mr(s->pd, memory, sizeof memory, IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(s->pd, IBV_MW_TYPE_1);
	REQUIRE(mr && mw);
	struct ibv_qp *q = loopback_qp(s);
	for (int i = 0; i < 2; i++) {
		struct ibv_mw_bind b = {.send_flags = IBV_SEND_SIGNALED,
					.bind_info = {.mr = mr,
						      .addr = (uintptr_t)memory,
						      .length = 8,
						      .mw_access_flags = IBV_ACCESS_REMOTE_READ}};
		RETURNS(0, ibv_bind_mw(q, mw, &b));
		struct ibv_wc wc;
		while (!ibv_poll_cq(s->cq, 1, &wc))
			;
		CHECK(wc.status == IBV_WC_SUCCESS);
	}
	RETURNS(0, ibv_destroy_qp(q));
	RETURNS(0, ibv_dealloc_mw(mw));
	RETURNS(0, ibv_dereg_mr(mr));
}

int main(void)
{
	struct setup s;
	setup_open(&s);
	test_shared_receive_queues(&s);
	test_multicast(&s);
	test_joining();
	test_operations(&s);
	test_windows(&s);
	test_timestamps(&s);
	setup_close(&s);
	return failures != 0;
}
