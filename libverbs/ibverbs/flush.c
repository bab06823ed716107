// SPDX-License-Identifier: Apache-2.0
/*
 * Completions after the end of the daemon. Every work request that the daemon did not complete
 * completes with "work request flushed", as on a device that was removed.
 */
#include "ibverbs/cq.h"
#include "ibverbs/qp.h"

/*
 * Finds the index of the oldest outstanding work request; false if there is none. Work requests
 * that were not published do not count, so the queue's lock is not needed: the thread that polls
 * may hold it, between ibv_wr_start and ibv_wr_complete.
 */
static bool oldest_outstanding(struct sr_wq *w, uint32_t *index)
{
	uint32_t taken = atomic_load_explicit(sr_shm_word(&w->ring, SOFTROCE_RING_CONSUMER),
					      memory_order_acquire);
	uint32_t posted = atomic_load_explicit(sr_shm_word(&w->ring, SOFTROCE_RING_PRODUCER),
					       memory_order_acquire);
	/* With flushing, both are at most a ring apart, and so comparable. */
	if (!w->flushing || (int32_t)(taken - w->flushed) > 0)
		w->flushed = taken;
	w->flushing = true;
	*index = w->flushed;
	return posted != w->flushed && posted - w->flushed <= w->mask + 1;
}

_Static_assert(offsetof(struct softroce_send_wqe, wr_id) == 0 &&
		       offsetof(struct softroce_recv_wqe, wr_id) == 0,
	       "slots of both queues begin with wr_id");

static const struct softroce_cqe *flush(struct sr_cq *q, struct sr_wq *w, uint32_t qpn,
					uint32_t opcode)
{
	uint32_t i;
	if (!oldest_outstanding(w, &i))
		return NULL;
	q->flush_cqe = (struct softroce_cqe){
		.wr_id = *(uint64_t *)sr_wq_slot(w, i),
		.status = IBV_WC_WR_FLUSH_ERR,
		.opcode = opcode,
		.qp_num = qpn,
	};
	w->flushed++;
	return &q->flush_cqe;
}

const struct softroce_cqe *sr_flush_next(struct sr_cq *q)
{
	const struct softroce_cqe *cqe;
	sr_for_each (l, &q->send_qps) {
		struct sr_qp *qp = sr_container(l, struct sr_qp, send_cq_link);
		cqe = flush(q, &qp->sq, qp->ex.qp_base.qp_num, IBV_WC_SEND);
		if (cqe)
			return cqe;
	}
	sr_for_each (l, &q->recv_qps) {
		struct sr_qp *qp = sr_container(l, struct sr_qp, recv_cq_link);
		cqe = flush(q, &qp->rq, qp->ex.qp_base.qp_num, IBV_WC_RECV);
		if (cqe)
			return cqe;
	}
	return NULL;
}
