// SPDX-License-Identifier: Apache-2.0
/*
 * Multicast groups. The identifier joins in the daemon, which tells the address vector; then this
 * side attaches the queue pair.
 */
#include "rdmacm/rdmacm.h"

#include <stdlib.h>
#include <string.h>

static uint64_t last_cookie; /* under cookie_lock */
static pthread_mutex_t cookie_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t next_cookie(void)
{
	pthread_mutex_lock(&cookie_lock);
	uint64_t n = ++last_cookie;
	pthread_mutex_unlock(&cookie_lock);
	return n;
}

/* Takes a group out of the identifier's list; NULL where it is not there. */
static struct cm_group *take(struct cm_id *id, const struct sockaddr *addr, uint64_t cookie)
{
	pthread_mutex_lock(&id->lock);
	struct cm_group **p = &id->groups;
	while (*p &&
	       !(addr ? !memcmp(&(*p)->addr, addr, cm_addr_len(addr)) : (*p)->cookie == cookie))
		p = &(*p)->next;
	struct cm_group *g = *p;
	if (g)
		*p = g->next;
	pthread_mutex_unlock(&id->lock);
	return g;
}

static int join(struct rdma_cm_id *ibv, const struct sockaddr *addr, bool send_only, void *context)
{
	struct cm_id *id = cm_id(ibv);
	struct softroce_cm_join_request ask = {.id = id->handle};
	int error = addr ? cm_addr_to_abi(addr, &ask.addr) : EINVAL;
	if (error)
		return cm_result(error);
	struct cm_group *g = calloc(1, sizeof *g);
	if (!g)
		return cm_result(ENOMEM);
	g->context = context;
	g->send_only = send_only;
	g->cookie = ask.cookie = next_cookie();
	memcpy(&g->addr, addr, cm_addr_len(addr));
	/* Another thread may have the event before the answer is here. */
	pthread_mutex_lock(&id->lock);
	g->next = id->groups;
	id->groups = g;
	pthread_mutex_unlock(&id->lock);
	error = cm_command(id->generation, SOFTROCE_OP_CM_JOIN, &ask, sizeof ask, NULL, 0);
	if (error) {
		free(take(id, NULL, ask.cookie));
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

/* Attaches the queue pair to the group that an event speaks of. */
void cm_joined(struct cm_id *id, struct rdma_cm_event *event, uint64_t cookie)
{
	struct rdma_ud_param *ud = &event->param.ud;
	pthread_mutex_lock(&id->lock);
	struct cm_group *g = id->groups;
	while (g && g->cookie != cookie)
		g = g->next;
	if (g) {
		ud->private_data = g->context;
		g->gid = ud->ah_attr.grh.dgid;
		g->lid = ud->ah_attr.dlid;
		if (event->event == RDMA_CM_EVENT_MULTICAST_JOIN && id->id.qp && !g->send_only) {
			int error = ibv_attach_mcast(id->id.qp, &g->gid, g->lid);
			g->attached = !error;
			if (error) {
				event->event = RDMA_CM_EVENT_MULTICAST_ERROR;
				event->status = -error;
			}
		}
	}
	pthread_mutex_unlock(&id->lock);
}

SR_PUBLIC int rdma_leave_multicast(struct rdma_cm_id *ibv, struct sockaddr *addr)
{
	struct cm_id *id = cm_id(ibv);
	struct cm_group *g = addr && cm_addr_len(addr) ? take(id, addr, 0) : NULL;
	if (!g)
		return cm_result(EADDRNOTAVAIL);
	if (ibv->qp && g->attached)
		ibv_detach_mcast(ibv->qp, &g->gid, g->lid);
	struct softroce_cm_join_request ask = {.id = id->handle};
	cm_addr_to_abi((struct sockaddr *)&g->addr, &ask.addr);
	free(g);
	return cm_result(
		cm_command(id->generation, SOFTROCE_OP_CM_LEAVE, &ask, sizeof ask, NULL, 0));
}

void cm_leave_all(struct cm_id *id)
{
	while (id->groups) {
		struct cm_group *g = id->groups;
		id->groups = g->next;
		free(g);
	}
}
