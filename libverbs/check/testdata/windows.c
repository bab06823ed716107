// SPDX-License-Identifier: Apache-2.0
/*
 * Memory windows: which protection domains must agree, and when a window has its new R_Key. Regions
 * of length 0.
 */
#include "setup.h"

#define WINDOW_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)

static struct ibv_wc await(struct setup *s)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(s->cq, 1, &wc)))
		;
	REQUIRE(n == 1);
	return wc;
}

static struct ibv_mw_bind_info part_of(struct setup *s, struct ibv_mr *mr)
{
	return (struct ibv_mw_bind_info){.mr = mr,
					 .addr = (uintptr_t)s->buf,
					 .length = 64,
					 .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
}

static void protection_domains(struct setup *s)
{
	struct ibv_pd *other = ibv_alloc_pd(s->context);
	struct ibv_mr *mr = ibv_reg_mr(s->pd, s->buf, sizeof s->buf, WINDOW_ACCESS);
	REQUIRE(other && mr);
	struct ibv_mr *other_mr = ibv_reg_mr(other, s->buf, sizeof s->buf, WINDOW_ACCESS);
	struct ibv_mw *mw = ibv_alloc_mw(s->pd, IBV_MW_TYPE_1);
	struct ibv_mw *other_mw = ibv_alloc_mw(other, IBV_MW_TYPE_1);
	REQUIRE(other_mr && mw && other_mw);
	struct ibv_qp *qp = create_qp(s);

	struct ibv_mw_bind bind = {.wr_id = 7, .bind_info = part_of(s, other_mr)};
	uint32_t before = mw->rkey;
	CHECK(ibv_bind_mw(qp, mw, &bind) == EPERM);
	bind.bind_info.mr = mr;
	RETURNS(EINVAL, ibv_bind_mw(qp, mw, &bind)); /* the queue pair is in the Reset state */
	CHECK(mw->rkey == before);
	connect_qp(s, qp, qp->qp_num);
	RETURNS(0, ibv_bind_mw(qp, mw, &bind));
	struct ibv_wc wc = await(s);
	CHECK(wc.wr_id == 7 && wc.status == IBV_WC_SUCCESS && mw->rkey == ibv_inc_rkey(before));

	/* The queue pair is of another protection domain than the window and the region. */
	bind.bind_info.mr = other_mr;
	RETURNS(0, ibv_bind_mw(qp, other_mw, &bind));
	wc = await(s);
	CHECK(wc.wr_id == 7 && wc.status == IBV_WC_MW_BIND_ERR);

	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_dealloc_mw(mw));
	RETURNS(0, ibv_dealloc_mw(other_mw));
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_dereg_mr(other_mr));
	RETURNS(0, ibv_dealloc_pd(other));
}

/* A window has its new R_Key as soon as the bind is posted, and not before. */
static void keys(struct setup *s)
{
	struct ibv_mr *mr = ibv_reg_mr(s->pd, s->buf, sizeof s->buf, WINDOW_ACCESS);
	struct ibv_mw *mw = ibv_alloc_mw(s->pd, IBV_MW_TYPE_2);
	REQUIRE(mr && mw);
	struct ibv_qp *qp = create_qp_ex(s, IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV);
	connect_qp(s, qp, qp->qp_num);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_mw_bind_info info = part_of(s, mr), invalid = {.length = 8};
	uint32_t before = mw->rkey, key = ibv_inc_rkey(before);

	struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_BIND_MW,
				       .bind_mw = {.mw = mw, .rkey = key, .bind_info = invalid}};
	RETURNS(EINVAL, ibv_post_send(qp, &wr, &bad));
	CHECK(mw->rkey == before);
	wr.bind_mw.bind_info = info;
	RETURNS(0, ibv_post_send(qp, &wr, &bad));
	CHECK(mw->rkey == key);
	CHECK(await(s).status == IBV_WC_SUCCESS);
	wr = (struct ibv_send_wr){.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = mw->rkey};
	RETURNS(0, ibv_post_send(qp, &wr, &bad));
	CHECK(await(s).status == IBV_WC_SUCCESS);

	before = mw->rkey;
	key = ibv_inc_rkey(before);
	ibv_wr_start(ex);
	ibv_wr_bind_mw(ex, mw, key, &info);
	CHECK(mw->rkey == before);
	ibv_wr_abort(ex);
	CHECK(mw->rkey == before);
	ibv_wr_start(ex);
	ibv_wr_bind_mw(ex, mw, key, &info);
	ibv_wr_bind_mw(ex, mw, key, &invalid);
	RETURNS(EINVAL, ibv_wr_complete(ex));
	CHECK(mw->rkey == before);
	ibv_wr_start(ex);
	ibv_wr_bind_mw(ex, mw, key, &info);
	ibv_wr_local_inv(ex, key);
	ibv_wr_bind_mw(ex, mw, ibv_inc_rkey(key), &info);
	RETURNS(0, ibv_wr_complete(ex));
	CHECK(mw->rkey == ibv_inc_rkey(key));
	for (int i = 0; i < 3; i++)
		CHECK(await(s).status == IBV_WC_SUCCESS);

	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_dealloc_mw(mw));
	RETURNS(0, ibv_dereg_mr(mr));
}

static void empty_regions(struct setup *s)
{
	struct ibv_qp *qp = loopback_qp(s);
	void *places[] = {s->buf, NULL};
	for (int i = 0; i < 2; i++) {
		struct ibv_mr *mr = ibv_reg_mr(s->pd, places[i], 0, ALL_ACCESS);
		REQUIRE(mr);
		CHECK(mr->length == 0 && mr->lkey);
		struct ibv_sge sge = {(uintptr_t)places[i], 0, mr->lkey};
		struct ibv_recv_wr *bad_recv, recv = {.sg_list = &sge, .num_sge = 1};
		RETURNS(0, ibv_post_recv(qp, &recv, &bad_recv));
		enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND};
		for (int k = 0; k < 3; k++) {
			struct ibv_send_wr *bad,
				wr = {
					.sg_list = &sge,
					.num_sge = 1,
					.opcode = ops[k],
					.wr.rdma = {(uintptr_t)places[i], mr->rkey},
				};
			RETURNS(0, ibv_post_send(qp, &wr, &bad));
			CHECK(await(s).status == IBV_WC_SUCCESS);
		}
		CHECK(await(s).status == IBV_WC_SUCCESS); /* the receive, or the SEND before it */
		RETURNS(0, ibv_dereg_mr(mr));
	}
	RETURNS(0, ibv_destroy_qp(qp));
}

int main(void)
{
	static struct setup s;
	setup_open(&s);
	protection_domains(&s);
	keys(&s);
	empty_regions(&s);
	setup_close(&s);
	return failures != 0;
}
