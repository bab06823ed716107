// SPDX-License-Identifier: Apache-2.0
/* FLUSH by ibv_wr_flush, which the headers of rdma-core before release 46 do not declare. */
#include "setup.h"

#include <stddef.h>
#include <stdint.h>

enum {
	OPERATIONS = 1 << 11 | IBV_QP_EX_WITH_RDMA_WRITE, /* the first is IBV_QP_EX_WITH_FLUSH */
	FLUSH_GLOBAL = 1,
	FLUSH_PERSISTENT = 2,
	FLUSH_RANGE = 0,
	FLUSH_MR = 1,
	ACCESS_FLUSH_GLOBAL = 1 << 8,
	WC_FLUSH = 8
};

typedef void (*wr_flush)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, size_t length,
			 uint8_t type, uint8_t level);

static wr_flush flush_function(struct ibv_qp_ex *ex)
{
	wr_flush post;
	memcpy(&post, (char *)&ex->wr_atomic_write + sizeof ex->wr_atomic_write, sizeof post);
	return post;
}

static void connect_flushing(struct setup *s, struct ibv_qp *qp, struct ibv_qp *peer)
{
	connect_qp(s, qp, peer->qp_num);
	struct ibv_qp_attr attr = {.qp_access_flags = ALL_ACCESS | ACCESS_FLUSH_GLOBAL};
	REQUIRE(!ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS));
}

/* Returns the status of the completion of a FLUSH that follows a WRITE. */
static enum ibv_wc_status flush(struct setup *s, struct ibv_qp *qp, struct ibv_mr *mr, uint8_t type,
				uint8_t level)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	wr_flush post = flush_function(ex);
	ibv_wr_start(ex);
	ex->wr_id = 1;
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)s->buf);
	ibv_wr_set_sge(ex, s->mr->lkey, (uintptr_t)s->buf + 8, 8);
	ex->wr_id = 2;
	post(ex, mr->rkey, (uintptr_t)s->buf, 8, type, level);
	RETURNS(0, ibv_wr_complete(ex));
	struct ibv_wc wc = {0};
	for (uint64_t id = 1; id <= 2; id++) {
		int n;
		while (!(n = ibv_poll_cq(s->cq, 1, &wc)))
			;
		REQUIRE(n == 1 && wc.wr_id == id);
		CHECK(wc.status != IBV_WC_SUCCESS ||
		      wc.opcode == (id == 1 ? IBV_WC_RDMA_WRITE : (enum ibv_wc_opcode)WC_FLUSH));
	}
	return wc.status;
}

int main(void)
{
	struct setup s;
	limit_time(30);
	setup_open(&s);
	struct ibv_mr *mr = ibv_reg_mr(s.pd, s.buf, sizeof s.buf, ALL_ACCESS | ACCESS_FLUSH_GLOBAL);
	REQUIRE(mr);
	struct ibv_qp *qp = create_qp_ex(&s, OPERATIONS);
	struct ibv_qp *peer = create_qp_ex(&s, OPERATIONS);
	connect_flushing(&s, qp, peer);
	connect_flushing(&s, peer, qp);
	CHECK(flush(&s, qp, mr, FLUSH_GLOBAL, FLUSH_RANGE) == IBV_WC_SUCCESS);
	CHECK(flush(&s, qp, mr, FLUSH_GLOBAL, FLUSH_MR) == IBV_WC_SUCCESS);

	/* A length that does not fit into the header. */
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	wr_flush post = flush_function(ex);
	ibv_wr_start(ex);
	post(ex, mr->rkey, (uintptr_t)s.buf, (size_t)1 << 32, FLUSH_GLOBAL, FLUSH_RANGE);
	RETURNS(EINVAL, ibv_wr_complete(ex));

	/* The peer does not permit it. */
	CHECK(flush(&s, qp, mr, FLUSH_PERSISTENT, FLUSH_RANGE) == IBV_WC_REM_INV_REQ_ERR);

	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_qp(peer));
	RETURNS(0, ibv_dereg_mr(mr));
	setup_close(&s);
	return failures != 0;
}
