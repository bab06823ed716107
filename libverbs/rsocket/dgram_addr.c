// SPDX-License-Identifier: Apache-2.0
/*
 * Datagram sockets: addresses.
 */
#include "rsocket/dgram.h"

#include <string.h>

bool ds_addr_from(union ds_addr *out, const struct sockaddr *addr, socklen_t len)
{
	if (!addr || len < sizeof addr->sa_family)
		return false;
	size_t n = cm_addr_len(addr);
	if (!n || len < n)
		return false;
	memset(out, 0, sizeof *out);
	memcpy(out, addr, n);
	return true;
}

socklen_t ds_addr_len(const union ds_addr *a)
{
	return (socklen_t)cm_addr_len(&a->sa);
}

void *ds_addr_bytes(union ds_addr *a, size_t *len)
{
	bool v4 = a->sa.sa_family == AF_INET;
	*len = v4 ? 4 : 16;
	return v4 ? (void *)&a->in.sin_addr : (void *)&a->in6.sin6_addr;
}

uint16_t *ds_addr_port(union ds_addr *a)
{
	return a->sa.sa_family == AF_INET ? &a->in.sin_port : &a->in6.sin6_port;
}

bool ds_addr_any(const union ds_addr *a)
{
	return a->sa.sa_family == AF_INET ? a->in.sin_addr.s_addr == INADDR_ANY
					  : IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr);
}

bool ds_addr_equal(const union ds_addr *a, const union ds_addr *b, bool port)
{
	if (a->sa.sa_family != b->sa.sa_family)
		return false;
	if (a->sa.sa_family == AF_INET)
		return a->in.sin_addr.s_addr == b->in.sin_addr.s_addr &&
		       (!port || a->in.sin_port == b->in.sin_port);
	return IN6_ARE_ADDR_EQUAL(&a->in6.sin6_addr, &b->in6.sin6_addr) &&
	       (!port || a->in6.sin6_port == b->in6.sin6_port);
}
