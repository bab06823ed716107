// SPDX-License-Identifier: Apache-2.0
/*
 * Objects whose handles do not exist, as those of objects that were destroyed, and objects that are
 * in use.
 */
#include "setup.h"

/* Makes a call for an object whose handle is none of its context. */
#define WITHOUT_HANDLE(object, call)                                                               \
	do {                                                                                       \
		uint32_t handle_ = (object)->handle;                                               \
		(object)->handle = 12345;                                                          \
		call;                                                                              \
		(object)->handle = handle_;                                                        \
	} while (0)

static void queue_pairs(struct setup *s)
{
	struct ibv_qp *qp = create_qp(s);
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	struct ibv_qp_init_attr init;
	union ibv_gid group = {.raw = {0xff, 0x0e, [15] = 1}};
	WITHOUT_HANDLE(qp, RETURNS(ENOENT, ibv_modify_qp(qp, &a, IBV_QP_STATE)));
	WITHOUT_HANDLE(qp, RETURNS(ENOENT, ibv_query_qp(qp, &a, 0, &init)));
	WITHOUT_HANDLE(qp, RETURNS(ENOENT, ibv_attach_mcast(qp, &group, 0)));
	WITHOUT_HANDLE(qp, RETURNS(ENOENT, ibv_detach_mcast(qp, &group, 0)));
	WITHOUT_HANDLE(qp, RETURNS(ENOENT, ibv_destroy_qp(qp)));
	RETURNS(0, ibv_destroy_qp(qp));
	init = rc_attr(s);
	WITHOUT_HANDLE(s->cq, FAILS(ENOENT, !ibv_create_qp(s->pd, &init)));
	WITHOUT_HANDLE(s->pd, FAILS(ENOENT, !ibv_create_qp(s->pd, &init)));
}

static void completion_queues(struct setup *s)
{
	WITHOUT_HANDLE(s->cq, RETURNS(ENOENT, ibv_resize_cq(s->cq, 10)));
	WITHOUT_HANDLE(s->cq, RETURNS(ENOENT, ibv_destroy_cq(s->cq)));
}

static void shared_receive_queues(struct setup *s)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 10, .max_sge = 1}};
	struct ibv_srq_attr attr = {.srq_limit = 1};
	struct ibv_srq *srq = ibv_create_srq(s->pd, &init);
	REQUIRE(srq);
	WITHOUT_HANDLE(srq, RETURNS(ENOENT, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT)));
	WITHOUT_HANDLE(srq, RETURNS(ENOENT, ibv_query_srq(srq, &attr)));
	WITHOUT_HANDLE(srq, RETURNS(ENOENT, ibv_destroy_srq(srq)));
	struct ibv_qp_init_attr qp = rc_attr(s);
	qp.srq = srq;
	WITHOUT_HANDLE(srq, FAILS(ENOENT, !ibv_create_qp(s->pd, &qp)));
	RETURNS(0, ibv_destroy_srq(srq));
	WITHOUT_HANDLE(s->pd, FAILS(ENOENT, !ibv_create_srq(s->pd, &init)));
}

static void memory(struct setup *s)
{
	char word[8] = "";
	struct ibv_alloc_dm_attr attr = {.length = 64};
	struct ibv_dm *dm = ibv_alloc_dm(s->context, &attr);
	struct ibv_mw *mw = ibv_alloc_mw(s->pd, IBV_MW_TYPE_1);
	REQUIRE(dm && mw);
	WITHOUT_HANDLE(dm, RETURNS(ENOENT, ibv_memcpy_to_dm(dm, 0, word, 8)));
	WITHOUT_HANDLE(dm, RETURNS(ENOENT, ibv_memcpy_from_dm(word, dm, 0, 8)));
	WITHOUT_HANDLE(dm, FAILS(ENOENT, !ibv_reg_dm_mr(s->pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED)));
	WITHOUT_HANDLE(dm, RETURNS(ENOENT, ibv_free_dm(dm)));
	WITHOUT_HANDLE(mw, RETURNS(ENOENT, ibv_dealloc_mw(mw)));
	WITHOUT_HANDLE(s->mr, RETURNS(ENOENT, ibv_dereg_mr(s->mr)));
	WITHOUT_HANDLE(s->pd, FAILS(ENOENT, !ibv_reg_mr(s->pd, s->buf, sizeof s->buf, 0)));
	WITHOUT_HANDLE(s->pd, FAILS(ENOENT, !ibv_alloc_mw(s->pd, IBV_MW_TYPE_1)));
	WITHOUT_HANDLE(s->pd, RETURNS(ENOENT, ibv_dealloc_pd(s->pd)));
	RETURNS(0, ibv_dealloc_mw(mw));
	RETURNS(0, ibv_free_dm(dm));
}

static void address_handles(struct setup *s)
{
	struct ibv_ah_attr a = {.is_global = 1, .port_num = 1, .grh.sgid_index = 1};
	REQUIRE(!ibv_query_gid(s->context, 1, 1, &a.grh.dgid));
	struct ibv_ah *ah = ibv_create_ah(s->pd, &a);
	REQUIRE(ah);
	WITHOUT_HANDLE(ah, RETURNS(ENOENT, ibv_destroy_ah(ah)));
	RETURNS(0, ibv_destroy_ah(ah));
	WITHOUT_HANDLE(s->pd, FAILS(ENOENT, !ibv_create_ah(s->pd, &a)));
}

/* Handles are numbers of a context: that of another context's object need not exist. */
static void other_contexts(struct setup *s)
{
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 10, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(s->pd, &srq_init);
	struct ibv_context *other = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(other);
	struct ibv_cq *cq = ibv_create_cq(other, 4, NULL, NULL, 0);
	REQUIRE(srq && pd && cq);
	REQUIRE(srq->handle > cq->handle && s->mr->handle > cq->handle);

	struct ibv_qp_init_attr init = rc_attr(s);
	init.send_cq = init.recv_cq = cq;
	init.srq = srq;
	FAILS(ENOENT, !ibv_create_qp(pd, &init));
	s->mr->context = other;
	RETURNS(ENOENT, ibv_dereg_mr(s->mr));
	s->mr->context = s->context;

	RETURNS(0, ibv_destroy_cq(cq));
	RETURNS(0, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_close_device(other));
	RETURNS(0, ibv_destroy_srq(srq));
}

static void objects_in_use(struct setup *s)
{
	struct ibv_xrcd_init_attr open = {.comp_mask =
						  IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					  .fd = -1,
					  .oflags = 0100 /* O_CREAT */};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(s->context, &open);
	REQUIRE(xrcd);
	struct ibv_srq_init_attr_ex init = {
		.attr = {.max_wr = 1, .max_sge = 1},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = s->pd,
		.xrcd = xrcd,
		.cq = s->cq,
	};
	struct ibv_srq *srq = ibv_create_srq_ex(s->context, &init);
	REQUIRE(srq);
	RETURNS(EBUSY, ibv_close_xrcd(xrcd));
	RETURNS(0, ibv_destroy_srq(srq));
	RETURNS(0, ibv_close_xrcd(xrcd));

	struct ibv_td_init_attr none = {0};
	struct ibv_td *td = ibv_alloc_td(s->context, &none);
	struct ibv_parent_domain_init_attr parent = {.pd = s->pd, .td = td};
	struct ibv_pd *domain = ibv_alloc_parent_domain(s->context, &parent);
	REQUIRE(td && domain);
	RETURNS(EBUSY, ibv_dealloc_td(td));
	RETURNS(EBUSY, ibv_dealloc_pd(s->pd));
	RETURNS(0, ibv_dealloc_pd(domain));
	RETURNS(0, ibv_dealloc_td(td));
}

/* The queue is not in use between a poll that finds nothing and the next one. */
static void extended_polls(struct setup *s)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = 8};
	struct ibv_poll_cq_attr poll = {.comp_mask = 1};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(s->context, &attr);
	REQUIRE(cq);
	RETURNS(EINVAL, ibv_start_poll(cq, &poll));
	poll.comp_mask = 0;
	RETURNS(ENOENT, ibv_start_poll(cq, &poll));

	struct ibv_qp_init_attr init = rc_attr(s);
	init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
	struct ibv_qp *qp = ibv_create_qp(s->pd, &init);
	REQUIRE(qp);
	connect_qp(s, qp, qp->qp_num);
	struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_RDMA_WRITE};
	RETURNS(0, ibv_post_send(qp, &wr, &bad));
	while (ibv_start_poll(cq, &poll))
		;
	RETURNS(ENOENT, ibv_next_poll(cq));
	ibv_end_poll(cq);
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

int main(void)
{
	static struct setup s;
	setup_open(&s);
	queue_pairs(&s);
	completion_queues(&s);
	shared_receive_queues(&s);
	memory(&s);
	address_handles(&s);
	other_contexts(&s);
	objects_in_use(&s);
	extended_polls(&s);
	setup_close(&s);
	return failures != 0;
}
