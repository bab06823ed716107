/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Protection domains, parent domains and thread domains.
 */
#ifndef SOFTROCE_PD_H
#define SOFTROCE_PD_H

#include "ibverbs/context.h"

/* A protection domain, or a parent domain: then base is its protection domain. */
struct sr_pd {
	struct ibv_pd ibv;
	struct sr_pd *base;
	struct ibv_td *td;
	atomic_int refs;  /* parent domains of this protection domain */
	atomic_int users; /* other objects in it */
};

struct sr_td {
	struct ibv_td ibv;
	atomic_int refs;
};

/* The protection domain that the daemon knows. */
static inline struct sr_pd *sr_base_pd(struct ibv_pd *p)
{
	struct sr_pd *pd = (struct sr_pd *)p;
	return pd->base ? pd->base : pd;
}

static inline void sr_pd_count_users(struct ibv_pd *pd, int n)
{
	sr_count_users(pd, &((struct sr_pd *)pd)->users, n);
}

struct ibv_pd *sr_alloc_parent_domain(struct ibv_context *context,
				      struct ibv_parent_domain_init_attr *attr);
struct ibv_td *sr_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr);
int sr_dealloc_td(struct ibv_td *td);

#endif
