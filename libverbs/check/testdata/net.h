/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of the NICs, and connected sockets. 192.0.2.1 is an address of nic0, 192.0.2.2 of nic1.
 */
#ifndef NET_H
#define NET_H

#include "check.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <string.h>

static inline struct sockaddr_in nic_addr(const char *ip, int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	REQUIRE(inet_pton(AF_INET, ip, &a.sin_addr) == 1);
	return a;
}

/* A socket that listens on any port of nic0. */
static inline int listening_socket(struct sockaddr_in *at)
{
	socklen_t len = sizeof *at;
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	*at = nic_addr("192.0.2.1", 0);
	REQUIRE(fd >= 0 && !rbind(fd, (struct sockaddr *)at, len) && !rlisten(fd, 16));
	REQUIRE(!rgetsockname(fd, (struct sockaddr *)at, &len));
	return fd;
}

/* An endpoint for port of nic1, which was given data for its first connection. */
static inline struct rdma_cm_id *endpoint_with_data(const char *port, char *given)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP},
			     *ai;
	struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}};
	struct rdma_cm_id *id;
	REQUIRE(!rdma_getaddrinfo("192.0.2.2", port, &hints, &ai));
	ai->ai_connect = given;
	ai->ai_connect_len = strlen(given);
	REQUIRE(!rdma_create_ep(&id, ai, NULL, &init));
	ai->ai_connect = NULL;
	ai->ai_connect_len = 0;
	rdma_freeaddrinfo(ai);
	return id;
}

#endif
