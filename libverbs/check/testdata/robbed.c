// SPDX-License-Identifier: Apache-2.0
/*
 * Closes every descriptor that it does not know while a device is open, as those do that make
 * themselves a daemon, and has files of its own behind the numbers then. They stay its own: the
 * device is as good as gone, and what is opened anew works.
 */
#include "setup.h"

#include <rdma/rdma_cma.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAIRS 30

static int own[2 * PAIRS];

/* Sockets of the kind that the library has, on which it could ask and wait, and of another one. */
static void rob(void)
{
	NEED(!close_range(3, ~0u, 0));
	for (int i = 0; i < PAIRS; i++)
		NEED(!socketpair(AF_UNIX, i % 2 ? SOCK_STREAM : SOCK_SEQPACKET, 0, own + 2 * i));
}

static void is_intact(void)
{
	char byte;
	for (int i = 0; i < 2 * PAIRS; i++)
		FAILS(EAGAIN, recv(own[i], &byte, 1, MSG_DONTWAIT) == -1);
}

int main(void)
{
	struct setup s, later;
	make(&s);
	struct ibv_qp *qp = loop(&s);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	NEED(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	rob();

	struct ibv_port_attr port;
	struct ibv_recv_wr *bad;
	struct ibv_wc wc;
	usleep(20000); /* the engine sleeps: who posts would write to a descriptor */
	ibv_post_recv(qp, &(struct ibv_recv_wr){.wr_id = 1}, &bad);
	struct ibv_send_wr *bad_send;
	ibv_post_send(qp, &(struct ibv_send_wr){.opcode = IBV_WR_SEND}, &bad_send);
	RETURNS(EIO, ibv_query_port(s.context, 1, &port));
	RETURNS(EIO, ibv_post_recv(qp, &(struct ibv_recv_wr){.wr_id = 1}, &bad));
	FAILS(EIO, !ibv_alloc_pd(s.context));
	while (ibv_poll_cq(s.cq, 1, &wc) > 0)
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
	RETURNS(0, ibv_destroy_qp(qp));
	unmake(&s);
	is_intact();

	make(&later);
	qp = loop(&later);
	RETURNS(0, ibv_destroy_qp(qp));
	unmake(&later);
	is_intact();
	CHECK(rdma_bind_addr(id, NULL) == -1); /* of the session that was lost */
	struct rdma_event_channel *anew = rdma_create_event_channel();
	NEED(anew);
	rdma_destroy_event_channel(anew);
	RETURNS(0, rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	is_intact();
	return failures != 0;
}
