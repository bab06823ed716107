// SPDX-License-Identifier: Apache-2.0
/*
 * Completion and async events: how programs can wait for them, that none is lost, and that objects
 * are not destroyed before their events are acknowledged, and take those with them that were not
 * read.
 */
#include "setup.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

static void send_once(struct setup *s, struct ibv_qp *qp)
{
	struct ibv_sge sge = {(uintptr_t)s->buf, 8, s->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_RDMA_WRITE,
				 .wr.rdma = {(uintptr_t)s->buf + 64, s->mr->rkey}},
			   *bad;
	REQUIRE(!ibv_post_send(qp, &wr, &bad));
}

static bool with_poll(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	return poll(&p, 1, ms) == 1 && p.revents == POLLIN;
}

static bool with_select(int fd, int ms)
{
	fd_set set;
	struct timeval t = {.tv_sec = ms / 1000};
	FD_ZERO(&set);
	FD_SET(fd, &set);
	return select(fd + 1, &set, NULL, NULL, &t) == 1;
}

static bool with_epoll(int fd, int ms)
{
	struct epoll_event e = {.events = EPOLLIN}, got;
	int ep = epoll_create1(0);
	REQUIRE(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
	bool ready = epoll_wait(ep, &got, 1, ms) == 1;
	close(ep);
	return ready;
}

static void wake_pollers(struct setup *s, struct ibv_qp *qp)
{
	bool (*const ways[])(int, int) = {with_poll, with_select, with_epoll};
	struct ibv_wc wc;
	struct ibv_cq *cq;
	void *context;
	REQUIRE(!fcntl(s->channel->fd, F_SETFL, O_NONBLOCK));
	FAILS(EAGAIN, ibv_get_cq_event(s->channel, &cq, &context) == -1);
	for (int i = 0; i < 3; i++) {
		CHECK(!ways[i](s->channel->fd, 0));
		REQUIRE(!ibv_req_notify_cq(s->cq, 0));
		send_once(s, qp);
		CHECK(ways[i](s->channel->fd, 20000));
		RETURNS(0, ibv_get_cq_event(s->channel, &cq, &context));
		CHECK(cq == s->cq && context == s);
		ibv_ack_cq_events(cq, 1);
		CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		FAILS(EAGAIN, ibv_get_cq_event(s->channel, &cq, &context) == -1);
	}
	REQUIRE(!fcntl(s->channel->fd, F_SETFL, 0));

	struct ibv_async_event e;
	CHECK(!with_epoll(s->context->async_fd, 0));
	REQUIRE(!fcntl(s->context->async_fd, F_SETFL, O_NONBLOCK));
	FAILS(EAGAIN, ibv_get_async_event(s->context, &e) == -1);
}

static atomic_bool acknowledged;

static void *acknowledge(void *cq)
{
	usleep(50000); /* most likely the other thread waits by then */
	acknowledged = true;
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

/* Destroying a completion queue waits until its events are acknowledged. */
static void destroy_cq_waits(struct setup *s)
{
	struct ibv_cq *cq = s->cq, *got;
	void *context;
	struct ibv_qp *qp;
	pthread_t thread;
	REQUIRE((s->cq = ibv_create_cq(s->context, 4, NULL, s->channel, 0)));
	qp = loopback_qp(s);
	REQUIRE(!ibv_req_notify_cq(s->cq, 0));
	send_once(s, qp);
	REQUIRE(!ibv_get_cq_event(s->channel, &got, &context) && got == s->cq);
	RETURNS(0, ibv_destroy_qp(qp));
	REQUIRE(!pthread_create(&thread, NULL, acknowledge, s->cq));
	RETURNS(0, ibv_destroy_cq(s->cq));
	CHECK(acknowledged);
	REQUIRE(!pthread_join(thread, NULL));
	s->cq = cq;
}

/* Destroying a shared receive queue waits until its limit event is acknowledged. */
static void *acknowledge_async(void *event)
{
	usleep(50000);
	acknowledged = true;
	ibv_ack_async_event(event);
	return NULL;
}

static void destroy_srq_waits(struct setup *s)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq_attr attr = {.srq_limit = 1};
	struct ibv_srq *srq = ibv_create_srq(s->pd, &init);
	struct ibv_async_event e;
	pthread_t thread;
	REQUIRE(srq && !ibv_modify_srq(srq, &attr,
				       IBV_SRQ_LIMIT)); /* the queue has fewer receives already */
	CHECK(with_epoll(s->context->async_fd, 20000));
	REQUIRE(!ibv_get_async_event(s->context, &e));
	CHECK(e.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && e.element.srq == srq);
	acknowledged = false;
	REQUIRE(!pthread_create(&thread, NULL, acknowledge_async, &e));
	RETURNS(0, ibv_destroy_srq(srq));
	CHECK(acknowledged);
	REQUIRE(!pthread_join(thread, NULL));
}

/* A completion queue takes its unread events with it, and no others. */
static void destroyed_cq_has_no_events(struct setup *s)
{
	struct ibv_cq *mine = s->cq, *cq[2], *got;
	struct ibv_qp *qp[2];
	struct ibv_wc wc;
	void *context;
	for (int i = 0; i < 2; i++) {
		REQUIRE((cq[i] = s->cq = ibv_create_cq(s->context, 4, NULL, s->channel, 0)));
		qp[i] = loopback_qp(s);
		REQUIRE(!ibv_req_notify_cq(cq[i], 0));
		send_once(s, qp[i]);
		while (!ibv_poll_cq(cq[i], 1, &wc))
			;
	}
	s->cq = mine;
	RETURNS(0, ibv_destroy_qp(qp[0]));
	RETURNS(0, ibv_destroy_cq(cq[0]));
	REQUIRE(!ibv_get_cq_event(s->channel, &got, &context));
	CHECK(got == cq[1]);
	ibv_ack_cq_events(got, 1);
	CHECK(!with_poll(s->channel->fd, 0));
	RETURNS(0, ibv_destroy_qp(qp[1]));
	RETURNS(0, ibv_destroy_cq(cq[1]));
}

/* So does an object with asynchronous events. */
static void destroyed_srq_has_no_events(struct setup *s)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq_attr attr = {.srq_limit = 1};
	struct ibv_srq *srq[2];
	struct ibv_async_event e;
	for (int i = 0; i < 2; i++) {
		REQUIRE((srq[i] = ibv_create_srq(s->pd, &init)));
		REQUIRE(!ibv_modify_srq(srq[i], &attr, IBV_SRQ_LIMIT));
	}
	RETURNS(0, ibv_query_srq(srq[1], &attr)); /* the events have been delivered */
	RETURNS(0, ibv_destroy_srq(srq[0]));
	REQUIRE(!ibv_get_async_event(s->context, &e));
	CHECK(e.element.srq == srq[1]);
	ibv_ack_async_event(&e);
	CHECK(!with_poll(s->context->async_fd, 0));
	RETURNS(0, ibv_destroy_srq(srq[1]));
}

/* A queue pair that has taken its last receive from a shared queue: that is an event. */
static struct ibv_qp *qp_with_event(struct setup *s, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = rc_attr(s);
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	struct ibv_qp *qp;
	init.srq = srq;
	REQUIRE((qp = ibv_create_qp(s->pd, &init)));
	REQUIRE(!ibv_modify_qp(qp, &a, INIT_MASK));
	a.qp_state = IBV_QPS_ERR;
	REQUIRE(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
	return qp;
}

static void destroyed_qp_has_no_events(struct setup *s)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(s->pd, &init);
	REQUIRE(srq);
	struct ibv_qp *qp = qp_with_event(s, srq);
	CHECK(with_poll(s->context->async_fd, 20000));
	RETURNS(0, ibv_destroy_qp(qp));
	CHECK(!with_poll(s->context->async_fd, 0));
	RETURNS(0, ibv_destroy_srq(srq));
}

/* The event of a completion queue that overflows stays until the queue is destroyed. */
static void overflowed_cq_has_no_events(struct setup *s)
{
	struct ibv_cq *cq = ibv_create_cq(s->context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = rc_attr(s);
	REQUIRE(cq);
	init.send_cq = init.recv_cq = cq;
	init.cap.max_send_wr = cq->cqe + 1;
	struct ibv_qp *qp = ibv_create_qp(s->pd, &init);
	REQUIRE(qp);
	connect_qp(s, qp, qp->qp_num);
	for (int i = 0; i <= cq->cqe; i++)
		send_once(s, qp);
	CHECK(with_poll(s->context->async_fd, 20000));
	RETURNS(0, ibv_destroy_qp(qp)); /* with its own event, if it has one */
	CHECK(with_poll(s->context->async_fd, 0));
	RETURNS(0, ibv_destroy_cq(cq));
	CHECK(!with_poll(s->context->async_fd, 0));
}

/* More events than the ring holds reach a program that reads them late. */
enum {
	MANY = 1500
};

static void events_are_not_lost(struct setup *s)
{
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_qp_init_attr init = rc_attr(s);
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	static struct ibv_qp *qp[MANY];
	struct ibv_async_event e;
	REQUIRE((init.srq = ibv_create_srq(s->pd, &srq_init)));
	for (int i = 0; i < MANY; i++) {
		REQUIRE((qp[i] = ibv_create_qp(s->pd, &init)));
		a.qp_state = IBV_QPS_INIT;
		REQUIRE(!ibv_modify_qp(qp[i], &a, INIT_MASK));
		a.qp_state = IBV_QPS_ERR;
		REQUIRE(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE));
	}
	RETURNS(0, ibv_destroy_qp(qp[MANY - 1])); /* with the event that waits in the daemon */
	for (int i = 0; i < MANY - 1; i++) {
		REQUIRE(with_poll(s->context->async_fd, 20000));
		REQUIRE(!ibv_get_async_event(s->context, &e));
		CHECK(e.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && e.element.qp == qp[i]);
		ibv_ack_async_event(&e);
		RETURNS(0, ibv_destroy_qp(qp[i]));
	}
	CHECK(!with_poll(s->context->async_fd, 0));
	RETURNS(0, ibv_destroy_srq(init.srq));
}

int main(void)
{
	struct setup s;
	setup_open(&s);
	struct ibv_qp *qp = loopback_qp(&s);
	wake_pollers(&s, qp);
	destroy_cq_waits(&s);
	destroy_srq_waits(&s);
	destroyed_cq_has_no_events(&s);
	destroyed_srq_has_no_events(&s);
	destroyed_qp_has_no_events(&s);
	overflowed_cq_has_no_events(&s);
	events_are_not_lost(&s);
	RETURNS(0, ibv_destroy_qp(qp));
	setup_close(&s);
	return failures != 0;
}
