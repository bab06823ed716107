// SPDX-License-Identifier: Apache-2.0
#include "rdmacm/rdmacm.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>

static void *copy(const void *p, size_t n)
{
	void *q = malloc(n);
	if (q)
		memcpy(q, p, n);
	return q;
}

/* Converts one result of getaddrinfo. */
static struct rdma_addrinfo *to_addrinfo(const struct addrinfo *ai,
					 const struct rdma_addrinfo *hints)
{
	struct rdma_addrinfo *r = calloc(1, sizeof *r);
	if (!r)
		return NULL;
	bool datagrams = ai->ai_socktype == SOCK_DGRAM;
	r->ai_flags = hints->ai_flags;
	r->ai_family = ai->ai_family;
	r->ai_qp_type = hints->ai_qp_type ? hints->ai_qp_type : datagrams ? IBV_QPT_UD : IBV_QPT_RC;
	r->ai_port_space = hints->ai_port_space ? hints->ai_port_space
			   : datagrams		? RDMA_PS_UDP
						: RDMA_PS_TCP;
	struct sockaddr *addr = copy(ai->ai_addr, ai->ai_addrlen);
	char *name = ai->ai_canonname ? strdup(ai->ai_canonname) : NULL;
	if (!addr || (ai->ai_canonname && !name)) {
		free(addr);
		free(name);
		free(r);
		return NULL;
	}
	if (r->ai_flags & RAI_PASSIVE) {
		r->ai_src_addr = addr;
		r->ai_src_len = ai->ai_addrlen;
		r->ai_src_canonname = name;
		return r;
	}
	r->ai_dst_addr = addr;
	r->ai_dst_len = ai->ai_addrlen;
	r->ai_dst_canonname = name;
	if (hints->ai_src_len && hints->ai_src_addr) {
		r->ai_src_addr = copy(hints->ai_src_addr, hints->ai_src_len);
		r->ai_src_len = hints->ai_src_len;
		if (!r->ai_src_addr) {
			rdma_freeaddrinfo(r);
			return NULL;
		}
	}
	return r;
}

/* Without a node and a service, the result is the destination or source address of the hints. */
static int from_hints(const struct rdma_addrinfo *hints, struct rdma_addrinfo **res)
{
	/* Without a destination, the result describes the source only, as for a listener. */
	bool passive = hints->ai_flags & RAI_PASSIVE || !hints->ai_dst_len;
	struct sockaddr *addr = passive ? hints->ai_src_addr : hints->ai_dst_addr;
	socklen_t len = passive ? hints->ai_src_len : hints->ai_dst_len;
	if (!addr || !len)
		return cm_result(EINVAL);
	struct addrinfo ai = {
		.ai_family = addr->sa_family,
		.ai_socktype = hints->ai_port_space == RDMA_PS_UDP ? SOCK_DGRAM : SOCK_STREAM,
		.ai_addr = addr,
		.ai_addrlen = len,
	};
	struct rdma_addrinfo as = *hints;
	if (passive)
		as.ai_flags |= RAI_PASSIVE;
	*res = to_addrinfo(&ai, &as);
	if (!*res)
		return cm_result(ENOMEM);
	(*res)->ai_flags = hints->ai_flags;
	return 0;
}

SR_PUBLIC int rdma_getaddrinfo(const char *node, const char *service,
			       const struct rdma_addrinfo *hints, struct rdma_addrinfo **res)
{
	static const struct rdma_addrinfo none;
	if (!hints)
		hints = &none;
	if (!node && !service)
		return from_hints(hints, res);
	struct addrinfo want = {.ai_socktype = SOCK_STREAM}, *found;
	if (hints->ai_qp_type == IBV_QPT_UD || hints->ai_port_space == RDMA_PS_UDP ||
	    hints->ai_port_space == RDMA_PS_IPOIB)
		want.ai_socktype = SOCK_DGRAM;
	if (hints->ai_flags & RAI_PASSIVE)
		want.ai_flags |= AI_PASSIVE;
	if (hints->ai_flags & RAI_NUMERICHOST)
		want.ai_flags |= AI_NUMERICHOST;
	if (hints->ai_family == AF_INET || hints->ai_family == AF_INET6)
		want.ai_family = hints->ai_family;
	int error = getaddrinfo(node, service, &want, &found);
	if (error)
		return error;
	struct rdma_addrinfo *first = NULL, **end = &first;
	for (struct addrinfo *ai = found; ai; ai = ai->ai_next) {
		if (!cm_addr_len(ai->ai_addr))
			continue;
		*end = to_addrinfo(ai, hints);
		if (!*end)
			break;
		end = &(*end)->ai_next;
	}
	freeaddrinfo(found);
	if (!first)
		return cm_result(ENOMEM);
	*res = first;
	return 0;
}

SR_PUBLIC void rdma_freeaddrinfo(struct rdma_addrinfo *res)
{
	while (res) {
		struct rdma_addrinfo *next = res->ai_next;
		free(res->ai_src_addr);
		free(res->ai_dst_addr);
		free(res->ai_src_canonname);
		free(res->ai_dst_canonname);
		free(res->ai_route);
		free(res->ai_connect);
		free(res);
		res = next;
	}
}
