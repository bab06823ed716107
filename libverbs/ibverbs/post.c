// SPDX-License-Identifier: Apache-2.0
/*
 * ibv_post_send, ibv_post_recv and ibv_post_srq_recv. A work request is written into a slot of the
 * ring, then the doorbell is rung: a bit in shared memory. It takes a system call only if the
 * daemon's engine sleeps.
 */
#include "ibverbs/qp.h"
#include "ibverbs/srq.h"

#include "core/cancel.h"

#include <string.h>
#include <unistd.h>

/*
 * Either the engine sees the bit before it sleeps, or this side sees that it sleeps: both store,
 * execute a full fence, and load.
 */
void sr_ring_doorbell(struct sr_qp *q)
{
	atomic_fetch_or(q->doorbell, q->doorbell_bit);
	sr_wake_engine(sr_ctx(q->ex.qp_base.context));
}

void sr_wake_engine(struct sr_context *ctx)
{
	if (atomic_load(sr_shm_word(&ctx->doorbells, SOFTROCE_DOORBELL_ASLEEP))) {
		const uint64_t one = 1;
		int saved = errno, state = sr_defer_cancel();
		/* If the counter is full, the write fails and the engine is being woken already. */
		if (!sr_conn_stolen(&ctx->conn) && write(ctx->doorbell_fd, &one, sizeof one) < 0)
			errno = saved;
		sr_restore_cancel(state);
		atomic_store_explicit(&ctx->engine_woken, true, memory_order_relaxed);
	}
}

int sr_check_post(struct sr_qp *q, enum ibv_qp_state from)
{
	if (sr_qp_state(q) < from)
		return EINVAL;
	if (sr_gone(&sr_ctx(q->ex.qp_base.context)->conn))
		return EIO;
	return 0;
}

/* Copies inline data; EINVAL if it exceeds max. */
static int put_inline(struct softroce_send_wqe *wqe, const struct ibv_send_wr *wr, uint32_t max)
{
	uint8_t *data = (uint8_t *)(wqe + 1);
	uint32_t len = 0;
	for (int i = 0; i < wr->num_sge; i++) {
		const struct ibv_sge *g = &wr->sg_list[i];
		if (g->length > max - len)
			return EINVAL;
		if (g->length)
			memcpy(data + len, (void *)(uintptr_t)g->addr, g->length);
		len += g->length;
	}
	wqe->num_sge = len;
	return 0;
}

static int put_data(struct sr_qp *q, struct softroce_send_wqe *wqe, const struct ibv_send_wr *wr)
{
	if (wr->num_sge < 0)
		return EINVAL;
	if (wr->send_flags & IBV_SEND_INLINE)
		return put_inline(wqe, wr, q->cap.max_inline_data);
	if ((uint32_t)wr->num_sge > q->cap.max_send_sge)
		return EINVAL;
	wqe->num_sge = (uint32_t)wr->num_sge;
	sr_put_sges(wqe + 1, wr->sg_list, (uint32_t)wr->num_sge);
	return 0;
}

/* Programs may pass local access flags, which have no effect: a window grants remote access only.
 */
#define MW_ACCESS (~(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_OPTIONAL_RANGE))

bool sr_put_bind(struct softroce_send_wqe *wqe, struct sr_bind *bind,
		 const struct ibv_mw_bind_info *info)
{
	struct softroce_bind_wqe *b = (struct softroce_bind_wqe *)wqe;
	if (!bind->mw || (!info->mr && info->length))
		return false;
	bind->rkey = (bind->mw->rkey & ~0xffu) | (bind->rkey & 0xff);
	b->rkey = bind->rkey;
	b->addr = info->addr;
	b->length = info->length;
	b->lkey = info->mr ? info->mr->lkey : 0;
	b->access = info->mw_access_flags & MW_ACCESS;
	return true;
}

static int put_bind(struct softroce_send_wqe *wqe, const struct ibv_send_wr *wr)
{
	struct sr_bind bind = {.mw = wr->bind_mw.mw, .rkey = wr->bind_mw.rkey};
	if (!sr_put_bind(wqe, &bind, &wr->bind_mw.bind_info))
		return EINVAL;
	wqe->num_sge = 0;
	bind.mw->rkey = bind.rkey;
	return 0;
}

/* Writes the fields that depend on the opcode and the transport. */
static int put_operation(struct sr_qp *q, struct softroce_send_wqe *wqe,
			 const struct ibv_send_wr *wr)
{
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
	case IBV_WR_ATOMIC_WRITE:
		wqe->remote_addr = wr->wr.rdma.remote_addr;
		wqe->rkey = wr->wr.rdma.rkey;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		wqe->remote_addr = wr->wr.atomic.remote_addr;
		wqe->rkey = wr->wr.atomic.rkey;
		wqe->compare_add = wr->wr.atomic.compare_add;
		wqe->swap = wr->wr.atomic.swap;
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
		wqe->ah_or_srq = wr->wr.ud.ah->handle;
		wqe->remote_qp_num = wr->wr.ud.remote_qpn;
		wqe->remote_qkey = wr->wr.ud.remote_qkey;
	} else if (q->ex.qp_base.qp_type == IBV_QPT_XRC_SEND) {
		wqe->ah_or_srq = wr->qp_type.xrc.remote_srqn;
	}
	return 0;
}

static int put_send(struct sr_qp *q, struct softroce_send_wqe *wqe, const struct ibv_send_wr *wr)
{
	wqe->wr_id = wr->wr_id;
	wqe->opcode = wr->opcode;
	wqe->flags = wr->send_flags & SR_SEND_FLAGS;
	wqe->imm = wr->imm_data; /* or invalidate_rkey: a union */
	int error = put_operation(q, wqe, wr);
	if (error)
		return error;
	return wr->opcode == IBV_WR_BIND_MW ? put_bind(wqe, wr) : put_data(q, wqe, wr);
}

int sr_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct sr_qp *q = sr_qp(qp);
	struct sr_wq *w = &q->sq;
	if (!w->ring.mem) { /* an XRC target has no send queue */
		*bad = wr;
		return sr_error(EINVAL);
	}
	bool locked = sr_lock_call(&w->lock, w->single_threaded);
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
	bool posted = w->producer != first;
	sr_unlock_call(&w->lock, locked);
	if (posted)
		sr_return_processor(sr_ctx(qp->context));
	return sr_error(error);
}

int sr_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sr_qp *q = sr_qp(qp);
	struct sr_wq *w = &q->rq;
	if (!w->ring.mem) { /* the queue pair uses a shared receive queue, or is of XRC */
		*bad = wr;
		return sr_error(EINVAL);
	}
	bool locked = sr_lock_call(&w->lock, w->single_threaded);
	bool posted = false;
	int error = sr_check_post(q, IBV_QPS_INIT);
	if (error)
		*bad = wr;
	else
		error = sr_wq_post_recv(w, q->cap.max_recv_sge, wr, bad, &posted);
	/* The engine flushes receives that are posted in the Error state; it needs the doorbell. */
	if (posted) {
		atomic_thread_fence(memory_order_seq_cst);
		if (atomic_load(sr_shm_word(&w->ring, SOFTROCE_RECV_DOORBELL)))
			sr_ring_doorbell(q);
	}
	sr_unlock_call(&w->lock, locked);
	return sr_error(error);
}

int sr_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sr_srq *s = sr_srq(srq);
	struct sr_wq *w = &s->wq;
	bool posted;
	int error = sr_gone(&sr_ctx(srq->context)->conn) ? EIO : 0;
	bool locked = sr_lock_call(&w->lock, w->single_threaded);
	if (error || !w->ring.mem) {
		*bad = wr;
		error = EIO;
	} else {
		error = sr_wq_post_recv(w, s->max_sge, wr, bad, &posted);
	}
	sr_unlock_call(&w->lock, locked);
	return sr_error(error);
}
