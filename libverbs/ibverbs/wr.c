// SPDX-License-Identifier: Apache-2.0
/*
 * Work requests that are built by calls: wr_start, an operation, what it needs, …, wr_complete.
 * From start to complete the send queue is locked; its slots are filled in place.
 */
#include "ibverbs/qp.h"
#include "ibverbs/mr.h"

#include <string.h>

static struct sr_qp *to_sr_qp(struct ibv_qp_ex *ex)
{
	return (struct sr_qp *)ex;
}

static void put32(uint8_t *s, size_t offset, uint32_t v)
{
	memcpy(s + offset, &v, sizeof v);
}

static void put64(uint8_t *s, size_t offset, uint64_t v)
{
	memcpy(s + offset, &v, sizeof v);
}

/* The first error counts: wr_complete returns it and posts nothing. */
static void fail(struct sr_qp *q, int error)
{
	if (!q->wr_error)
		q->wr_error = error;
	q->wr_slot = NULL;
}

static void start(struct ibv_qp_ex *ex)
{
	struct sr_qp *q = to_sr_qp(ex);
	sr_lock(&q->sq.lock, q->sq.single_threaded);
	q->wr_slot = NULL;
	q->wr_first = q->sq.producer;
	q->wr_error = sr_check_post(q, IBV_QPS_RTS);
}

static int complete(struct ibv_qp_ex *ex)
{
	struct sr_qp *q = to_sr_qp(ex);
	int error = q->wr_error;
	if (error) {
		q->sq.producer = q->wr_first;
	} else if (q->sq.producer != q->wr_first) {
		sr_wq_publish(&q->sq);
		sr_ring_doorbell(q);
	}
	sr_unlock(&q->sq.lock, q->sq.single_threaded);
	return error;
}

static void abort_wr(struct ibv_qp_ex *ex)
{
	struct sr_qp *q = to_sr_qp(ex);
	q->sq.producer = q->wr_first;
	sr_unlock(&q->sq.lock, q->sq.single_threaded);
}

/* Begins the next_wr work request; NULL where there was an error. */
static uint8_t *next_wr(struct ibv_qp_ex *ex, uint32_t opcode)
{
	struct sr_qp *q = to_sr_qp(ex);
	struct sr_wq *w = &q->sq;
	if (!q->wr_error && sr_wq_used(w) >= w->max_wr)
		fail(q, ENOMEM);
	if (q->wr_error)
		return NULL;
	q->wr_slot = sr_wq_slot(w, w->producer++);
	memset(q->wr_slot, 0, SOFTROCE_SEND_SGES);
	put64(q->wr_slot, SOFTROCE_SEND_WR_ID, ex->wr_id);
	put32(q->wr_slot, SOFTROCE_SEND_OPCODE, opcode);
	put32(q->wr_slot, SOFTROCE_SEND_FLAGS,
	      ex->wr_flags & SR_SEND_FLAGS & ~SOFTROCE_SEND_INLINE);
	return q->wr_slot;
}

static void next_remote_wr(struct ibv_qp_ex *ex, uint32_t opcode, uint32_t rkey, uint64_t addr)
{
	uint8_t *s = next_wr(ex, opcode);
	if (!s)
		return;
	put64(s, SOFTROCE_SEND_REMOTE_ADDR, addr);
	put32(s, SOFTROCE_SEND_RKEY, rkey);
}

static void atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t compare,
			   uint64_t swap)
{
	next_remote_wr(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr);
	uint8_t *s = to_sr_qp(ex)->wr_slot;
	if (!s)
		return;
	put64(s, SOFTROCE_SEND_COMPARE_ADD, compare);
	put64(s, SOFTROCE_SEND_SWAP, swap);
}

static void atomic_fetch_add_wr(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t add)
{
	next_remote_wr(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr);
	if (to_sr_qp(ex)->wr_slot)
		put64(to_sr_qp(ex)->wr_slot, SOFTROCE_SEND_COMPARE_ADD, add);
}

static void bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey,
		    const struct ibv_mw_bind_info *b)
{
	uint8_t *s = next_wr(ex, IBV_WR_BIND_MW);
	if (!s)
		return;
	if (!mw || (!b->mr && b->length)) {
		fail(to_sr_qp(ex), EINVAL);
		return;
	}
	put32(s, SOFTROCE_SEND_RKEY, (mw->rkey & ~0xffu) | (rkey & 0xff));
	put64(s, SOFTROCE_SEND_BIND_ADDR, b->addr);
	put64(s, SOFTROCE_SEND_BIND_LENGTH, b->length);
	put32(s, SOFTROCE_SEND_BIND_LKEY, b->mr ? b->mr->lkey : 0);
	put32(s, SOFTROCE_SEND_BIND_ACCESS, b->mw_access_flags & SR_MW_ACCESS);
}

static void local_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	uint8_t *s = next_wr(ex, IBV_WR_LOCAL_INV);
	if (s)
		put32(s, SOFTROCE_SEND_IMM, rkey);
}

static void rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	next_remote_wr(ex, IBV_WR_RDMA_READ, rkey, addr);
}

static void rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	next_remote_wr(ex, IBV_WR_RDMA_WRITE, rkey, addr);
}

static void rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm)
{
	next_remote_wr(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr);
	if (to_sr_qp(ex)->wr_slot)
		put32(to_sr_qp(ex)->wr_slot, SOFTROCE_SEND_IMM, imm);
}

static void send_wr(struct ibv_qp_ex *ex)
{
	next_wr(ex, IBV_WR_SEND);
}

static void send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
	uint8_t *s = next_wr(ex, IBV_WR_SEND_WITH_IMM);
	if (s)
		put32(s, SOFTROCE_SEND_IMM, imm);
}

static void send_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	uint8_t *s = next_wr(ex, IBV_WR_SEND_WITH_INV);
	if (s)
		put32(s, SOFTROCE_SEND_IMM, rkey);
}

static void send_tso(struct ibv_qp_ex *ex, void *hdr, uint16_t hdr_sz, uint16_t mss)
{
	(void)hdr, (void)hdr_sz, (void)mss;
	fail(to_sr_qp(ex), EOPNOTSUPP);
}

static void set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct sr_qp *q = to_sr_qp(ex);
	if (!q->wr_slot)
		return;
	if (!ah) {
		fail(q, EINVAL);
		return;
	}
	put32(q->wr_slot, SOFTROCE_SEND_AH, ah->handle);
	put32(q->wr_slot, SOFTROCE_SEND_REMOTE_QP_NUM, qpn);
	put32(q->wr_slot, SOFTROCE_SEND_REMOTE_QKEY, qkey);
}

static void set_xrc_srqn(struct ibv_qp_ex *ex, uint32_t srqn)
{
	if (to_sr_qp(ex)->wr_slot)
		put32(to_sr_qp(ex)->wr_slot, SOFTROCE_SEND_REMOTE_SRQ, srqn);
}

static void set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
	struct sr_qp *q = to_sr_qp(ex);
	size_t len = 0;
	if (!q->wr_slot)
		return;
	for (size_t i = 0; i < n; i++) {
		if (list[i].length > q->cap.max_inline_data - len) {
			fail(q, ENOMEM);
			return;
		}
		if (list[i].length)
			memcpy(q->wr_slot + SOFTROCE_SEND_SGES + len, list[i].addr, list[i].length);
		len += list[i].length;
	}
	uint32_t flags;
	memcpy(&flags, q->wr_slot + SOFTROCE_SEND_FLAGS, sizeof flags);
	put32(q->wr_slot, SOFTROCE_SEND_FLAGS, flags | SOFTROCE_SEND_INLINE);
	put32(q->wr_slot, SOFTROCE_SEND_NUM_SGE, (uint32_t)len);
}

static void set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	struct ibv_data_buf one = {.addr = addr, .length = length};
	set_inline_data_list(ex, 1, &one);
}

static void set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
	struct sr_qp *q = to_sr_qp(ex);
	if (!q->wr_slot)
		return;
	if (n > q->cap.max_send_sge) {
		fail(q, ENOMEM);
		return;
	}
	put32(q->wr_slot, SOFTROCE_SEND_NUM_SGE, (uint32_t)n);
	if (n)
		memcpy(q->wr_slot + SOFTROCE_SEND_SGES, list, n * sizeof *list);
}

static void set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge one = {.addr = addr, .length = length, .lkey = lkey};
	set_sge_list(ex, 1, &one);
}

#define ATOMIC_WRITE_SIZE 8

/* Its data has always room: a slot holds 64 bytes at least behind its fields. */
static void atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, const void *value)
{
	next_remote_wr(ex, IBV_WR_ATOMIC_WRITE, rkey, addr);
	struct sr_qp *q = to_sr_qp(ex);
	if (q->wr_slot && q->cap.max_inline_data < ATOMIC_WRITE_SIZE)
		fail(q, EINVAL);
	set_inline_data(ex, (void *)value, ATOMIC_WRITE_SIZE);
}

void sr_set_wr_ops(struct sr_qp *q)
{
	struct ibv_qp_ex *ex = &q->ex;
	ex->wr_atomic_cmp_swp = atomic_cmp_swp;
	ex->wr_atomic_fetch_add = atomic_fetch_add_wr;
	ex->wr_bind_mw = bind_mw;
	ex->wr_local_inv = local_inv;
	ex->wr_rdma_read = rdma_read;
	ex->wr_rdma_write = rdma_write;
	ex->wr_rdma_write_imm = rdma_write_imm;
	ex->wr_send = send_wr;
	ex->wr_send_imm = send_imm;
	ex->wr_send_inv = send_inv;
	ex->wr_send_tso = send_tso;
	ex->wr_set_ud_addr = set_ud_addr;
	ex->wr_set_xrc_srqn = set_xrc_srqn;
	ex->wr_set_inline_data = set_inline_data;
	ex->wr_set_inline_data_list = set_inline_data_list;
	ex->wr_set_sge = set_sge;
	ex->wr_set_sge_list = set_sge_list;
	ex->wr_start = start;
	ex->wr_complete = complete;
	ex->wr_abort = abort_wr;
	ex->wr_atomic_write = atomic_write;
}
