// SPDX-License-Identifier: Apache-2.0
/*
 * Protection domains, parent domains and thread domains. The latter two are unknown to the
 * daemon. The program guarantees that queues of a thread domain are used by one thread at a
 * time, so they take no lock.
 */
#include "ibverbs/pd.h"
#include "ibverbs/ah.h"

#include <stdlib.h>

SR_PUBLIC struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct sr_pd *pd = calloc(1, sizeof *pd);
	if (!pd)
		return sr_null(ENOMEM);
	struct softroce_handle_reply r;
	int error = sr_command(&sr_ctx(context)->conn, SOFTROCE_OP_ALLOC_PD, NULL, 0, &r, sizeof r);
	if (error) {
		free(pd);
		return sr_null(error);
	}
	pd->ibv.context = context;
	pd->ibv.handle = r.handle;
	return &pd->ibv;
}

SR_PUBLIC int ibv_dealloc_pd(struct ibv_pd *ibv)
{
	struct sr_pd *pd = (struct sr_pd *)ibv;
	if (atomic_load(&pd->refs))
		return sr_error(EBUSY);
	if (pd->base) { /* a parent domain is unknown to the daemon */
		if (atomic_load(&pd->users))
			return sr_error(EBUSY);
		atomic_fetch_sub(&pd->base->refs, 1);
		if (pd->td)
			atomic_fetch_sub(&((struct sr_td *)pd->td)->refs, 1);
	} else {
		sr_drop_idle_ahs(sr_ctx(ibv->context), ibv->handle);
		int error = sr_destroy_unused(ibv->context, &pd->users, SOFTROCE_OP_DEALLOC_PD,
					      ibv->handle);
		if (error)
			return error;
	}
	free(pd);
	return 0;
}

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
		return sr_error(EBUSY);
	free(td);
	return 0;
}

#define SUPPORTED_MASK                                                                             \
	(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)

/* The daemon allocates the memory of queues, so the program's allocators are not called. */
struct ibv_pd *sr_alloc_parent_domain(struct ibv_context *context,
				      struct ibv_parent_domain_init_attr *attr)
{
	if (attr->comp_mask & ~SUPPORTED_MASK)
		return sr_null(EOPNOTSUPP);
	if (!attr->pd)
		return sr_null(EINVAL);
	if (attr->pd->context != context)
		return sr_null(ENOENT);
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
