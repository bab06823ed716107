// SPDX-License-Identifier: Apache-2.0
/*
 * Posting work requests: into the ring, then the doorbell, which is a bit in shared memory. Only
 * where the engine sleeps it costs a system call.
 */
#include "ibverbs/qp.h"
#include "ibverbs/mr.h"
#include "ibverbs/srq.h"

#include <string.h>
#include <unistd.h>

/*
 * Either the engine sees the bit before it sleeps, or we see that it sleeps: both sides store,
 * fence, and load.
 */
void sr_ring_doorbell(struct sr_qp *q)
{
	struct sr_context *ctx = sr_ctx(q->ex.qp_base.context);
	atomic_fetch_or(q->doorbell, q->doorbell_bit);
	if (atomic_load(sr_shm_word(&ctx->doorbells, SOFTROCE_DOORBELL_ASLEEP))) {
		const uint64_t one = 1;
		int saved = errno;
		/* It fails where the counter is full: then the engine has been told. */
		if (!sr_conn_stolen(&ctx->conn) && write(ctx->doorbell_fd, &one, sizeof one) < 0)
			errno = saved;
	}
}

int sr_check_post(struct sr_qp *q, enum ibv_qp_state from)
{
	if (q->ex.qp_base.state < from)
		return EINVAL;
	if (sr_gone(&sr_ctx(q->ex.qp_base.context)->conn))
		return EIO;
	return 0;
}

static void put32(uint8_t *s, size_t offset, uint32_t v)
{
	memcpy(s + offset, &v, sizeof v);
}

static void put64(uint8_t *s, size_t offset, uint64_t v)
{
	memcpy(s + offset, &v, sizeof v);
}

/* Copies the data; EINVAL where it is more than the queue pair has room for. */
static int put_inline(uint8_t *s, const struct ibv_send_wr *wr, uint32_t max)
{
	uint32_t len = 0;
	for (int i = 0; i < wr->num_sge; i++) {
		const struct ibv_sge *g = &wr->sg_list[i];
		if (g->length > max - len)
			return EINVAL;
		if (g->length)
			memcpy(s + SOFTROCE_SEND_SGES + len, (void *)(uintptr_t)g->addr, g->length);
		len += g->length;
	}
	put32(s, SOFTROCE_SEND_NUM_SGE, len);
	return 0;
}

static int put_data(struct sr_qp *q, uint8_t *s, const struct ibv_send_wr *wr)
{
	if (wr->num_sge < 0)
		return EINVAL;
	if (wr->send_flags & IBV_SEND_INLINE)
		return put_inline(s, wr, q->cap.max_inline_data);
	if ((uint32_t)wr->num_sge > q->cap.max_send_sge)
		return EINVAL;
	put32(s, SOFTROCE_SEND_NUM_SGE, (uint32_t)wr->num_sge);
	if (wr->num_sge)
		memcpy(s + SOFTROCE_SEND_SGES, wr->sg_list, wr->num_sge * sizeof *wr->sg_list);
	return 0;
}

static int put_bind(uint8_t *s, const struct ibv_send_wr *wr)
{
	const struct ibv_mw_bind_info *b = &wr->bind_mw.bind_info;
	if (!wr->bind_mw.mw || (!b->mr && b->length))
		return EINVAL;
	put32(s, SOFTROCE_SEND_RKEY, (wr->bind_mw.mw->rkey & ~0xffu) | (wr->bind_mw.rkey & 0xff));
	put64(s, SOFTROCE_SEND_BIND_ADDR, b->addr);
	put64(s, SOFTROCE_SEND_BIND_LENGTH, b->length);
	put32(s, SOFTROCE_SEND_BIND_LKEY, b->mr ? b->mr->lkey : 0);
	put32(s, SOFTROCE_SEND_BIND_ACCESS, b->mw_access_flags & SR_MW_ACCESS);
	put32(s, SOFTROCE_SEND_NUM_SGE, 0);
	return 0;
}

/* What each kind of work request has besides its data. */
static int put_operation(struct sr_qp *q, uint8_t *s, const struct ibv_send_wr *wr)
{
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
	case IBV_WR_ATOMIC_WRITE:
		put64(s, SOFTROCE_SEND_REMOTE_ADDR, wr->wr.rdma.remote_addr);
		put32(s, SOFTROCE_SEND_RKEY, wr->wr.rdma.rkey);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		put64(s, SOFTROCE_SEND_REMOTE_ADDR, wr->wr.atomic.remote_addr);
		put32(s, SOFTROCE_SEND_RKEY, wr->wr.atomic.rkey);
		put64(s, SOFTROCE_SEND_COMPARE_ADD, wr->wr.atomic.compare_add);
		put64(s, SOFTROCE_SEND_SWAP, wr->wr.atomic.swap);
		break;
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_LOCAL_INV:
	case IBV_WR_BIND_MW:
		break;
	default:
		return EINVAL;
	}
	if (q->ex.qp_base.qp_type == IBV_QPT_UD) {
		if (!wr->wr.ud.ah)
			return EINVAL;
		put32(s, SOFTROCE_SEND_AH, wr->wr.ud.ah->handle);
		put32(s, SOFTROCE_SEND_REMOTE_QP_NUM, wr->wr.ud.remote_qpn);
		put32(s, SOFTROCE_SEND_REMOTE_QKEY, wr->wr.ud.remote_qkey);
	} else if (q->ex.qp_base.qp_type == IBV_QPT_XRC_SEND) {
		put32(s, SOFTROCE_SEND_REMOTE_SRQ, wr->qp_type.xrc.remote_srqn);
	}
	return 0;
}

static int put_send(struct sr_qp *q, uint8_t *s, const struct ibv_send_wr *wr)
{
	put64(s, SOFTROCE_SEND_WR_ID, wr->wr_id);
	put32(s, SOFTROCE_SEND_OPCODE, wr->opcode);
	put32(s, SOFTROCE_SEND_FLAGS, wr->send_flags & SR_SEND_FLAGS);
	put32(s, SOFTROCE_SEND_IMM, wr->imm_data); /* or the key to invalidate: a union */
	int error = put_operation(q, s, wr);
	if (error)
		return error;
	return wr->opcode == IBV_WR_BIND_MW ? put_bind(s, wr) : put_data(q, s, wr);
}

int sr_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct sr_qp *q = sr_qp(qp);
	struct sr_wq *w = &q->sq;
	if (!w->ring.mem) { /* XRC target */
		*bad = wr;
		return EINVAL;
	}
	sr_lock(&w->lock, w->single_threaded);
	uint32_t first = w->producer, room = w->max_wr - sr_wq_used(w);
	int error = sr_check_post(q, IBV_QPS_RTS);
	for (; wr && !error; wr = wr->next) {
		error = room ? put_send(q, sr_wq_slot(w, w->producer), wr) : ENOMEM;
		if (error)
			break;
		w->producer++;
		room--;
	}
	if (error)
		*bad = wr;
	if (w->producer != first) {
		sr_wq_publish(w);
		sr_ring_doorbell(q);
	}
	sr_unlock(&w->lock, w->single_threaded);
	return error;
}

int sr_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sr_qp *q = sr_qp(qp);
	struct sr_wq *w = &q->rq;
	if (!w->ring.mem) { /* a shared receive queue has them, or XRC */
		*bad = wr;
		return EINVAL;
	}
	sr_lock(&w->lock, w->single_threaded);
	bool posted = false;
	int error = sr_check_post(q, IBV_QPS_INIT);
	if (error)
		*bad = wr;
	else
		error = sr_wq_post_recv(w, q->cap.max_recv_sge, wr, bad, &posted);
	/* A queue pair in error flushes what comes, if it is told. */
	if (posted) {
		atomic_thread_fence(memory_order_seq_cst);
		if (atomic_load(sr_shm_word(&w->ring, SOFTROCE_RECV_DOORBELL)))
			sr_ring_doorbell(q);
	}
	sr_unlock(&w->lock, w->single_threaded);
	return error;
}

int sr_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sr_srq *s = sr_srq(srq);
	struct sr_wq *w = &s->wq;
	bool posted;
	int error = sr_gone(&sr_ctx(srq->context)->conn) ? EIO : 0;
	sr_lock(&w->lock, w->single_threaded);
	if (error || !w->ring.mem) {
		*bad = wr;
		error = EIO;
	} else {
		error = sr_wq_post_recv(w, s->max_sge, wr, bad, &posted);
	}
	sr_unlock(&w->lock, w->single_threaded);
	return error;
}
