// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon refuses each request when it is made for the first time. A call that failed has
 * changed nothing: the objects can be used as before, and the same call succeeds afterwards.
 */
#include "setup.h"

#include <fcntl.h>

#define REFUSED EOPNOTSUPP

/* Calls that return an errno. */
#define TWICE(call)                                                                                \
	do {                                                                                       \
		RETURNS(REFUSED, call);                                                            \
		RETURNS(0, call);                                                                  \
	} while (0)

/* Calls that return an object. */
#define CREATE(object, call)                                                                       \
	do {                                                                                       \
		FAILS(REFUSED, !(call));                                                           \
		REQUIRE((object) = (call));                                                        \
	} while (0)

static struct setup s;
static struct ibv_srq *srq;
static struct ibv_qp *qp;

static void create_objects(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	REQUIRE(list && list[0]);
	CREATE(s.context, ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CREATE(s.pd, ibv_alloc_pd(s.context));
	CREATE(s.channel, ibv_create_comp_channel(s.context));
	CREATE(s.cq, ibv_create_cq(s.context, 16, NULL, s.channel, 0));
	CREATE(s.mr, ibv_reg_mr(s.pd, s.buf, sizeof s.buf, ALL_ACCESS));

	struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 10, .max_sge = 1}};
	FAILS(REFUSED, !ibv_create_srq(s.pd, &srq_attr));
	CHECK(srq_attr.attr.max_wr == 10);
	REQUIRE((srq = ibv_create_srq(s.pd, &srq_attr)));

	struct ibv_qp_init_attr attr = rc_attr(&s), before;
	attr.srq = srq;
	before = attr;
	FAILS(REFUSED, !ibv_create_qp(s.pd, &attr));
	CHECK(!memcmp(&attr, &before, sizeof attr));
	REQUIRE((qp = ibv_create_qp(s.pd, &attr)));
}

static void modify(struct ibv_qp_attr *a, int mask)
{
	enum ibv_qp_state before = qp->state;
	RETURNS(REFUSED, ibv_modify_qp(qp, a, mask));
	CHECK(qp->state == before);
	RETURNS(0, ibv_modify_qp(qp, a, mask));
	CHECK(qp->state == a->qp_state);
}

static void connect_to_itself(void)
{
	struct ibv_qp_attr a = connected_attr(qp->qp_num);
	FAILS(REFUSED, ibv_query_gid(s.context, 1, 1, &a.ah_attr.grh.dgid) == -1);
	REQUIRE(!ibv_query_gid(s.context, 1, 1, &a.ah_attr.grh.dgid));
	modify(&a, INIT_MASK);
	a.qp_state = IBV_QPS_RTR;
	modify(&a, RTR_MASK);
	a.qp_state = IBV_QPS_RTS;
	modify(&a, RTS_MASK);
}

/* Sends a message, and waits for its event. Its two completions are in the queue. */
static void send_one(void)
{
	struct ibv_sge sge = {(uintptr_t)s.buf, 8, s.mr->lkey};
	struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad_recv;
	struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	struct ibv_cq *cq;
	void *context;
	REQUIRE(!ibv_req_notify_cq(s.cq, 0));
	REQUIRE(!ibv_post_srq_recv(srq, &recv, &bad_recv));
	REQUIRE(!ibv_post_send(qp, &send, &bad));
	REQUIRE(!ibv_get_cq_event(s.channel, &cq, &context) && cq == s.cq);
	ibv_ack_cq_events(cq, 1);
}

static void poll_two(void)
{
	struct ibv_wc wc;
	for (int done = 0; done < 2;) {
		int n = ibv_poll_cq(s.cq, 1, &wc);
		REQUIRE(n >= 0);
		CHECK(!n || wc.status == IBV_WC_SUCCESS);
		done += n;
	}
}

static void change_objects(void)
{
	int cqe = s.cq->cqe;
	send_one();
	RETURNS(REFUSED, ibv_resize_cq(s.cq, 100));
	CHECK(s.cq->cqe == cqe);
	RETURNS(0, ibv_resize_cq(s.cq, 100));
	poll_two();

	struct ibv_srq_attr larger = {.max_wr = 50};
	TWICE(ibv_modify_srq(srq, &larger, IBV_SRQ_MAX_WR));
	send_one();
	poll_two();

	void *addr = s.mr->addr;
	FAILS(REFUSED, ibv_rereg_mr(s.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, s.buf + 8, 16, 0));
	CHECK(s.mr->addr == addr && s.mr->length == sizeof s.buf);
	send_one();
	poll_two();
}

static void other_objects(void)
{
	struct ibv_ah_attr to = {
		.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}};
	struct ibv_alloc_dm_attr dm_attr = {.length = 64};
	struct ibv_xrcd_init_attr xrcd_attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD |
							    IBV_XRCD_INIT_ATTR_OFLAGS,
					       .fd = -1,
					       .oflags = O_CREAT};
	struct ibv_ah *ah;
	struct ibv_mw *mw;
	struct ibv_dm *dm;
	struct ibv_xrcd *xrcd;
	REQUIRE(!ibv_query_gid(s.context, 1, 1, &to.grh.dgid));
	CREATE(ah, ibv_create_ah(s.pd, &to));
	RETURNS(0, ibv_destroy_ah(ah));
	CREATE(mw, ibv_alloc_mw(s.pd, IBV_MW_TYPE_1));
	TWICE(ibv_dealloc_mw(mw));
	CREATE(dm, ibv_alloc_dm(s.context, &dm_attr));
	TWICE(ibv_memcpy_to_dm(dm, 0, s.buf, 64));
	TWICE(ibv_free_dm(dm));
	CREATE(xrcd, ibv_open_xrcd(s.context, &xrcd_attr));
	TWICE(ibv_close_xrcd(xrcd));
}

static void destroy_objects(void)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	send_one();
	RETURNS(REFUSED, ibv_destroy_qp(qp));
	poll_two();
	send_one();
	RETURNS(REFUSED, ibv_modify_qp(qp, &reset, IBV_QP_STATE));
	CHECK(qp->state == IBV_QPS_RTS);
	poll_two();
	RETURNS(0, ibv_destroy_qp(qp));
	TWICE(ibv_destroy_srq(srq));
	TWICE(ibv_dereg_mr(s.mr));
	TWICE(ibv_destroy_cq(s.cq));
	TWICE(ibv_destroy_comp_channel(s.channel));
	TWICE(ibv_dealloc_pd(s.pd));
	RETURNS(0, ibv_close_device(s.context));
}

int main(void)
{
	limit_time(50);
	create_objects();
	connect_to_itself();
	change_objects();
	other_objects();
	destroy_objects();
	return failures != 0;
}
