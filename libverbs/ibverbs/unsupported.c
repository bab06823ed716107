// SPDX-License-Identifier: Apache-2.0
/*
 * Features that this NIC does not have: flow steering, flow counters, work queues without a
 * queue pair, tag matching and moderation. The calls fail with EOPNOTSUPP, as with
 * a driver that does not implement them.
 */
#include "ibverbs/ops.h"

static int no_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad)
{
	(void)srq;
	*bad = op;
	return sr_error(EOPNOTSUPP);
}

static int no_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	(void)cq, (void)attr;
	return sr_error(EOPNOTSUPP);
}

static int no_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
			struct ibv_sge *list, uint32_t n)
{
	(void)pd, (void)advice, (void)flags, (void)list, (void)n;
	return sr_error(EOPNOTSUPP);
}

static struct ibv_mr *no_null_mr(struct ibv_pd *pd)
{
	(void)pd;
	return sr_null(EOPNOTSUPP);
}

static struct ibv_wq *no_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *attr)
{
	(void)context, (void)attr;
	return sr_null(EOPNOTSUPP);
}

static struct ibv_rwq_ind_table *no_ind_table(struct ibv_context *context,
					      struct ibv_rwq_ind_table_init_attr *attr)
{
	(void)context, (void)attr;
	return sr_null(EOPNOTSUPP);
}

static struct ibv_flow *no_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *attr)
{
	(void)qp, (void)attr;
	return sr_null(EOPNOTSUPP);
}

static struct ibv_flow_action *no_flow_action(struct ibv_context *context,
					      struct ibv_flow_action_esp_attr *attr)
{
	(void)context, (void)attr;
	return sr_null(EOPNOTSUPP);
}

static struct ibv_counters *no_counters(struct ibv_context *context,
					struct ibv_counters_init_attr *attr)
{
	(void)context, (void)attr;
	return sr_null(EOPNOTSUPP);
}

static struct ibv_qp *no_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr)
{
	(void)context, (void)attr;
	return sr_null(EOPNOTSUPP);
}

/* The calls that destroy such objects stay NULL: there are none to destroy. */
void sr_set_unsupported(struct verbs_context *v)
{
	v->post_srq_ops = no_post_srq_ops;
	v->modify_cq = no_modify_cq;
	v->advise_mr = no_advise_mr;
	v->alloc_null_mr = no_null_mr;
	v->create_wq = no_create_wq;
	v->create_rwq_ind_table = no_ind_table;
	v->ibv_create_flow = no_create_flow;
	v->create_flow_action_esp = no_flow_action;
	v->create_counters = no_counters;
	v->open_qp = no_open_qp;
}

/* Called by libraries built for kernel drivers, of which no device exists here. */
SR_PUBLIC int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr,
					  uint8_t mac[6], uint16_t *vid)
{
	(void)context, (void)attr, (void)mac, (void)vid;
	return sr_error(EOPNOTSUPP);
}
