// SPDX-License-Identifier: Apache-2.0
/*
 * Thread domains and parent domains. They are this side's alone: queues that belong to a thread
 * domain are used by one thread at a time, as its program promises, and need no lock.
 */
#include "ibverbs/pd.h"

#include <stdlib.h>

struct ibv_td *sr_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	if (attr->comp_mask)
		return sr_null(EOPNOTSUPP);
	if (sr_gone(&sr_ctx(context)->conn))
		return sr_null(EIO);
	struct sr_td *td = calloc(1, sizeof *td);
	if (!td)
		return sr_null(ENOMEM);
	td->ibv.context = context;
	return &td->ibv;
}

int sr_dealloc_td(struct ibv_td *ibv)
{
	struct sr_td *td = (struct sr_td *)ibv;
	if (atomic_load(&td->refs))
		return EBUSY;
	free(td);
	return 0;
}

#define SUPPORTED_MASK                                                                             \
	(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)

/* The memory of queues is the daemon's, so a program's allocators have nothing to allocate. */
struct ibv_pd *sr_alloc_parent_domain(struct ibv_context *context,
				      struct ibv_parent_domain_init_attr *attr)
{
	if (attr->comp_mask & ~SUPPORTED_MASK)
		return sr_null(EOPNOTSUPP);
	if (!attr->pd || attr->pd->context != context)
		return sr_null(EINVAL);
	if (sr_gone(&sr_ctx(context)->conn))
		return sr_null(EIO);
	struct sr_pd *pd = calloc(1, sizeof *pd);
	if (!pd)
		return sr_null(ENOMEM);
	pd->base = sr_base_pd(attr->pd);
	pd->td = attr->td;
	pd->ibv.context = context;
	pd->ibv.handle = pd->base->ibv.handle;
	atomic_fetch_add(&pd->base->refs, 1);
	if (pd->td)
		atomic_fetch_add(&((struct sr_td *)pd->td)->refs, 1);
	return &pd->ibv;
}
