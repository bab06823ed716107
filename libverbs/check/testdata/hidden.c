// SPDX-License-Identifier: Apache-2.0
/*
 * What a NIC fails, and does not report, that lacks optional features.
 */
#include "setup.h"

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

int main(void)
{
	struct setup s;
	setup_open(&s);
	test_shared_receive_queues(&s);
	test_multicast(&s);
	test_timestamps(&s);
	setup_close(&s);
	return failures != 0;
}
