/* Completion queues, shared receive queues, XRC domains, and events. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "program.h"

/* cq NAME ENTRIES */
void do_cq(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, number(2), NULL, channel, 0);

	if (!cq) {
		fail_errno("ibv_create_cq");
		return;
	}
	add(CQ, text(1), cq);
	printf("ok\n");
}

/* arm NAME SOLICITED-ONLY */
void do_arm(void)
{
	struct object *o = must_find(CQ, text(1));

	if (!o)
		return;
	errno = ibv_req_notify_cq(o->cq, number(2));
	if (errno)
		fail_errno("ibv_req_notify_cq");
	else
		printf("ok\n");
}

/* notice: returns the name of a completion queue with a completion event, or nothing. */
void do_notice(void)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(channel, &cq, &context)) {
		printf("ok\n");
		return;
	}
	ibv_ack_cq_events(cq, 1);
	for (struct object *o = objects; o; o = o->next) {
		if (o->kind == CQ && o->cq == cq) {
			printf("ok %s\n", o->name);
			return;
		}
	}
	printf("ok -\n");
}

/* no_xrc replies with an error and returns 1 if the device does not support XRC. */
int no_xrc(void)
{
	struct ibv_device_attr a = {0};

	if (!ibv_query_device(ctx, &a) && a.device_cap_flags & IBV_DEVICE_XRC)
		return 0;
	fail("no XRC");
	return 1;
}

/* xrcd NAME */
void do_xrcd(void)
{
	struct ibv_xrcd_init_attr init = {.comp_mask =
						  IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					  .fd = -1,
					  .oflags = O_CREAT};
	struct ibv_xrcd *xrcd;

	if (no_xrc())
		return;
	xrcd = ibv_open_xrcd(ctx, &init);
	if (!xrcd) {
		fail_errno("ibv_open_xrcd");
		return;
	}
	add(XRCD, text(1), xrcd);
	printf("ok\n");
}

static struct ibv_srq *xrc_srq(struct ibv_pd *pd, struct object *xrcd)
{
	struct ibv_srq_init_attr_ex init = {
		.attr = {.max_wr = number(2), .max_sge = MAX_SGE},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD |
			     IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_XRC,
		.pd = pd,
		.xrcd = xrcd->xrcd,
	};
	struct object *cq = cq_named(text(5));

	if (!cq)
		return NULL;
	init.cq = cq->cq;
	return ibv_create_srq_ex(ctx, &init);
}

/* srq NAME ENTRIES LIMIT XRCD CQ: returns the SRQ number in an XRC domain, else 0. */
void do_srq(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = number(2), .max_sge = MAX_SGE}};
	struct ibv_srq_attr limit = {.srq_limit = number(3)};
	struct object *xrcd = find(XRCD, text(4));
	struct ibv_pd *pd = pd_named("-");
	struct ibv_srq *srq = !pd ? NULL : xrcd ? xrc_srq(pd, xrcd) : ibv_create_srq(pd, &init);
	uint32_t srqn = 0;

	if (!srq || (xrcd && ibv_get_srq_num(srq, &srqn))) {
		fail_errno("ibv_create_srq");
		return;
	}
	errno = limit.srq_limit ? ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) : 0;
	if (errno) {
		fail_errno("ibv_modify_srq");
		return;
	}
	add(SRQ, text(1), srq);
	printf("ok %u\n", srqn);
}

/* resize NAME ENTRIES: resizes a completion queue or a shared receive queue. */
void do_resize(void)
{
	struct ibv_srq_attr length = {.max_wr = number(2)};
	struct object *cq = find(CQ, text(1)), *srq = cq ? NULL : must_find(SRQ, text(1));

	if (!cq && !srq)
		return;
	errno = cq ? ibv_resize_cq(cq->cq, number(2))
		   : ibv_modify_srq(srq->srq, &length, IBV_SRQ_MAX_WR);
	if (errno)
		fail_errno("resize");
	else
		printf("ok\n");
}

/* limit NAME N */
void do_limit(void)
{
	struct ibv_srq_attr limit = {.srq_limit = number(2)};
	struct object *o = must_find(SRQ, text(1));

	if (!o)
		return;
	errno = ibv_modify_srq(o->srq, &limit, IBV_SRQ_LIMIT);
	if (errno)
		fail_errno("ibv_modify_srq");
	else
		printf("ok\n");
}

static const char *qp_name(uint32_t qpn)
{
	for (struct object *o = objects; o; o = o->next)
		if (o->kind == QP && o->qp->qp_num == qpn)
			return o->name;
	return "-";
}

/* poll: returns QP ID STATUS OPCODE BYTE-LEN IMM SRC-QP FLAGS of a completion, or nothing. */
void do_poll(void)
{
	for (struct object *o = objects; o; o = o->next) {
		struct ibv_wc wc;
		uint32_t imm;

		if (o->kind != CQ || ibv_poll_cq(o->cq, 1, &wc) != 1)
			continue;
		imm = wc.wc_flags & IBV_WC_WITH_INV ? wc.invalidated_rkey : be32toh(wc.imm_data);
		printf("ok %s %lu %d %d %u %u %u %u\n", qp_name(wc.qp_num), (unsigned long)wc.wr_id,
		       wc.status, wc.opcode, wc.byte_len, imm, wc.src_qp, wc.wc_flags);
		return;
	}
	printf("ok\n");
}

static const char *event_object(struct ibv_async_event *e)
{
	for (struct object *o = objects; o; o = o->next) {
		switch (e->event_type) {
		case IBV_EVENT_CQ_ERR:
			if (o->kind == CQ && o->cq == e->element.cq)
				return o->name;
			break;
		case IBV_EVENT_SRQ_ERR:
		case IBV_EVENT_SRQ_LIMIT_REACHED:
			if (o->kind == SRQ && o->srq == e->element.srq)
				return o->name;
			break;
		case IBV_EVENT_QP_FATAL:
		case IBV_EVENT_QP_REQ_ERR:
		case IBV_EVENT_QP_ACCESS_ERR:
		case IBV_EVENT_COMM_EST:
		case IBV_EVENT_SQ_DRAINED:
		case IBV_EVENT_QP_LAST_WQE_REACHED:
			if (o->kind == QP && o->qp == e->element.qp)
				return o->name;
			break;
		default:
			return "-";
		}
	}
	return "-";
}

/* event: returns TYPE OBJECT of an asynchronous event, or nothing. */
void do_event(void)
{
	struct ibv_async_event e;

	if (ibv_get_async_event(ctx, &e)) {
		printf("ok\n");
		return;
	}
	printf("ok %d %s\n", e.event_type, event_object(&e));
	ibv_ack_async_event(&e);
}
