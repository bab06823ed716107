// SPDX-License-Identifier: Apache-2.0
/*
 * Threads that are cancelled in calls of the libraries. A call that waits for an event, a
 * connection or data ends; all others finish first. Either way no lock stays held, and nothing is
 * lost: the calls work again in another thread, and the sanitizer finds no leak.
 */
#include "net.h"
#include "setup.h"

#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <unistd.h>

static struct setup s;
static struct ibv_qp *qp, *idle_qp;
static struct ibv_srq *srq;
static struct rdma_event_channel *events;
static struct sockaddr_in listener_addr;
static int listener, stream[2], datagrams;

static void open_and_close(void)
{
	REQUIRE(!ibv_close_device(open_first()));
}

static void register_memory(void)
{
	static char buf[64];
	struct ibv_pd *pd = ibv_alloc_pd(s.context);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, 0);
	REQUIRE(pd && mr && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
}

static void create_queues(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(s.context);
	struct ibv_cq *cq = ibv_create_cq(s.context, 4, NULL, channel, 0);
	REQUIRE(channel && cq && !ibv_resize_cq(cq, 100));
	struct ibv_qp_init_attr init = rc_attr(&s);
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *q = ibv_create_qp(s.pd, &init);
	REQUIRE(q && !ibv_destroy_qp(q) && !ibv_destroy_cq(cq));
	REQUIRE(!ibv_destroy_comp_channel(channel));
}

/* The engine sleeps before each of these: posting wakes it with a system call. */
static void post_send(void)
{
	struct ibv_sge sge = {(uintptr_t)s.buf, 8, s.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_RDMA_WRITE,
				 .wr.rdma = {(uintptr_t)s.buf + 64, s.mr->rkey}},
			   *bad;
	RETURNS(0, ibv_post_send(qp, &wr, &bad));
}

static void post_receives(void)
{
	struct ibv_recv_wr wr = {0}, *bad;
	RETURNS(0, ibv_post_srq_recv(srq, &wr, &bad));
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR}, reset = {.qp_state = IBV_QPS_RESET};
	RETURNS(0, ibv_modify_qp(idle_qp, &error, IBV_QP_STATE));
	RETURNS(0, ibv_post_recv(idle_qp, &wr, &bad));
	RETURNS(0, ibv_modify_qp(idle_qp, &reset, IBV_QP_STATE));
	connect_qp(&s, idle_qp, idle_qp->qp_num);
}

/* Often enough that the library checks whether the daemon is alive. */
static void poll_empty(void)
{
	struct ibv_cq *cq = ibv_create_cq(s.context, 4, NULL, NULL, 0);
	struct ibv_wc wc;
	REQUIRE(cq);
	for (int i = 0; i < 3000; i++)
		RETURNS(0, ibv_poll_cq(cq, 1, &wc));
	RETURNS(0, ibv_req_notify_cq(cq, 0));
	RETURNS(0, ibv_destroy_cq(cq));
}

/* Of an object whose event was not taken: the library takes it out of the socket. */
static void destroy_with_event(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(s.context);
	struct ibv_cq *cq = ibv_create_cq(s.context, 4, NULL, channel, 0);
	struct ibv_qp_init_attr init = rc_attr(&s);
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *q = ibv_create_qp(s.pd, &init);
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE}, *bad;
	REQUIRE(channel && cq && q);
	connect_qp(&s, q, q->qp_num);
	RETURNS(0, ibv_req_notify_cq(cq, 0));
	RETURNS(0, ibv_post_send(q, &wr, &bad));
	struct pollfd p = {.fd = channel->fd, .events = POLLIN};
	while (p.revents != POLLIN) {
		int state;
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
		REQUIRE(poll(&p, 1, -1) == 1);
		pthread_setcancelstate(state, &state);
	}
	REQUIRE(!ibv_destroy_qp(q) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
}

static void manage_connection(void)
{
	struct rdma_event_channel *c = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct sockaddr_in any = nic_addr("192.0.2.1", 0);
	REQUIRE(c && !rdma_create_id(c, &id, NULL, RDMA_PS_TCP));
	REQUIRE(!rdma_bind_addr(id, (struct sockaddr *)&any) && !rdma_listen(id, 1));
	REQUIRE(!rdma_migrate_id(id, events) && !rdma_destroy_id(id));
	rdma_destroy_event_channel(c);
}

static void open_sockets(void)
{
	struct sockaddr_in at;
	REQUIRE(!rclose(listening_socket(&at)));
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	REQUIRE(fd >= 0 && !rclose(fd));
}

static void use_sockets(void)
{
	struct sockaddr_in at;
	socklen_t len = sizeof at;
	char c = 0;
	struct pollfd p = {.fd = stream[0], .events = POLLOUT};
	CHECK(rsend(stream[0], &c, 1, 0) == 1 && rpoll(&p, 1, -1) == 1);
	CHECK(!rgetsockname(listener, (struct sockaddr *)&at, &len));
}

static void get_completion_event(void)
{
	struct ibv_cq *cq;
	void *context;
	REQUIRE(!ibv_get_cq_event(s.channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);
}

static void get_async_event(void)
{
	struct ibv_async_event e;
	ibv_get_async_event(s.context, &e);
}

static void get_cm_event(void)
{
	struct rdma_cm_event *e;
	rdma_get_cm_event(events, &e);
}

static void accept_socket(void)
{
	raccept(listener, NULL, NULL);
}

static void receive(void)
{
	char c;
	rrecv(stream[0], &c, 1, 0);
}

static void receive_datagram(void)
{
	char c;
	rrecv(datagrams, &c, 1, 0);
}

static void poll_sockets(void)
{
	struct pollfd p[2] = {{.fd = listener, .events = POLLIN},
			      {.fd = stream[0], .events = POLLIN}};
	rpoll(p, 2, -1);
}

static void select_sockets(void)
{
	fd_set set;
	FD_ZERO(&set);
	FD_SET(listener, &set);
	rselect(listener + 1, &set, NULL, NULL, NULL);
}

static const struct call {
	const char *name;
	void (*function)(void);
	bool waits;
} calls[] = {
	{"list devices", list_devices, false},
	{"open and close a device", open_and_close, false},
	{"register memory", register_memory, false},
	{"create queues", create_queues, false},
	{"post a send", post_send, false},
	{"post receives", post_receives, false},
	{"poll an empty queue", poll_empty, false},
	{"destroy a queue with an event", destroy_with_event, false},
	{"manage a connection", manage_connection, false},
	{"open sockets", open_sockets, false},
	{"use sockets", use_sockets, false},
	{"look for devices", look_for_devices, false},
	{"wait for a completion event", get_completion_event, true},
	{"wait for an async event", get_async_event, true},
	{"wait for a connection event", get_cm_event, true},
	{"accept", accept_socket, true},
	{"receive", receive, true},
	{"receive a datagram", receive_datagram, true},
	{"poll sockets", poll_sockets, true},
	{"select sockets", select_sockets, true},
};

static atomic_bool finished;

/* The cancellation is pending during the call: the first function that acts on it ends the thread.
 */
static void *cancelled_call(void *arg)
{
	const struct call *c = arg;
	pthread_cancel(pthread_self());
	c->function();
	finished = true;
	return NULL;
}

static void *receive_one(void *arg)
{
	(void)arg;
	receive();
	return NULL;
}

static void cancel_in(const struct call *c)
{
	pthread_t t;
	void *result;
	finished = false;
	usleep(60000); /* the engine sleeps; and the daemon is asked again for device paths */
	REQUIRE(!pthread_create(&t, NULL, cancelled_call, (void *)c));
	REQUIRE(!pthread_join(t, &result));
	if (finished == c->waits) {
		fprintf(stderr, "%s: %s\n", c->name,
			c->waits ? "returned" : "was cancelled half-way");
		failures++;
	}
	if (!c->waits)
		c->function(); /* finds no lock held */
}

/* Of two threads that wait on a socket, one polls for both. Either may be cancelled. */
static void cancel_one_of_two(void)
{
	char c = 0;
	for (int i = 0; i < 2; i++) {
		pthread_t t[2];
		for (int k = 0; k < 2; k++) {
			REQUIRE(!pthread_create(&t[k], NULL, receive_one, NULL));
			usleep(20000);
		}
		REQUIRE(!pthread_cancel(t[i]) && !pthread_join(t[i], NULL));
		CHECK(rsend(stream[1], &c, 1, 0) == 1);
		REQUIRE(!pthread_join(t[!i], NULL));
	}
}

static void *connect_stream(void *arg)
{
	(void)arg;
	stream[1] = rsocket(AF_INET, SOCK_STREAM, 0);
	REQUIRE(stream[1] >= 0);
	REQUIRE(!rconnect(stream[1], (struct sockaddr *)&listener_addr, sizeof listener_addr));
	return NULL;
}

static void open_stream(void)
{
	pthread_t t;
	REQUIRE(!pthread_create(&t, NULL, connect_stream, NULL));
	stream[0] = raccept(listener, NULL, NULL);
	REQUIRE(stream[0] >= 0 && !pthread_join(t, NULL));
}

int main(void)
{
	struct sockaddr_in any = nic_addr("192.0.2.1", 0);
	setup_open(&s);
	REQUIRE(!ibv_resize_cq(s.cq, 1000));
	struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 16, .max_sge = 1}};
	REQUIRE((srq = ibv_create_srq(s.pd, &srq_attr)));
	qp = loopback_qp(&s);
	idle_qp = loopback_qp(&s);
	REQUIRE((events = rdma_create_event_channel()));
	listener = listening_socket(&listener_addr);
	open_stream();
	datagrams = rsocket(AF_INET, SOCK_DGRAM, 0);
	REQUIRE(datagrams >= 0 && !rbind(datagrams, (struct sockaddr *)&any, sizeof any));
	limit_time(50); /* a lock that stays held is a hang */

	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		cancel_in(&calls[i]);
	cancel_one_of_two();
	/* What was cancelled left no event behind, and takes the next one. */
	RETURNS(0, ibv_req_notify_cq(s.cq, 0));
	post_send();
	get_completion_event();
	int first = stream[0], second = stream[1];
	open_stream();
	CHECK(!rclose(stream[0]) && !rclose(stream[1]) && !rclose(first) && !rclose(second));
	CHECK(!rclose(datagrams) && !rclose(listener));
	rdma_destroy_event_channel(events);
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_qp(idle_qp));
	RETURNS(0, ibv_destroy_srq(srq));
	setup_close(&s);
	return failures != 0;
}
