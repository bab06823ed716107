// SPDX-License-Identifier: Apache-2.0
/*
 * Endpoints: an identifier together with its queue pair.
 */
#include "rdmacm/rdmacm.h"

#include <stdlib.h>
#include <string.h>

#define RESOLVE_TIMEOUT 2000 /* ms */

static int listen_ep(struct cm_id *id, const struct rdma_addrinfo *res, struct ibv_pd *pd,
		     struct ibv_qp_init_attr *attr)
{
	if (rdma_bind_addr(&id->id, res->ai_src_addr))
		return errno;
	if (attr) {
		id->listen_attr = malloc(sizeof *attr);
		if (!id->listen_attr)
			return ENOMEM;
		*id->listen_attr = *attr;
		id->listen_attr->qp_type = res->ai_qp_type;
	}
	if (pd)
		id->id.pd = pd;
	return 0;
}

static int connect_ep(struct cm_id *id, const struct rdma_addrinfo *res, struct ibv_pd *pd,
		      struct ibv_qp_init_attr *attr)
{
	struct rdma_cm_id *ibv = &id->id;
	if (rdma_resolve_addr(ibv, res->ai_src_addr, res->ai_dst_addr, RESOLVE_TIMEOUT) ||
	    rdma_resolve_route(ibv, RESOLVE_TIMEOUT))
		return errno;
	if (attr) {
		attr->qp_type = res->ai_qp_type;
		if (rdma_create_qp(ibv, pd, attr))
			return errno;
	}
	if (res->ai_connect_len) {
		id->connect_data = malloc(res->ai_connect_len);
		if (!id->connect_data)
			return ENOMEM;
		memcpy(id->connect_data, res->ai_connect, res->ai_connect_len);
		id->connect_len = res->ai_connect_len;
	}
	return 0;
}

SR_PUBLIC int rdma_create_ep(struct rdma_cm_id **out, struct rdma_addrinfo *res, struct ibv_pd *pd,
			     struct ibv_qp_init_attr *attr)
{
	struct rdma_cm_id *ibv;
	if (cm_create_id(NULL, &ibv, NULL, res->ai_port_space, res->ai_qp_type))
		return -1;
	struct cm_id *id = cm_id(ibv);
	int error = res->ai_flags & RAI_PASSIVE ? listen_ep(id, res, pd, attr)
						: connect_ep(id, res, pd, attr);
	if (error) {
		rdma_destroy_ep(ibv);
		return cm_result(error);
	}
	*out = ibv;
	return 0;
}

SR_PUBLIC void rdma_destroy_ep(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (id->srq)
		rdma_destroy_srq(id);
	rdma_destroy_id(id);
}
