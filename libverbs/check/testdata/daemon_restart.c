// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon ends while the program uses it, and another one starts on the same socket; the test
 * does this when the program asks. Objects of the old daemon report its end and can be
 * destroyed. New objects work.
 */
#include "setup.h"

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

/* Requests an action of the test and waits until it is done. */
static void request_action(const char *what)
{
	char line[16];
	puts(what);
	fflush(stdout);
	REQUIRE(fgets(line, sizeof line, stdin));
}

static struct rdma_cm_id *bound_id(struct rdma_event_channel *channel, int port)
{
	struct rdma_cm_id *id;
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
	REQUIRE(inet_pton(AF_INET, "192.0.2.1", &addr.sin_addr) == 1);
	REQUIRE(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	REQUIRE(!rdma_bind_addr(id, (struct sockaddr *)&addr));
	return id;
}

static void check_device(struct setup *s, struct ibv_qp *qp)
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
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex attr_ex;
	struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	RETURNS(EIO, ibv_query_device(s->context, &attr));
	RETURNS(EIO, ibv_query_device_ex(s->context, NULL, &attr_ex));
	RETURNS(EIO, ibv_query_rt_values_ex(s->context, &values));
	RETURNS(EIO, ibv_query_port(s->context, 1, &port));
	RETURNS(EIO, ibv_post_recv(qp, &wr, &bad));
	RETURNS(0, ibv_get_cq_event(s->channel, &cq, &context));
	CHECK(cq == s->cq && context == s);
	ibv_ack_cq_events(cq, 1);
	FAILS(EIO, ibv_get_cq_event(s->channel, &cq, &context) == -1);
	int n = ibv_poll_cq(s->cq, 32, wc); /* the three receives that were posted */
	CHECK(n == 3 && wc[2].wr_id == 2 && wc[2].status == IBV_WC_WR_FLUSH_ERR);
	FAILS(EIO, ibv_poll_cq(s->cq, 32, wc) == -1);
	RETURNS(EIO, ibv_req_notify_cq(s->cq, 0));
	FAILS(EIO, !ibv_alloc_pd(s->context));
}

int main(void)
{
	struct setup s, later;
	setup_open(&s);
	struct ibv_qp *qp = loopback_qp(&s);
	struct ibv_recv_wr *bad;
	for (int i = 0; i < 3; i++)
		REQUIRE(!ibv_post_recv(qp, &(struct ibv_recv_wr){.wr_id = i}, &bad));
	struct rdma_event_channel *channel = rdma_create_event_channel();
	REQUIRE(channel);
	struct rdma_cm_id *a = bound_id(channel, 7001), *b = bound_id(channel, 7002), *idle;
	REQUIRE(!rdma_create_id(channel, &idle, NULL, RDMA_PS_TCP));
	request_action("end");

	check_device(&s, qp);
	struct rdma_cm_event *e;
	unsigned int removed = 0;
	for (int i = 0; i < 2; i++) {
		REQUIRE(!rdma_get_cm_event(channel, &e));
		CHECK(e->event == RDMA_CM_EVENT_DEVICE_REMOVAL && (e->id == a || e->id == b));
		removed |= e->id == a ? 1 : 2;
		RETURNS(0, rdma_ack_cm_event(e));
	}
	CHECK(removed == 3); /* each once, and none for the identifier without a device */
	struct pollfd p = {.fd = channel->fd, .events = POLLIN};
	CHECK(poll(&p, 1, 0) == 1);
	FAILS(ENODEV, rdma_get_cm_event(channel, &e) == -1);
	FAILS(ENODEV, !rdma_create_event_channel());
	request_action("start");

	struct rdma_event_channel *new_channel = rdma_create_event_channel();
	REQUIRE(new_channel);
	struct rdma_cm_id *c = bound_id(new_channel, 7001);
	struct ibv_device_attr attr;
	CHECK(c->verbs != a->verbs && !ibv_query_device(c->verbs, &attr));
	FAILS(ENODEV, rdma_migrate_id(a, new_channel) == -1);
	FAILS(ENODEV, rdma_listen(a, 0) == -1);
	RETURNS(0, rdma_destroy_id(c));
	rdma_destroy_event_channel(new_channel);
	RETURNS(0, rdma_destroy_id(a));
	RETURNS(0, rdma_destroy_id(b));
	RETURNS(0, rdma_destroy_id(idle));
	rdma_destroy_event_channel(channel);
	setup_open(&later);
	setup_close(&later);
	RETURNS(0, ibv_destroy_qp(qp));
	setup_close(&s);
	return failures != 0;
}
