/* Work requests. */
#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>

#include "program.h"

#define WR_FLUSH 14 /* IBV_WR_FLUSH, in libibverbs since rdma-core 45 */

/* sges parses COUNT {ADDRESS LENGTH LKEY}... from argument at on. */
static int sges(int at, struct ibv_sge *list)
{
	int n = number(at);

	for (int i = 0; i < n && i < MAX_SGE; i++)
		list[i] = (struct ibv_sge){number(at + 1 + 3 * i), number(at + 2 + 3 * i),
					   number(at + 3 + 3 * i)};
	return n;
}

/* atomic_write posts an ATOMIC WRITE of the eight bytes at the first gather element. */
static void atomic_write(struct object *o, const struct ibv_send_wr *wr)
{
	struct ibv_qp_ex *ex;

	if (!o->extended) {
		fail("no ATOMIC WRITE");
		return;
	}
	ex = ibv_qp_to_qp_ex(o->qp);
	ibv_wr_start(ex);
	ex->wr_id = wr->wr_id;
	ex->wr_flags = wr->send_flags;
	ibv_wr_atomic_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr,
			    (void *)(uintptr_t)wr->sg_list[0].addr);
	errno = ibv_wr_complete(ex);
	if (errno)
		fail_errno("ibv_wr_atomic_write");
	else
		printf("ok\n");
}

/* send NAME ID OPCODE FLAGS IMM REMOTE-ADDRESS RKEY COMPARE-ADD SWAP INLINE REMOTE-SRQ FLUSH-LENGTH
 * PLACEMENT SELECTIVITY SGES */
void do_send(void)
{
	struct object *o = must_find(QP, text(1));
	uint8_t data[256];
	struct ibv_sge list[MAX_SGE];
	struct ibv_send_wr *bad, wr = {.wr_id = number(2),
				       .opcode = number(3),
				       .send_flags = number(4),
				       .sg_list = list};

	if (!o)
		return;
	wr.num_sge = sges(15, list);
	if (o->qp->qp_type == IBV_QPT_XRC_SEND)
		wr.qp_type.xrc.remote_srqn = number(11);
	if (wr.send_flags & IBV_SEND_INLINE) {
		list[0].addr = (uintptr_t)data;
		list[0].length = parse_hex(text(10), data, sizeof(data));
		wr.num_sge = 1;
	}
	if (wr.opcode == IBV_WR_SEND_WITH_INV || wr.opcode == IBV_WR_LOCAL_INV)
		wr.invalidate_rkey = number(5);
	else
		wr.imm_data = htobe32(number(5));
	if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = number(6);
		wr.wr.atomic.rkey = number(7);
		wr.wr.atomic.compare_add = number(8);
		wr.wr.atomic.swap = number(9);
	} else if (o->qp->qp_type == IBV_QPT_UD) {
		if (!o->ah)
			o->ah = ibv_create_ah(o->qp->pd, &o->av);
		if (!o->ah) {
			fail_errno("ibv_create_ah");
			return;
		}
		wr.wr.ud.ah = o->ah;
		wr.wr.ud.remote_qpn = number(6);
		wr.wr.ud.remote_qkey = number(7);
	} else {
		wr.wr.rdma.remote_addr = number(6);
		wr.wr.rdma.rkey = number(7);
	}
	if (wr.opcode == WR_FLUSH) {
		fail("no FLUSH");
		return;
	}
	if (wr.opcode == IBV_WR_ATOMIC_WRITE && wr.num_sge == 1) {
		atomic_write(o, &wr);
		return;
	}
	errno = ibv_post_send(o->qp, &wr, &bad);
	if (errno)
		fail_errno("ibv_post_send");
	else
		printf("ok\n");
}

/* bind QP ID FLAGS MW MR ADDRESS LENGTH ACCESS RKEY: returns the window's R_Key from then on. */
void do_bind(void)
{
	struct object *qp = must_find(QP, text(1)), *mw = qp ? must_find(MW, text(4)) : NULL;
	struct object *mr = find(MR, text(5));
	struct ibv_mw_bind_info info = {.mr = mr ? mr->mr : NULL,
					.addr = number(6),
					.length = number(7),
					.mw_access_flags = number(8)};
	uint32_t key = number(9);

	if (!mw)
		return;
	if (mw->mw->type == IBV_MW_TYPE_1) {
		struct ibv_mw_bind bind = {
			.wr_id = number(2), .send_flags = number(3), .bind_info = info};

		errno = ibv_bind_mw(qp->qp, mw->mw, &bind);
		key = mw->mw->rkey;
	} else {
		struct ibv_send_wr *bad, wr = {.wr_id = number(2),
					       .opcode = IBV_WR_BIND_MW,
					       .send_flags = number(3)};

		wr.bind_mw.mw = mw->mw;
		wr.bind_mw.rkey = key;
		wr.bind_mw.bind_info = info;
		errno = ibv_post_send(qp->qp, &wr, &bad);
		if (!errno)
			mw->mw->rkey = key;
	}
	if (errno)
		fail_errno("bind");
	else
		printf("ok %u\n", key);
}

/* recv NAME ID SGES */
void do_recv(void)
{
	struct object *srq = find(SRQ, text(1)), *o = srq ? srq : must_find(QP, text(1));
	struct ibv_sge list[MAX_SGE];
	struct ibv_recv_wr *bad, wr = {.wr_id = number(2), .sg_list = list};

	if (!o)
		return;
	wr.num_sge = sges(3, list);
	errno = srq ? ibv_post_srq_recv(o->srq, &wr, &bad) : ibv_post_recv(o->qp, &wr, &bad);
	if (errno)
		fail_errno("ibv_post_recv");
	else
		printf("ok\n");
}
