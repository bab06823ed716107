// SPDX-License-Identifier: Apache-2.0
/*
 * Address handles with the same attributes share one of the daemon: up to the limit, until the last
 * is destroyed, and without a work request noticing. The GID table is read once.
 */
#include "setup.h"

enum {
	LIMIT = 100, /* of the daemon for each client */
	QKEY = 7,
};

static struct ibv_ah_attr address = {
	.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}};

static void limit(struct setup *s)
{
	struct ibv_ah *ah[LIMIT];
	for (int i = 0; i < LIMIT; i++)
		REQUIRE((ah[i] = ibv_create_ah(s->pd, &address)));
	FAILS(ENOMEM, !ibv_create_ah(s->pd, &address));
	RETURNS(0, ibv_destroy_ah(ah[0]));
	REQUIRE((ah[0] = ibv_create_ah(s->pd, &address)));
	for (int i = 0; i < LIMIT; i++)
		RETURNS(0, ibv_destroy_ah(ah[i]));
}

/* More destinations than the limit, one after the other. */
static void destinations(struct setup *s)
{
	struct ibv_ah_attr a = address;
	for (int i = 0; i < 2 * LIMIT; i++) {
		a.grh.flow_label = i;
		struct ibv_ah *ah = ibv_create_ah(s->pd, &a);
		REQUIRE(ah);
		RETURNS(0, ibv_destroy_ah(ah));
	}
	struct ibv_ah *ah[LIMIT];
	for (int i = 0; i < LIMIT; i++) {
		a.grh.flow_label = 1000 + i;
		REQUIRE((ah[i] = ibv_create_ah(s->pd, &a)));
	}
	for (int i = 0; i < LIMIT; i++)
		RETURNS(0, ibv_destroy_ah(ah[i]));
}

static struct ibv_qp *datagram_qp(struct setup *s)
{
	struct ibv_qp_init_attr init = rc_attr(s);
	init.qp_type = IBV_QPT_UD;
	struct ibv_qp *qp = ibv_create_qp(s->pd, &init);
	REQUIRE(qp);
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
	REQUIRE(!ibv_modify_qp(qp, &a,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	a.qp_state = IBV_QPS_RTR;
	REQUIRE(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
	a.qp_state = IBV_QPS_RTS;
	REQUIRE(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
	return qp;
}

/* An address handle is destroyed right after the work request that names it is posted. */
static void post_and_destroy(struct setup *s)
{
	struct ibv_qp *qp = datagram_qp(s);
	struct ibv_sge sge = {(uintptr_t)s->buf, 100, s->mr->lkey};
	struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad_recv;
	for (int i = 0; i < 100; i++) {
		struct ibv_ah_attr a = address;
		a.grh.flow_label = i % 50;
		struct ibv_ah *ah = ibv_create_ah(s->pd, &a);
		REQUIRE(ah && !ibv_post_recv(qp, &recv, &bad_recv));
		struct ibv_send_wr send = {
			.opcode = IBV_WR_SEND,
			.wr.ud = {.ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = QKEY}};
		struct ibv_send_wr *bad;
		REQUIRE(!ibv_post_send(qp, &send, &bad));
		RETURNS(0, ibv_destroy_ah(ah));
		for (int done = 0; done < 2;) {
			struct ibv_wc wc;
			int n = ibv_poll_cq(s->cq, 1, &wc);
			REQUIRE(n >= 0);
			CHECK(!n || wc.status == IBV_WC_SUCCESS);
			done += n;
		}
	}
	RETURNS(0, ibv_destroy_qp(qp));
}

/* Each of three addresses has a GID of RoCE v2, and 32 indices behind it one of RoCE v1. */
static void gids(struct setup *s)
{
	struct ibv_port_attr port;
	struct ibv_gid_entry entries[8];
	union ibv_gid gid, none = {0};
	REQUIRE(!ibv_query_port(s->context, 1, &port));
	CHECK(port.gid_tbl_len == 256);
	ssize_t n = ibv_query_gid_table(s->context, entries, 8, 0);
	CHECK(n == 6 && entries[3].gid_index == 32);
	for (int i = 0; i < port.gid_tbl_len; i++) {
		bool used = i % 32 < 3 && i < 64;
		REQUIRE(!ibv_query_gid(s->context, 1, i, &gid));
		CHECK(!memcmp(&gid, used ? &entries[i % 32].gid : &none, sizeof gid));
	}
	FAILS(EINVAL, ibv_query_gid(s->context, 1, port.gid_tbl_len, &gid) == -1);
}

int main(void)
{
	struct setup s;
	setup_open(&s);
	gids(&s);
	REQUIRE(!ibv_query_gid(s.context, 1, 1, &address.grh.dgid));
	limit(&s);
	destinations(&s);
	post_and_destroy(&s);
	struct ibv_ah *ah = ibv_create_ah(s.pd, &address);
	REQUIRE(ah);
	RETURNS(EBUSY, ibv_dealloc_pd(s.pd));
	RETURNS(0, ibv_destroy_ah(ah));
	setup_close(&s);
	return failures != 0;
}
