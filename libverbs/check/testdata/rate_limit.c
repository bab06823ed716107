// SPDX-License-Identifier: Apache-2.0
/* Rates that a program sets: of a queue pair, and of an address vector. */
#include "setup.h"

int main(void)
{
	struct setup s;
	setup_open(&s);
	struct ibv_device_attr_ex dev;
	RETURNS(0, ibv_query_device_ex(s.context, NULL, &dev));
	struct ibv_packet_pacing_caps *caps = &dev.packet_pacing_caps;
	CHECK(caps->qp_rate_limit_min == 1 && caps->qp_rate_limit_max == UINT32_MAX);
	CHECK(caps->supported_qpts & 1 << IBV_QPT_RC && caps->supported_qpts & 1 << IBV_QPT_UD);

	struct ibv_qp_init_attr init = rc_attr(&s);
	struct ibv_qp *qp = ibv_create_qp(s.pd, &init);
	REQUIRE(qp);
	struct ibv_qp_rate_limit_attr limit = {.rate_limit = 5000};
	RETURNS(EINVAL, ibv_modify_qp_rate_limit(qp, &limit)); /* it cannot send yet */
	RETURNS(0, ibv_destroy_qp(qp));

	REQUIRE((qp = loopback_qp(&s)));
	RETURNS(0, ibv_modify_qp_rate_limit(qp, &limit));
	struct ibv_qp_attr a;
	RETURNS(0, ibv_query_qp(qp, &a, IBV_QP_RATE_LIMIT, &init));
	CHECK(a.rate_limit == 5000);
	limit.max_burst_sz = 4096;
	RETURNS(EINVAL, ibv_modify_qp_rate_limit(qp, &limit));
	limit = (struct ibv_qp_rate_limit_attr){.typical_pkt_sz = 64};
	RETURNS(EINVAL, ibv_modify_qp_rate_limit(qp, &limit));
	limit = (struct ibv_qp_rate_limit_attr){0};
	RETURNS(0, ibv_modify_qp_rate_limit(qp, &limit));
	RETURNS(0, ibv_query_qp(qp, &a, IBV_QP_RATE_LIMIT, &init));
	CHECK(a.rate_limit == 0);

	struct ibv_ah_attr ah = a.ah_attr;
	ah.static_rate = IBV_RATE_5_GBPS;
	struct ibv_ah *h = ibv_create_ah(s.pd, &ah);
	REQUIRE(h);
	RETURNS(0, ibv_destroy_ah(h));
	ah.static_rate = 1; /* not assigned */
	FAILS(EINVAL, !ibv_create_ah(s.pd, &ah));
	RETURNS(0, ibv_destroy_qp(qp));
	setup_close(&s);
	return failures != 0;
}
