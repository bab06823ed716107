// SPDX-License-Identifier: Apache-2.0
/*
 * Each address has a GID of RoCE v1, and then one of RoCE v2. Replies use the type with which a
 * datagram came. The argument is the error of using one of RoCE v1, 0 if it works.
 */
#include "setup.h"

#include <arpa/inet.h>

static int reply_index(struct setup *s, union ibv_gid to, uint8_t next_header)
{
	struct ibv_grh grh = {
		.version_tclass_flow = htonl(6 << 28), .next_hdr = next_header, .dgid = to};
	struct ibv_wc wc = {.wc_flags = IBV_WC_GRH};
	struct ibv_ah_attr reply;
	if (ibv_init_ah_from_wc(s->context, 1, &wc, &grh, &reply))
		return -1;
	return reply.grh.sgid_index;
}

int main(int argc, char **argv)
{
	int error = argc > 1 ? atoi(argv[1]) : 0;
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

	for (int i = 2; i < 4; i++) {
		struct ibv_qp *qp = create_qp(&s);
		struct ibv_qp_attr a = connected_attr(qp->qp_num);
		a.ah_attr.grh.dgid = table[2].gid;
		a.ah_attr.grh.sgid_index = i;
		REQUIRE(!ibv_modify_qp(qp, &a, INIT_MASK));
		a.qp_state = IBV_QPS_RTR;
		RETURNS(i == 2 ? error : 0, ibv_modify_qp(qp, &a, RTR_MASK));
		if (i == 2 && error) {
			FAILS(error, !ibv_create_ah(s.pd, &a.ah_attr));
		} else {
			struct ibv_ah *ah = ibv_create_ah(s.pd, &a.ah_attr);
			REQUIRE(ah);
			RETURNS(0, ibv_destroy_ah(ah));
		}
		RETURNS(0, ibv_destroy_qp(qp));
	}

	CHECK(reply_index(&s, table[4].gid, 17) == 5);
	CHECK(reply_index(&s, table[4].gid, 0x1b) == 4);
	setup_close(&s);
	return failures != 0;
}
