// SPDX-License-Identifier: Apache-2.0
/*
 * Children of a process whose other threads are using every lock of the libraries, or wait for one
 * another, at the time of the fork. In a child no call waits for a thread that it does not have,
 * and nothing that it does takes an event from its parent.
 */
#include "net.h"
#include "setup.h"

#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 150

static struct setup s;
static struct ibv_qp *qp;
static struct ibv_cq *spare, *unacknowledged;
static struct rdma_event_channel *events;
static struct rdma_cm_id *id;
static struct sockaddr_in listener_addr;
static int listener;
static atomic_bool stop;

/* The channel's lock, those of queues, the context's and the connection's. */
static void use_queues(void)
{
	struct ibv_cq *cq = ibv_create_cq(s.context, 4, NULL, s.channel, 0), *got;
	struct ibv_qp_init_attr init = rc_attr(&s);
	void *context;
	init.send_cq = init.recv_cq = s.cq;
	struct ibv_qp *q = ibv_create_qp(s.pd, &init);
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE}, *bad;
	struct ibv_wc wc[8];
	REQUIRE(cq && q);
	RETURNS(0, ibv_req_notify_cq(s.cq, 0));
	RETURNS(0, ibv_post_send(qp, &wr, &bad));
	for (int n = 0; !n;)
		REQUIRE((n = ibv_poll_cq(s.cq, 1, wc)) >= 0);
	while (!ibv_get_cq_event(s.channel, &got, &context))
		ibv_ack_cq_events(got, 1);
	REQUIRE(!ibv_destroy_qp(q) && !ibv_destroy_cq(cq));
}

static void poll_queue(void)
{
	struct ibv_cq *cq;
	void *context;
	CHECK(ibv_get_cq_event(s.channel, &cq, &context) || (ibv_ack_cq_events(cq, 1), true));
	sched_yield();
}

static void use_identifiers(void)
{
	struct rdma_cm_event *e;
	struct rdma_cm_id *other;
	FAILS(EAGAIN, rdma_get_cm_event(events, &e) == -1);
	REQUIRE(!rdma_create_id(events, &other, NULL, RDMA_PS_TCP) && !rdma_destroy_id(other));
}

static void use_socket(void)
{
	struct sockaddr_in at;
	socklen_t len = sizeof at;
	CHECK(!rgetsockname(listener, (struct sockaddr *)&at, &len));
}

static void open_sockets(void)
{
	struct sockaddr_in at;
	CHECK(!rclose(listening_socket(&at)));
}

static void *repeat(void *function)
{
	while (!stop)
		((void (*)(void))function)();
	return NULL;
}

/* Waits until main acknowledges an event of the queue. */
static void *destroy_unacknowledged(void *arg)
{
	(void)arg;
	REQUIRE(!ibv_destroy_cq(unacknowledged));
	return NULL;
}

static void *accept_socket(void *arg)
{
	(void)arg;
	int fd = raccept(listener, NULL, NULL);
	REQUIRE(fd >= 0 && !rclose(fd));
	return NULL;
}

static struct ibv_cq *queue_with_event(void)
{
	struct ibv_cq *cq = ibv_create_cq(s.context, 4, NULL, s.channel, 0), *got;
	struct ibv_qp_init_attr init = rc_attr(&s);
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *q = ibv_create_qp(s.pd, &init);
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE}, *bad;
	void *context;
	REQUIRE(cq && q);
	connect_qp(&s, q, q->qp_num);
	RETURNS(0, ibv_req_notify_cq(cq, 0));
	RETURNS(0, ibv_post_send(q, &wr, &bad));
	REQUIRE(!ibv_get_cq_event(s.channel, &got, &context) && got == cq);
	REQUIRE(!ibv_destroy_qp(q));
	return cq;
}

/* Uses what it inherited, closes it, and opens its own. */
static int child(int number)
{
	struct ibv_wc wc;
	struct ibv_cq *cq;
	struct ibv_async_event async;
	struct rdma_cm_event *e;
	void *context;
	limit_time(30);
	list_devices();
	look_for_devices();
	FAILS(EIO, ibv_get_cq_event(s.channel, &cq, &context) == -1);
	FAILS(EIO, ibv_get_async_event(s.context, &async) == -1);
	FAILS(ENODEV, rdma_get_cm_event(events, &e) == -1);
	if (number % 3) { /* another thread may have been using it, then the child has it not */
		CHECK(!rclose(listener) || errno == EBADF);
		RETURNS(0, rdma_destroy_id(id));
		rdma_destroy_event_channel(events);
		CHECK(ibv_poll_cq(s.cq, 1, &wc) <= 0);
		RETURNS(0, ibv_destroy_qp(qp));
		RETURNS(0, ibv_destroy_cq(spare));
	}
	if (number % 3 == 2) {
		struct ibv_context *own = open_first();
		RETURNS(0, ibv_close_device(own));
		open_sockets();
	}
	return failures != 0;
}

static void fork_children(void)
{
	for (int i = 0; i < CHILDREN && !failures; i++) {
		int status = -1;
		pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (!pid)
			_exit(child(i));
		REQUIRE(waitpid(pid, &status, 0) == pid);
		if (status) {
			fprintf(stderr, "child %d: status %#x\n", i, status);
			failures++;
		}
	}
}

int main(void)
{
	void (*const uses[])(void) = {list_devices, use_queues,	  poll_queue,	   use_identifiers,
				      use_socket,   open_sockets, look_for_devices};
	enum {
		USES = sizeof uses / sizeof *uses
	};
	pthread_t threads[USES], waiting[2];
	setup_open(&s);
	qp = loopback_qp(&s);
	REQUIRE((events = rdma_create_event_channel()) &&
		!rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	REQUIRE(!fcntl(events->fd, F_SETFL, O_NONBLOCK));
	REQUIRE((spare = ibv_create_cq(s.context, 4, NULL, s.channel, 0)));
	listener = listening_socket(&listener_addr);
	unacknowledged = queue_with_event();
	REQUIRE(!fcntl(s.channel->fd, F_SETFL, O_NONBLOCK));
	struct ibv_cq *cq = unacknowledged;

	REQUIRE(!pthread_create(&waiting[0], NULL, destroy_unacknowledged, NULL));
	REQUIRE(!pthread_create(&waiting[1], NULL, accept_socket, NULL));
	for (int i = 0; i < USES; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, repeat, (void *)uses[i]));
	fork_children();
	stop = true;
	for (int i = 0; i < USES; i++)
		REQUIRE(!pthread_join(threads[i], NULL));
	ibv_ack_cq_events(cq, 1);
	REQUIRE(!pthread_join(waiting[0], NULL));
	int fd = rsocket(AF_INET, SOCK_STREAM, 0); /* the listener has lost nothing */
	REQUIRE(!rconnect(fd, (struct sockaddr *)&listener_addr, sizeof listener_addr));
	REQUIRE(!pthread_join(waiting[1], NULL));
	CHECK(!rclose(fd) && !rclose(listener));
	RETURNS(0, rdma_destroy_id(id));
	rdma_destroy_event_channel(events);
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_cq(spare));
	setup_close(&s);
	return failures != 0;
}
