// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon goes, which whoever started this program sees to when it reads a line, and another one
 * takes its place. What was made before tells it, each in its own way, and can be closed; what is
 * made then works.
 */
#include "setup.h"

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

/* Lets the other side act, and waits until it has done so. */
static void act(const char *what)
{
	char line[16];
	puts(what);
	fflush(stdout);
	NEED(fgets(line, sizeof line, stdin));
}

static struct rdma_cm_id *bound(struct rdma_event_channel *channel, int port)
{
	struct rdma_cm_id *id;
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
	NEED(inet_pton(AF_INET, "192.0.2.1", &addr.sin_addr) == 1);
	NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(id, (struct sockaddr *)&addr));
	return id;
}

static void device(struct setup *s, struct ibv_qp *qp)
{
	struct ibv_async_event event;
	struct ibv_wc wc[32];
	struct ibv_cq *cq;
	void *context;
	struct ibv_recv_wr wr = {0}, *bad;
	struct ibv_port_attr port;
	RETURNS(0, ibv_get_async_event(s->context, &event));
	CHECK(event.event_type == IBV_EVENT_DEVICE_FATAL);
	ibv_ack_async_event(&event);
	FAILS(EIO, ibv_get_async_event(s->context, &event) == -1);
	RETURNS(EIO, ibv_query_port(s->context, 1, &port));
	RETURNS(EIO, ibv_post_recv(qp, &wr, &bad));
	RETURNS(0, ibv_get_cq_event(s->channel, &cq, &context));
	CHECK(cq == s->cq && context == s);
	ibv_ack_cq_events(cq, 1);
	FAILS(EIO, ibv_get_cq_event(s->channel, &cq, &context) == -1);
	int n = ibv_poll_cq(s->cq, 32, wc); /* three receives were posted */
	CHECK(n == 3 && wc[2].wr_id == 2 && wc[2].status == IBV_WC_WR_FLUSH_ERR);
	FAILS(EIO, ibv_poll_cq(s->cq, 32, wc) == -1);
	RETURNS(EIO, ibv_req_notify_cq(s->cq, 0));
	FAILS(EIO, !ibv_alloc_pd(s->context));
}

int main(void)
{
	struct setup s, later;
	make(&s);
	struct ibv_qp *qp = loop(&s);
	struct ibv_recv_wr *bad;
	for (int i = 0; i < 3; i++)
		NEED(!ibv_post_recv(qp, &(struct ibv_recv_wr){.wr_id = i}, &bad));
	struct rdma_event_channel *channel = rdma_create_event_channel();
	NEED(channel);
	struct rdma_cm_id *a = bound(channel, 7001), *b = bound(channel, 7002), *idle;
	NEED(!rdma_create_id(channel, &idle, NULL, RDMA_PS_TCP));
	act("end");

	device(&s, qp);
	struct rdma_cm_event *e;
	unsigned int heard = 0;
	for (int i = 0; i < 2; i++) {
		NEED(!rdma_get_cm_event(channel, &e));
		CHECK(e->event == RDMA_CM_EVENT_DEVICE_REMOVAL && (e->id == a || e->id == b));
		heard |= e->id == a ? 1 : 2;
		RETURNS(0, rdma_ack_cm_event(e));
	}
	CHECK(heard == 3); /* each, and not the one that has no device */
	struct pollfd p = {.fd = channel->fd, .events = POLLIN};
	CHECK(poll(&p, 1, 0) == 1);
	FAILS(ENODEV, rdma_get_cm_event(channel, &e) == -1);
	FAILS(ENODEV, !rdma_create_event_channel());
	act("start");

	struct rdma_event_channel *anew = rdma_create_event_channel();
	NEED(anew);
	struct rdma_cm_id *c = bound(anew, 7001);
	struct ibv_device_attr attr;
	CHECK(c->verbs != a->verbs && !ibv_query_device(c->verbs, &attr));
	FAILS(ENODEV, rdma_migrate_id(a, anew) == -1);
	FAILS(ENODEV, rdma_listen(a, 0) == -1);
	RETURNS(0, rdma_destroy_id(c));
	rdma_destroy_event_channel(anew);
	RETURNS(0, rdma_destroy_id(a));
	RETURNS(0, rdma_destroy_id(b));
	RETURNS(0, rdma_destroy_id(idle));
	rdma_destroy_event_channel(channel);
	make(&later);
	unmake(&later);
	RETURNS(0, ibv_destroy_qp(qp));
	unmake(&s);
	return failures != 0;
}
