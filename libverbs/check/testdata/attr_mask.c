// SPDX-License-Identifier: Apache-2.0
/*
 * Takes a queue pair to RTS with attributes that are uninitialized except for those that the
 * mask selects.
 */
#include "setup.h"

static struct ibv_qp_attr anything(enum ibv_qp_state state)
{
	struct ibv_qp_attr a;
	memset(&a, 0xa5, sizeof a);
	a.qp_state = state;
	return a;
}

int main(void)
{
	struct setup s = {.context =
				  open_first()}; /* no memory region: the proxy has another PID */
	REQUIRE((s.pd = ibv_alloc_pd(s.context)));
	REQUIRE((s.cq = ibv_create_cq(s.context, 64, NULL, NULL, 0)));
	struct ibv_qp_init_attr init = rc_attr(&s);
	struct ibv_qp *qp = ibv_create_qp(s.pd, &init);
	REQUIRE(qp);

	struct ibv_qp_attr a = anything(IBV_QPS_INIT);
	a.port_num = 1;
	a.pkey_index = 0;
	a.qp_access_flags = ALL_ACCESS;
	RETURNS(0, ibv_modify_qp(qp, &a, INIT_MASK));

	a = anything(IBV_QPS_RTR);
	a.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1}};
	REQUIRE(!ibv_query_gid(s.context, 1, 1, &a.ah_attr.grh.dgid));
	a.path_mtu = IBV_MTU_1024;
	a.dest_qp_num = qp->qp_num;
	a.rq_psn = 0;
	a.max_dest_rd_atomic = 1;
	a.min_rnr_timer = 1;
	RETURNS(0, ibv_modify_qp(qp, &a, RTR_MASK));

	a = anything(IBV_QPS_RTS);
	a.timeout = 14;
	a.retry_cnt = 7;
	a.rnr_retry = 7;
	a.sq_psn = 0;
	a.max_rd_atomic = 1;
	RETURNS(0, ibv_modify_qp(qp, &a, RTS_MASK));

	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_cq(s.cq));
	RETURNS(0, ibv_dealloc_pd(s.pd));
	RETURNS(0, ibv_close_device(s.context));
	return failures != 0;
}
