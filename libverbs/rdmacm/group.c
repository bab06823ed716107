// SPDX-License-Identifier: Apache-2.0
/*
 * The multicast groups of an identifier.
 */
#include "rdmacm/rdmacm.h"

#include <string.h>

/*
 * Removes a group from the identifier's list, by address or, if addr is NULL, by cookie. NULL:
 * not found.
 */
struct cm_group *cm_take_group(struct cm_id *id, const struct sockaddr *addr, uint64_t cookie)
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

/* Finds the group of a call. The caller holds the lock. */
static struct cm_group *find_group(struct cm_id *id, uint64_t cookie)
{
	struct cm_group *g = id->groups;
	while (g && g->cookie != cookie)
		g = g->next;
	return g;
}

void cm_attach_group(struct cm_id *id, struct rdma_cm_event *event, uint64_t cookie)
{
	struct rdma_ud_param *ud = &event->param.ud;
	struct ibv_qp *qp = NULL;
	pthread_mutex_lock(&id->lock);
	struct cm_group *g = find_group(id, cookie);
	if (g) {
		ud->private_data = g->context;
		g->gid = ud->ah_attr.grh.dgid;
		g->lid = ud->ah_attr.dlid;
		if (event->event == RDMA_CM_EVENT_MULTICAST_JOIN && !g->send_only)
			qp = id->id.qp;
	}
	pthread_mutex_unlock(&id->lock);
	if (!qp)
		return;
	int error = ibv_attach_mcast(qp, &ud->ah_attr.grh.dgid, ud->ah_attr.dlid);
	if (error) {
		event->event = RDMA_CM_EVENT_MULTICAST_ERROR;
		event->status = -error;
		return;
	}
	pthread_mutex_lock(&id->lock);
	g = find_group(id, cookie);
	if (g)
		g->attached = true;
	pthread_mutex_unlock(&id->lock);
	if (!g) /* the program has left it meanwhile */
		ibv_detach_mcast(qp, &ud->ah_attr.grh.dgid, ud->ah_attr.dlid);
}
