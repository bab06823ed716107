/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers that connect, through identifiers and through sockets.
 */
#ifndef TORTURE_NET_H
#define TORTURE_NET_H

#include "torture.h"

#include <rdma/rdma_cma.h>

static atomic_int cm_port, stream_port; /* 0: there is no listener */

static struct ibv_qp_init_attr cm_qp_attr(void)
{
	return (struct ibv_qp_init_attr){
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
}

static void accept_request(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = cm_qp_attr();
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
	/* The peer may have been cancelled, or may have given up. */
	if (below(8) && !rdma_create_qp(id, NULL, &attr)) {
		if (!rdma_accept(id, &param))
			return;
	} else {
		rdma_reject(id, NULL, 0);
	}
	id->context = (void *)1; /* is destroyed when its event is acknowledged */
}

static void end_identifier(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	MUST(rdma_destroy_id(id));
}

#define MAX_ACCEPTED 64

static void serve_events(struct rdma_event_channel *ch)
{
	struct rdma_cm_id *open[MAX_ACCEPTED];
	int n = 0;
	while (!stop) {
		struct rdma_cm_event *e;
		if (!readable(ch->fd, 10))
			continue;
		if (rdma_get_cm_event(ch, &e))
			break; /* the daemon is gone */
		struct rdma_cm_id *id = e->id, *ended = NULL;
		switch (e->event) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			id->context = NULL;
			accept_request(id);
			if (id->context || n == MAX_ACCEPTED)
				ended = id;
			else
				open[n++] = id;
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
		case RDMA_CM_EVENT_CONNECT_ERROR:
		case RDMA_CM_EVENT_UNREACHABLE:
		case RDMA_CM_EVENT_REJECTED:
			for (int i = 0; i < n; i++) {
				if (open[i] != id)
					continue;
				open[i] = open[--n];
				ended = id;
			}
			break;
		default:
			break;
		}
		MUST(rdma_ack_cm_event(e));
		if (ended)
			end_identifier(ended);
	}
	while (n)
		end_identifier(open[--n]);
}

static void *cm_server(void *arg)
{
	(void)arg;
	struct sockaddr_in any = nic_addr("192.0.2.1", 0);
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	if (!OK(ch != NULL))
		return NULL;
	if (OK(!rdma_create_id(ch, &listener, NULL, RDMA_PS_TCP))) {
		if (OK(!rdma_bind_addr(listener, (struct sockaddr *)&any)) &&
		    OK(!rdma_listen(listener, 16))) {
			cm_port = ntohs(rdma_get_src_port(listener));
			serve_events(ch);
			cm_port = 0;
		}
		MUST(rdma_destroy_id(listener));
	}
	rdma_destroy_event_channel(ch);
	return NULL;
}

/* Calls without a channel wait for the event that completes them. */
static void *cm_client(void *arg)
{
	(void)arg;
	while (!stop) {
		struct sockaddr_in to = nic_addr("192.0.2.1", cm_port);
		struct ibv_qp_init_attr attr = cm_qp_attr();
		struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
		struct rdma_cm_id *id;
		if (!cm_port) {
			usleep(1000);
			continue;
		}
		if (!OK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP)))
			return NULL;
		if (OK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000)) &&
		    OK(!rdma_resolve_route(id, 2000)) && OK(!rdma_create_qp(id, NULL, &attr))) {
			if (below(8) && !rdma_connect(id, &param)) { /* or it is rejected */
				count(CONNECTIONS);
				if (below(2))
					rdma_disconnect(id);
			}
			rdma_destroy_qp(id);
		}
		MUST(rdma_destroy_id(id));
	}
	return NULL;
}

static void echo(int fd)
{
	char buf[512];
	struct pollfd p = {.fd = fd, .events = POLLIN};
	while (!stop) {
		int ready = rpoll(&p, 1, 10);
		ssize_t n = ready > 0 ? rrecv(fd, buf, sizeof buf, MSG_DONTWAIT) : 0;
		if (ready > 0 && n <= 0)
			break;
		if (n > 0 && rsend(fd, buf, (size_t)n, 0) < 0)
			break;
	}
	MUST(rclose(fd));
}

static void *stream_server(void *arg)
{
	(void)arg;
	struct sockaddr_in at = nic_addr("192.0.2.1", 0);
	socklen_t len = sizeof at;
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	if (!OK(fd >= 0))
		return NULL;
	if (OK(!rbind(fd, (struct sockaddr *)&at, len)) && OK(!rlisten(fd, 16)) &&
	    OK(!rgetsockname(fd, (struct sockaddr *)&at, &len))) {
		stream_port = ntohs(at.sin_port);
		while (!stop) {
			struct pollfd p = {.fd = fd, .events = POLLIN};
			int ready = rpoll(&p, 1, 10);
			if (ready < 0 || p.revents & POLLERR)
				break;
			int c = ready ? raccept(fd, NULL, NULL) : -1;
			if (c >= 0)
				echo(c);
			else if (ready && errno != EAGAIN)
				break;
		}
		stream_port = 0;
	}
	MUST(rclose(fd));
	return NULL;
}

/* The server may end while a client is connecting or transfers. */
static void transfer(int fd)
{
	char out[256] = {1}, in[256];
	struct sockaddr_in to = nic_addr("192.0.2.1", stream_port);
	if (rconnect(fd, (struct sockaddr *)&to, sizeof to))
		return;
	for (int i = 0; i < 20 && !stop; i++) {
		size_t n = 1 + below(sizeof out);
		struct timeval limit = {.tv_usec = 100000};
		rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
		memset(out, i, n);
		if (rsend(fd, out, n, 0) != (ssize_t)n ||
		    rrecv(fd, in, n, MSG_WAITALL) != (ssize_t)n)
			return;
		OK(!memcmp(in, out, n));
		count(SOCKETS);
	}
}

static void *socket_client(void *arg)
{
	(void)arg;
	while (!stop) {
		if (!stream_port) {
			usleep(1000);
			continue;
		}
		int fd = rsocket(AF_INET, SOCK_STREAM, 0);
		if (!OK(fd >= 0))
			return NULL;
		transfer(fd);
		MUST(rclose(fd));
	}
	return NULL;
}

/* Two sockets that exchange datagrams, which may be lost. */
static void *datagram_worker(void *arg)
{
	(void)arg;
	while (!stop) {
		int fd[2];
		struct sockaddr_in at[2] = {nic_addr("192.0.2.1", 0), nic_addr("192.0.2.2", 0)};
		socklen_t len = sizeof at[0];
		bool ok = true;
		for (int i = 0; i < 2; i++) {
			fd[i] = rsocket(AF_INET, SOCK_DGRAM, 0);
			ok = OK(fd[i] >= 0) && ok &&
			     OK(!rbind(fd[i], (struct sockaddr *)&at[i], len)) &&
			     OK(!rgetsockname(fd[i], (struct sockaddr *)&at[i], &len));
		}
		for (int i = 0; ok && !stop && i < 20; i++) {
			char c = (char)i;
			struct pollfd p = {.fd = fd[1], .events = POLLIN};
			rsendto(fd[0], &c, 1, MSG_DONTWAIT, (struct sockaddr *)&at[1], len);
			rpoll(&p, 1, 5);
			if (rrecv(fd[1], &c, 1, MSG_DONTWAIT) == 1)
				count(SOCKETS);
		}
		for (int i = 0; i < 2; i++)
			if (fd[i] >= 0)
				MUST(rclose(fd[i]));
	}
	return NULL;
}

#endif
