// SPDX-License-Identifier: Apache-2.0
/*
 * Extended completion queues: the fields of a completion are read from its slot one by one. The
 * queue is locked from start_poll to end_poll.
 */
#include "ibverbs/cq.h"
#include "ibverbs/pd.h"

#include <string.h>

static struct sr_cq *to_sr_cq(struct ibv_cq_ex *ex)
{
	return (struct sr_cq *)ex;
}

/* ENOENT: the queue is empty. EIO: it is empty, and the daemon is gone. */
static int peek(struct ibv_cq_ex *ex)
{
	bool end;
	to_sr_cq(ex)->cqe = sr_cq_peek(to_sr_cq(ex), &end);
	if (!to_sr_cq(ex)->cqe)
		return sr_error(end ? EIO : ENOENT);
	ex->wr_id = to_sr_cq(ex)->cqe->wr_id;
	ex->status = to_sr_cq(ex)->cqe->status;
	return 0;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct sr_cq *q = to_sr_cq(ex);
	if (attr->comp_mask)
		return sr_error(EINVAL);
	sr_lock(&q->lock, q->single_threaded);
	int error = peek(ex);
	if (error)
		sr_unlock(&q->lock, q->single_threaded);
	return error;
}

static int next_poll(struct ibv_cq_ex *ex)
{
	if (to_sr_cq(ex)->cqe)
		sr_cq_consume(to_sr_cq(ex));
	return peek(ex);
}

static void end_poll(struct ibv_cq_ex *ex)
{
	struct sr_cq *q = to_sr_cq(ex);
	if (q->cqe)
		sr_cq_consume(q);
	q->cqe = NULL;
	sr_unlock(&q->lock, q->single_threaded);
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
	return to_sr_cq(ex)->cqe->opcode;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *ex)
{
	return to_sr_cq(ex)->cqe->vendor_err;
}

static uint32_t read_byte_len(struct ibv_cq_ex *ex)
{
	return to_sr_cq(ex)->cqe->byte_len;
}

static __be32 read_imm_data(struct ibv_cq_ex *ex)
{
	return to_sr_cq(ex)->cqe->imm;
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
	return to_sr_cq(ex)->cqe->qp_num;
}

static uint32_t read_src_qp(struct ibv_cq_ex *ex)
{
	return to_sr_cq(ex)->cqe->src_qp;
}

static unsigned int read_wc_flags(struct ibv_cq_ex *ex)
{
	return to_sr_cq(ex)->cqe->flags;
}

static uint32_t read_slid(struct ibv_cq_ex *ex)
{
	return to_sr_cq(ex)->cqe->slid;
}

static uint8_t read_sl(struct ibv_cq_ex *ex)
{
	return to_sr_cq(ex)->cqe->sl;
}

static uint8_t read_dlid_path_bits(struct ibv_cq_ex *ex)
{
	return to_sr_cq(ex)->cqe->path_bits;
}

static uint64_t read_completion_ts(struct ibv_cq_ex *ex)
{
	return to_sr_cq(ex)->cqe->timestamp;
}

static uint64_t read_completion_wallclock_ns(struct ibv_cq_ex *ex)
{
	return to_sr_cq(ex)->cqe->wallclock;
}

static uint16_t read_cvlan(struct ibv_cq_ex *ex)
{
	return to_sr_cq(ex)->cqe->vlan;
}

/* There are no flow tags, and there is no tag matching. */
static uint32_t read_flow_tag(struct ibv_cq_ex *ex)
{
	(void)ex;
	return 0;
}

static void read_tm_info(struct ibv_cq_ex *ex, struct ibv_wc_tm_info *info)
{
	(void)ex;
	memset(info, 0, sizeof *info);
}

static void set_ops(struct ibv_cq_ex *ex)
{
	ex->start_poll = start_poll;
	ex->next_poll = next_poll;
	ex->end_poll = end_poll;
	ex->read_opcode = read_opcode;
	ex->read_vendor_err = read_vendor_err;
	ex->read_byte_len = read_byte_len;
	ex->read_imm_data = read_imm_data;
	ex->read_qp_num = read_qp_num;
	ex->read_src_qp = read_src_qp;
	ex->read_wc_flags = read_wc_flags;
	ex->read_slid = read_slid;
	ex->read_sl = read_sl;
	ex->read_dlid_path_bits = read_dlid_path_bits;
	ex->read_completion_ts = read_completion_ts;
	ex->read_cvlan = read_cvlan;
	ex->read_flow_tag = read_flow_tag;
	ex->read_tm_info = read_tm_info;
	ex->read_completion_wallclock_ns = read_completion_wallclock_ns;
}

#define TIMESTAMPS                                                                                 \
	(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
#define SUPPORTED_WC_FLAGS (IBV_WC_STANDARD_FLAGS | TIMESTAMPS | IBV_WC_EX_WITH_CVLAN)

struct ibv_cq_ex *sr_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	const uint32_t known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
	uint32_t flags = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;
	/*
	 * IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN is not supported: an overrun is always reported as an
	 * error.
	 */
	if (attr->comp_mask & ~known || flags & ~IBV_CREATE_CQ_ATTR_SINGLE_THREADED ||
	    attr->wc_flags & ~(uint64_t)SUPPORTED_WC_FLAGS)
		return sr_null(EOPNOTSUPP);
	struct sr_cq *q =
		sr_create_cq(context, attr->cqe, attr->cq_context, attr->channel, attr->comp_vector,
			     attr->wc_flags & TIMESTAMPS ? SOFTROCE_CQ_TIMESTAMPS : 0);
	if (!q)
		return NULL;
	struct sr_pd *pd = NULL;
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD)
		pd = (struct sr_pd *)attr->parent_domain;
	q->single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED || (pd && pd->td);
	set_ops(&q->ex);
	return &q->ex;
}
