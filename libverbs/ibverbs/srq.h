/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared receive queues and XRC domains.
 */
#ifndef SOFTROCE_SRQ_H
#define SOFTROCE_SRQ_H

#include "ibverbs/context.h"
#include "ibverbs/wq.h"

struct sr_srq {
	struct ibv_srq ibv;
	struct sr_link link;	  /* in its context */
	uint32_t events_reported; /* async events, under ibv.mutex */
	uint32_t srq_num;
	uint32_t max_sge;
	struct sr_wq wq;
	atomic_int users; /* queue pairs */
	/* Of XRC; NULL otherwise. */
	struct sr_xrcd *xrcd;
	struct sr_cq *cq;
};

struct sr_xrcd {
	struct ibv_xrcd ibv;
	uint32_t handle;
	atomic_int users; /* shared receive queues and queue pairs */
};

static inline struct sr_srq *sr_srq(struct ibv_srq *q)
{
	return (struct sr_srq *)q;
}

struct ibv_srq *sr_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
int sr_get_srq_num(struct ibv_srq *srq, uint32_t *srq_num);
struct ibv_xrcd *sr_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr);
int sr_close_xrcd(struct ibv_xrcd *xrcd);

#endif
