// SPDX-License-Identifier: Apache-2.0
/*
 * Each address has a GID of RoCE v1, which is refused, and then one of RoCE v2, which replies use.
 */
#include "setup.h"

#include <arpa/inet.h>

int main(void)
{
	struct setup s;
	setup_open(&s);
	struct ibv_gid_entry table[8], e;
	REQUIRE(ibv_query_gid_table(s.context, table, 8, 0) == 6);
	for (int i = 0; i < 6; i++) {
		enum ibv_gid_type want = i % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
		CHECK(table[i].gid_index == (uint32_t)i && table[i].gid_type == want);
		CHECK(!memcmp(&table[i].gid, &table[i & ~1].gid, sizeof e.gid));
		RETURNS(0, ibv_query_gid_ex(s.context, 1, i, &e, 0));
		CHECK(e.gid_type == want);
	}

	struct ibv_qp *qp = create_qp(&s);
	struct ibv_qp_attr a = connected_attr(qp->qp_num);
	a.ah_attr.grh.dgid = table[2].gid;
	a.ah_attr.grh.sgid_index = 2;
	REQUIRE(!ibv_modify_qp(qp, &a, INIT_MASK));
	a.qp_state = IBV_QPS_RTR;
	RETURNS(EOPNOTSUPP, ibv_modify_qp(qp, &a, RTR_MASK));
	FAILS(EOPNOTSUPP, !ibv_create_ah(s.pd, &a.ah_attr));
	a.ah_attr.grh.sgid_index = 3;
	RETURNS(0, ibv_modify_qp(qp, &a, RTR_MASK));
	RETURNS(0, ibv_destroy_qp(qp));

	struct ibv_grh grh = {.version_tclass_flow = htonl(6 << 28), .dgid = table[4].gid};
	struct ibv_wc wc = {.wc_flags = IBV_WC_GRH};
	struct ibv_ah_attr reply;
	REQUIRE(!ibv_init_ah_from_wc(s.context, 1, &wc, &grh, &reply));
	CHECK(reply.grh.sgid_index == 5);
	setup_close(&s);
	return failures != 0;
}
