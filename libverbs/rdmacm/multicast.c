// SPDX-License-Identifier: Apache-2.0
/*
 * Multicast groups. The daemon joins the group and returns the address vector; then the library
 * attaches the queue pair.
 */
#include "rdmacm/rdmacm.h"

#include <stdlib.h>
#include <string.h>

static uint64_t next_cookie(void)
{
	static atomic_uint_fast64_t last;
	return atomic_fetch_add(&last, 1) + 1;
}

static int join(struct rdma_cm_id *ibv, const struct sockaddr *addr, bool send_only, void *context)
{
	struct cm_id *id = cm_id(ibv);
	struct softroce_cm_join_request req = {.id = id->handle};
	int error = addr ? cm_addr_to_abi(addr, &req.addr) : EINVAL;
	if (error)
		return cm_result(error);
	struct cm_group *g = calloc(1, sizeof *g);
	if (!g)
		return cm_result(ENOMEM);
	g->context = context;
	g->send_only = send_only;
	g->cookie = req.cookie = next_cookie();
	memcpy(&g->addr, addr, cm_addr_len(addr));
	/* The event may arrive, in another thread, before the reply. */
	pthread_mutex_lock(&id->lock);
	g->next = id->groups;
	id->groups = g;
	pthread_mutex_unlock(&id->lock);
	error = cm_command(id->generation, SOFTROCE_OP_CM_JOIN, &req, sizeof req, NULL, 0);
	if (error) {
		free(cm_take_group(id, NULL, req.cookie));
		return cm_result(error);
	}
	return cm_complete(id);
}

SR_PUBLIC int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr,
				     void *context)
{
	uint32_t needed = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	if (attr->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED)
		return cm_result(ENOTSUP);
	if ((attr->comp_mask & needed) != needed || attr->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED)
		return cm_result(EINVAL);
	return join(id, attr->addr, attr->join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
		    context);
}

SR_PUBLIC int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context)
{
	return join(id, addr, false, context);
}

SR_PUBLIC int rdma_leave_multicast(struct rdma_cm_id *ibv, struct sockaddr *addr)
{
	struct cm_id *id = cm_id(ibv);
	struct cm_group *g = addr && cm_addr_len(addr) ? cm_take_group(id, addr, 0) : NULL;
	if (!g)
		return cm_result(EADDRNOTAVAIL);
	if (ibv->qp && g->attached)
		ibv_detach_mcast(ibv->qp, &g->gid, g->lid);
	struct softroce_cm_join_request req = {.id = id->handle};
	cm_addr_to_abi((struct sockaddr *)&g->addr, &req.addr);
	free(g);
	return cm_result(
		cm_command(id->generation, SOFTROCE_OP_CM_LEAVE, &req, sizeof req, NULL, 0));
}
