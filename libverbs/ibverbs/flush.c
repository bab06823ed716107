// SPDX-License-Identifier: Apache-2.0
/*
 * What a daemon that is gone still owes: every work request that it did not complete ends with
 * "work request flushed", as on a device that was taken away.
 */
#include "ibverbs/cq.h"
#include "ibverbs/qp.h"

#include <string.h>

static void put32(uint8_t *s, size_t offset, uint32_t v)
{
	memcpy(s + offset, &v, sizeof v);
}

/* The index of the oldest_outstanding work request that is not completed; false if all are. */
static bool oldest_outstanding(struct sr_wq *w, uint32_t *index)
{
	uint32_t taken = atomic_load_explicit(sr_shm_word(&w->ring, SOFTROCE_RING_CONSUMER),
					      memory_order_acquire);
	if ((int32_t)(taken - w->flushed) > 0 && (int32_t)(w->producer - taken) >= 0)
		w->flushed = taken;
	*index = w->flushed;
	return w->flushed != w->producer;
}

static const uint8_t *flush(struct sr_cq *q, struct sr_wq *w, uint32_t qpn, uint32_t opcode)
{
	uint32_t i;
	const uint8_t *cqe = NULL;
	sr_lock(&w->lock, w->single_threaded);
	if (oldest_outstanding(w, &i)) {
		memset(q->flush_cqe, 0, sizeof q->flush_cqe);
		memcpy(q->flush_cqe + SOFTROCE_CQE_WR_ID, sr_wq_slot(w, i), sizeof(uint64_t));
		put32(q->flush_cqe, SOFTROCE_CQE_STATUS, IBV_WC_WR_FLUSH_ERR);
		put32(q->flush_cqe, SOFTROCE_CQE_OPCODE, opcode);
		put32(q->flush_cqe, SOFTROCE_CQE_QP_NUM, qpn);
		w->flushed++;
		cqe = q->flush_cqe;
	}
	sr_unlock(&w->lock, w->single_threaded);
	return cqe;
}

const uint8_t *sr_flush_next(struct sr_cq *q)
{
	const uint8_t *cqe;
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

_Static_assert(SOFTROCE_SEND_WR_ID == 0 && SOFTROCE_RECV_WR_ID == 0, "flush reads it at 0");
