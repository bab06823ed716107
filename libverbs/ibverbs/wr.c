// SPDX-License-Identifier: Apache-2.0
/*
 * Work requests built by calls: ibv_wr_start, an operation, its setters, …, ibv_wr_complete. The
 * send queue is locked from start to complete or abort; its slots are filled in place.
 */
#include "ibverbs/qp.h"

#include <stdlib.h>
#include <string.h>

static struct sr_qp *to_sr_qp(struct ibv_qp_ex *ex)
{
	return (struct sr_qp *)ex;
}

/* The first error counts: wr_complete returns it and posts nothing. */
static void fail(struct sr_qp *q, int error)
{
	if (!q->wr_error)
		q->wr_error = error;
	q->wqe = NULL;
}

static void wr_start(struct ibv_qp_ex *ex)
{
	struct sr_qp *q = to_sr_qp(ex);
	sr_lock(&q->sq.lock, q->sq.single_threaded);
	q->wqe = NULL;
	q->bind_count = 0;
	q->wr_first = q->sq.producer;
	q->wr_error = sr_check_post(q, IBV_QPS_RTS);
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	struct sr_qp *q = to_sr_qp(ex);
	int error = q->wr_error;
	if (error) {
		q->sq.producer = q->wr_first;
	} else if (q->sq.producer != q->wr_first) {
		for (size_t i = 0; i < q->bind_count; i++)
			q->binds[i].mw->rkey = q->binds[i].rkey;
		sr_wq_publish(&q->sq);
		sr_ring_doorbell(q);
	}
	sr_unlock(&q->sq.lock, q->sq.single_threaded);
	sr_return_processor(sr_ctx(ex->qp_base.context));
	return sr_error(error);
}

static void wr_abort(struct ibv_qp_ex *ex)
{
	struct sr_qp *q = to_sr_qp(ex);
	q->sq.producer = q->wr_first;
	sr_unlock(&q->sq.lock, q->sq.single_threaded);
}

/* Starts the next work request; NULL after an error. */
static struct softroce_send_wqe *next_wqe(struct ibv_qp_ex *ex, uint32_t opcode)
{
	struct sr_qp *q = to_sr_qp(ex);
	struct sr_wq *w = &q->sq;
	if (!q->wr_error && sr_wq_used(w) >= w->max_wr)
		fail(q, ENOMEM);
	if (q->wr_error)
		return NULL;
	q->wqe = sr_wq_slot(w, w->producer++);
	*q->wqe = (struct softroce_send_wqe){
		.wr_id = ex->wr_id,
		.opcode = opcode,
		.flags = ex->wr_flags & SR_SEND_FLAGS & ~SOFTROCE_SEND_INLINE,
	};
	return q->wqe;
}

static struct softroce_send_wqe *next_remote_wqe(struct ibv_qp_ex *ex, uint32_t opcode,
						 uint32_t rkey, uint64_t addr)
{
	struct softroce_send_wqe *wqe = next_wqe(ex, opcode);
	if (wqe) {
		wqe->remote_addr = addr;
		wqe->rkey = rkey;
	}
	return wqe;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t compare,
			      uint64_t swap)
{
	struct softroce_send_wqe *wqe = next_remote_wqe(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr);
	if (!wqe)
		return;
	wqe->compare_add = compare;
	wqe->swap = swap;
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t add)
{
	struct softroce_send_wqe *wqe =
		next_remote_wqe(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr);
	if (wqe)
		wqe->compare_add = add;
}

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey,
		       const struct ibv_mw_bind_info *info)
{
	struct sr_qp *q = to_sr_qp(ex);
	struct sr_bind bind = {.mw = mw, .rkey = rkey};
	struct softroce_send_wqe *wqe = next_wqe(ex, IBV_WR_BIND_MW);
	if (!wqe)
		return;
	if (!sr_put_bind(wqe, &bind, info)) {
		fail(q, EINVAL);
		return;
	}
	struct sr_bind *all = realloc(q->binds, (q->bind_count + 1) * sizeof *all);
	if (!all) {
		fail(q, ENOMEM);
		return;
	}
	q->binds = all;
	q->binds[q->bind_count++] = bind;
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	struct softroce_send_wqe *wqe = next_wqe(ex, IBV_WR_LOCAL_INV);
	if (wqe)
		wqe->imm = rkey;
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	next_remote_wqe(ex, IBV_WR_RDMA_READ, rkey, addr);
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	next_remote_wqe(ex, IBV_WR_RDMA_WRITE, rkey, addr);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct softroce_send_wqe *wqe = next_remote_wqe(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr);
	if (wqe)
		wqe->imm = imm;
}

static void wr_send(struct ibv_qp_ex *ex)
{
	next_wqe(ex, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
	struct softroce_send_wqe *wqe = next_wqe(ex, IBV_WR_SEND_WITH_IMM);
	if (wqe)
		wqe->imm = imm;
}

static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	struct softroce_send_wqe *wqe = next_wqe(ex, IBV_WR_SEND_WITH_INV);
	if (wqe)
		wqe->imm = rkey;
}

static void wr_send_tso(struct ibv_qp_ex *ex, void *hdr, uint16_t hdr_sz, uint16_t mss)
{
	(void)hdr, (void)hdr_sz, (void)mss;
	fail(to_sr_qp(ex), EOPNOTSUPP);
}

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct sr_qp *q = to_sr_qp(ex);
	if (!q->wqe)
		return;
	if (!ah) {
		fail(q, EINVAL);
		return;
	}
	q->wqe->ah_or_srq = ah->handle;
	q->wqe->remote_qp_num = qpn;
	q->wqe->remote_qkey = qkey;
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *ex, uint32_t srqn)
{
	struct softroce_send_wqe *wqe = to_sr_qp(ex)->wqe;
	if (wqe)
		wqe->ah_or_srq = srqn;
}

static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
	struct sr_qp *q = to_sr_qp(ex);
	size_t len = 0;
	if (!q->wqe)
		return;
	uint8_t *data = (uint8_t *)(q->wqe + 1);
	for (size_t i = 0; i < n; i++) {
		if (list[i].length > q->cap.max_inline_data - len) {
			fail(q, ENOMEM);
			return;
		}
		if (list[i].length)
			memcpy(data + len, list[i].addr, list[i].length);
		len += list[i].length;
	}
	q->wqe->flags |= SOFTROCE_SEND_INLINE;
	q->wqe->num_sge = (uint32_t)len;
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	struct ibv_data_buf one = {.addr = addr, .length = length};
	wr_set_inline_data_list(ex, 1, &one);
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
	struct sr_qp *q = to_sr_qp(ex);
	if (!q->wqe)
		return;
	if (n > q->cap.max_send_sge) {
		fail(q, ENOMEM);
		return;
	}
	q->wqe->num_sge = (uint32_t)n;
	sr_put_sges(q->wqe + 1, list, (uint32_t)n);
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge one = {.addr = addr, .length = length, .lkey = lkey};
	wr_set_sge_list(ex, 1, &one);
}

#define ATOMIC_WRITE_SIZE 8

static void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, const void *value)
{
	struct sr_qp *q = to_sr_qp(ex);
	next_remote_wqe(ex, IBV_WR_ATOMIC_WRITE, rkey, addr);
	if (q->wqe && q->cap.max_inline_data < ATOMIC_WRITE_SIZE)
		fail(q, EINVAL);
	wr_set_inline_data(ex, (void *)value, ATOMIC_WRITE_SIZE);
}

static void wr_flush(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, size_t length,
		     uint8_t type, uint8_t level)
{
	struct sr_qp *q = to_sr_qp(ex);
	struct softroce_flush_wqe *wqe =
		(struct softroce_flush_wqe *)next_remote_wqe(ex, SR_WR_FLUSH, rkey, addr);
	if (!wqe)
		return;
	if (length > UINT32_MAX) {
		fail(q, EINVAL);
		return;
	}
	wqe->length = (uint32_t)length;
	wqe->placement = type;
	wqe->selectivity = level;
}

void sr_set_wr_ops(struct sr_qp *q)
{
	struct ibv_qp_ex *ex = &q->ex;
	ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
	ex->wr_bind_mw = wr_bind_mw;
	ex->wr_local_inv = wr_local_inv;
	ex->wr_rdma_read = wr_rdma_read;
	ex->wr_rdma_write = wr_rdma_write;
	ex->wr_rdma_write_imm = wr_rdma_write_imm;
	ex->wr_send = wr_send;
	ex->wr_send_imm = wr_send_imm;
	ex->wr_send_inv = wr_send_inv;
	ex->wr_send_tso = wr_send_tso;
	ex->wr_set_ud_addr = wr_set_ud_addr;
	ex->wr_set_xrc_srqn = wr_set_xrc_srqn;
	ex->wr_set_inline_data = wr_set_inline_data;
	ex->wr_set_inline_data_list = wr_set_inline_data_list;
	ex->wr_set_sge = wr_set_sge;
	ex->wr_set_sge_list = wr_set_sge_list;
	ex->wr_start = wr_start;
	ex->wr_complete = wr_complete;
	ex->wr_abort = wr_abort;
	ex->wr_atomic_write = wr_atomic_write;
	q->wr_flush = wr_flush;
}
