// SPDX-License-Identifier: Apache-2.0
/*
 * Closes all unknown descriptors while a device is open, as daemon-like programs do, and opens
 * its own files, which get the same numbers. The library must not touch these files. The device
 * behaves as if the daemon were gone; a device opened later works.
 */
#include "setup.h"

#include <rdma/rdma_cma.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAIRS 30

static int own[2 * PAIRS];

/*
 * The replacements are sockets of the library's type, on which it could send and receive, and of
 * another type.
 */
static void replace_fds(void)
{
	REQUIRE(!close_range(3, ~0u, 0));
	for (int i = 0; i < PAIRS; i++)
		REQUIRE(!socketpair(AF_UNIX, i % 2 ? SOCK_STREAM : SOCK_SEQPACKET, 0, own + 2 * i));
}

static void check_untouched(void)
{
	char byte;
	for (int i = 0; i < 2 * PAIRS; i++)
		FAILS(EAGAIN, recv(own[i], &byte, 1, MSG_DONTWAIT) == -1);
}

int main(void)
{
	struct setup s, later;
	setup_open(&s);
	struct ibv_qp *qp = loopback_qp(&s);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	REQUIRE(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	replace_fds();

	struct ibv_port_attr port;
	struct ibv_recv_wr *bad;
	struct ibv_wc wc;
	usleep(20000); /* until the engine sleeps: posting then writes to the doorbell descriptor */
	ibv_post_recv(qp, &(struct ibv_recv_wr){.wr_id = 1}, &bad);
	struct ibv_send_wr *bad_send;
	ibv_post_send(qp, &(struct ibv_send_wr){.opcode = IBV_WR_SEND}, &bad_send);
	RETURNS(EIO, ibv_query_port(s.context, 1, &port));
	RETURNS(EIO, ibv_post_recv(qp, &(struct ibv_recv_wr){.wr_id = 1}, &bad));
	FAILS(EIO, !ibv_alloc_pd(s.context));
	while (ibv_poll_cq(s.cq, 1, &wc) > 0)
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
	RETURNS(0, ibv_destroy_qp(qp));
	setup_close(&s);
	check_untouched();

	setup_open(&later);
	qp = loopback_qp(&later);
	RETURNS(0, ibv_destroy_qp(qp));
	setup_close(&later);
	check_untouched();
	CHECK(rdma_bind_addr(id, NULL) == -1); /* its session is lost */
	struct rdma_event_channel *new_channel = rdma_create_event_channel();
	REQUIRE(new_channel);
	rdma_destroy_event_channel(new_channel);
	RETURNS(0, rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	check_untouched();
	return failures != 0;
}
