/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers that post, poll, wait for events, and create and destroy objects.
 */
#ifndef TORTURE_VERBS_H
#define TORTURE_VERBS_H

#include "torture.h"

static inline struct ibv_send_wr write_wr(struct ibv_sge *sge, uint64_t id)
{
	*sge = (struct ibv_sge){(uintptr_t)s.buf, 8, s.mr->lkey};
	return (struct ibv_send_wr){
		.wr_id = id,
		.sg_list = sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {(uintptr_t)s.buf + 64, s.mr->rkey},
	};
}

static int post_with_calls(struct ibv_qp *qp)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(ex, s.mr->rkey, (uintptr_t)s.buf + 64);
	if (below(2)) {
		ibv_wr_set_inline_data(ex, s.buf, 8);
	} else {
		ibv_wr_set_sge(ex, s.mr->lkey, (uintptr_t)s.buf, 8);
	}
	if (below(16))
		return ibv_wr_complete(ex);
	ibv_wr_abort(ex);
	return ENOMEM;
}

/* A message to itself: a receive, then a send. Returns how many of them were posted. */
static unsigned int post_message(struct ibv_qp *qp, uint64_t id, int *error)
{
	struct ibv_sge sge[2];
	struct ibv_send_wr wr = write_wr(&sge[0], id), *bad;
	struct ibv_recv_wr recv = {.wr_id = id, .sg_list = &sge[1], .num_sge = 1}, *bad_recv;
	sge[1] = (struct ibv_sge){(uintptr_t)s.buf + 128, 8, s.mr->lkey};
	if ((*error = ibv_post_recv(qp, &recv, &bad_recv)))
		return 0;
	wr.opcode = IBV_WR_SEND;
	*error = ibv_post_send(qp, &wr, &bad);
	return *error ? 1 : 2;
}

static void *post_worker(void *arg)
{
	(void)arg;
	while (!stop) {
		struct ibv_qp *qp = qps[below(QPS)];
		struct ibv_sge sge;
		struct ibv_send_wr wr = write_wr(&sge, 1), *bad;
		int error;
		unsigned int n = 1;
		/* Counted before, because the completion may be polled at once. */
		if (atomic_fetch_add(&posted, 2) - completed > BUDGET) {
			atomic_fetch_sub(&posted, 2);
			sched_yield();
			continue;
		}
		switch (below(3)) {
		case 0:
			error = ibv_post_send(qp, &wr, &bad);
			n = !error;
			break;
		case 1:
			error = post_with_calls(qp);
			n = !error;
			break;
		default:
			n = post_message(qp, 1, &error);
		}
		atomic_fetch_sub(&posted, 2 - n);
		if (error == ENOMEM)
			sched_yield();
		else if (!OK(!error))
			return NULL;
		if (n)
			count(MESSAGES);
	}
	return NULL;
}

/* Returns how many completions it took, or -1: there are no more, since the daemon is gone. */
static int poll_some(void)
{
	struct ibv_wc wc[8];
	struct ibv_poll_cq_attr attr = {0};
	int n = 0, counted = 0;
	if (below(2)) {
		n = ibv_poll_cq(ibv_cq_ex_to_cq(cq), 8, wc);
		for (int i = 0; i < n; i++) {
			counted += !(wc[i].wr_id & UNCOUNTED);
			OK(draining || wc[i].wr_id & UNCOUNTED || !wc[i].status);
		}
	} else {
		int error = ibv_start_poll(cq, &attr);
		if (error)
			return error == ENOENT ? 0 : -1;
		do {
			n++;
			counted += !(cq->wr_id & UNCOUNTED);
			OK(draining || cq->wr_id & UNCOUNTED || !cq->status);
			(void)ibv_wc_read_opcode(cq);
		} while (n < 8 && !ibv_next_poll(cq));
		ibv_end_poll(cq);
	}
	atomic_fetch_add(&completed, counted);
	return n;
}

static void *poll_worker(void *arg)
{
	(void)arg;
	while (!stop) {
		int n = poll_some();
		if (!OK(n >= 0))
			return NULL;
		if (!n)
			sched_yield();
	}
	return NULL;
}

static void *event_worker(void *arg)
{
	(void)arg;
	while (!stop) {
		struct ibv_cq *got;
		void *context;
		if (ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), (int)below(2)))
			return NULL;
		while (poll_some() > 0)
			;
		if (!readable(s.channel->fd, 10))
			continue;
		if (ibv_get_cq_event(s.channel, &got, &context)) {
			if (errno == EAGAIN)
				continue;
			return NULL;
		}
		if (below(2))
			sched_yield();
		ibv_ack_cq_events(got, 1);
		count(EVENTS);
	}
	return NULL;
}

static void *async_worker(void *arg)
{
	(void)arg;
	while (!stop) {
		struct ibv_async_event e;
		if (!readable(s.context->async_fd, 10))
			continue;
		if (ibv_get_async_event(s.context, &e)) {
			if (errno == EAGAIN)
				continue;
			return NULL;
		}
		usleep(below(300));
		ibv_ack_async_event(&e);
		count(EVENTS);
	}
	return NULL;
}

static void churn_memory(void)
{
	static char buf[256];
	struct ibv_pd *pd = ibv_alloc_pd(s.context);
	if (!OK(pd != NULL))
		return;
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, ALL_ACCESS);
	if (OK(mr != NULL)) {
		OK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0));
		MUST(ibv_dereg_mr(mr));
	}
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	if (OK(mw != NULL))
		MUST(ibv_dealloc_mw(mw));
	struct ibv_ah_attr a = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1}};
	if (OK(!ibv_query_gid(s.context, 1, 1, &a.grh.dgid))) {
		struct ibv_ah *ah = ibv_create_ah(pd, &a);
		if (OK(ah != NULL))
			MUST(ibv_destroy_ah(ah));
	}
	MUST(ibv_dealloc_pd(pd));
}

static bool churn_connect(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = connected_attr(qp->qp_num);
	if (!OK(!ibv_query_gid(s.context, 1, 1, &a.ah_attr.grh.dgid)))
		return false;
	if (!OK(!ibv_modify_qp(qp, &a, INIT_MASK)))
		return false;
	a.qp_state = IBV_QPS_RTR;
	if (!OK(!ibv_modify_qp(qp, &a, RTR_MASK)))
		return false;
	a.qp_state = IBV_QPS_RTS;
	return OK(!ibv_modify_qp(qp, &a, RTS_MASK));
}

/* A queue pair of the shared completion queue, which is destroyed with work posted. */
static void churn_qp(struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = rc_attr(&s);
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
	init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
	init.srq = srq;
	struct ibv_qp *qp = ibv_create_qp(s.pd, &init);
	if (!OK(qp != NULL))
		return;
	if (below(4) && churn_connect(qp)) {
		struct ibv_sge sge;
		struct ibv_send_wr wr = write_wr(&sge, UNCOUNTED), *bad;
		struct ibv_recv_wr recv = {.wr_id = UNCOUNTED}, *bad_recv;
		for (unsigned int n = below(4); n; n--)
			OK(!ibv_post_send(qp, &wr, &bad));
		if (srq)
			OK(!ibv_post_srq_recv(srq, &recv, &bad_recv));
		else
			OK(!ibv_post_recv(qp, &recv, &bad_recv));
		if (below(2)) /* LAST_WQE_REACHED, or a flushed receive */
			OK(!ibv_modify_qp(qp, &error, IBV_QP_STATE));
	}
	MUST(ibv_destroy_qp(qp));
}

static void churn_srq(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(s.pd, &init);
	if (!OK(srq != NULL))
		return;
	churn_qp(srq);
	MUST(ibv_destroy_srq(srq));
}

static void churn_cq(void)
{
	struct ibv_comp_channel *channel =
		below(2) ? s.channel : ibv_create_comp_channel(s.context);
	if (!OK(channel != NULL))
		return;
	struct ibv_cq *q = ibv_create_cq(s.context, 4, NULL, channel, 0);
	if (OK(q != NULL)) {
		struct ibv_wc wc;
		OK(!ibv_resize_cq(q, (int)below(100) + 1));
		OK(!ibv_req_notify_cq(q, 0));
		OK(ibv_poll_cq(q, 1, &wc) == 0);
		MUST(ibv_destroy_cq(q));
	}
	if (channel != s.channel)
		MUST(ibv_destroy_comp_channel(channel));
}

static void churn_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	if (!OK(list != NULL))
		return;
	struct ibv_context *c = list[0] ? ibv_open_device(list[0]) : NULL;
	ibv_free_device_list(list);
	if (!OK(c != NULL))
		return;
	struct ibv_port_attr port;
	OK(!ibv_query_port(c, 1, &port));
	MUST(ibv_close_device(c));
}

static void *churn_worker(void *arg)
{
	(void)arg;
	while (!stop) {
		switch (below(5)) {
		case 0:
			churn_memory();
			break;
		case 1:
			churn_qp(NULL);
			break;
		case 2:
			churn_srq();
			break;
		case 3:
			churn_cq();
			break;
		default:
			churn_device();
		}
		count(OBJECTS);
	}
	return NULL;
}

#endif
