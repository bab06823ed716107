// SPDX-License-Identifier: Apache-2.0
/*
 * Socket addresses, between their own form and that of the ABI.
 */
#include "rdmacm/rdmacm.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <string.h>

int cm_addr_to_abi(const struct sockaddr *addr, struct softroce_cm_addr *out)
{
	memset(out, 0, sizeof *out);
	if (!addr)
		return 0;
	if (addr->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)addr;
		out->family = AF_INET;
		out->port = ntohs(in->sin_port);
		memcpy(out->addr, &in->sin_addr, 4);
		return 0;
	}
	if (addr->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)addr;
		out->family = AF_INET6;
		out->port = ntohs(in->sin6_port);
		out->scope = in->sin6_scope_id;
		memcpy(out->addr, &in->sin6_addr, 16);
		return 0;
	}
	return EINVAL;
}

void cm_addr_from_abi(const struct softroce_cm_addr *a, struct sockaddr_storage *out)
{
	memset(out, 0, sizeof *out);
	if (a->family == AF_INET) {
		struct sockaddr_in *in = (struct sockaddr_in *)out;
		in->sin_family = AF_INET;
		in->sin_port = htons(a->port);
		memcpy(&in->sin_addr, a->addr, 4);
	} else if (a->family == AF_INET6) {
		struct sockaddr_in6 *in = (struct sockaddr_in6 *)out;
		in->sin6_family = AF_INET6;
		in->sin6_port = htons(a->port);
		in->sin6_scope_id = a->scope;
		memcpy(&in->sin6_addr, a->addr, 16);
	}
}

size_t cm_addr_len(const struct sockaddr *addr)
{
	switch (addr->sa_family) {
	case AF_INET:
		return sizeof(struct sockaddr_in);
	case AF_INET6:
		return sizeof(struct sockaddr_in6);
	}
	return 0;
}

static __be16 port_of(const struct sockaddr_storage *a)
{
	if (a->ss_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_port;
	if (a->ss_family == AF_INET6)
		return ((const struct sockaddr_in6 *)a)->sin6_port;
	return 0;
}

SR_PUBLIC __be16 rdma_get_src_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.src_storage);
}

SR_PUBLIC __be16 rdma_get_dst_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.dst_storage);
}
