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

void cm_attach_group(struct cm_id *id, struct rdma_cm_event *event, uint64_t cookie)
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
