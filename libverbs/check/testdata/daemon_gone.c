// SPDX-License-Identifier: Apache-2.0
/*
 * What is left when the daemon has ended, or in a forked child: work requests that were outstanding
 * are flushed, each once, and objects that others use are not destroyed before those.
 */
#include "setup.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

/* More work requests than the rings' indices need to pass 2^31 or 2^32. */
enum {
	ROUNDS = 24
};

static void end_daemon(void)
{
	char line[16];
	puts("end");
	fflush(stdout);
	REQUIRE(fgets(line, sizeof line, stdin));
}

static void post_send(struct setup *s, struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sge = {(uintptr_t)s->buf, 8, s->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
	struct ibv_send_wr *bad;
	REQUIRE(!ibv_post_send(qp, &wr, &bad));
}

static void post_recv(struct setup *s, struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sge = {(uintptr_t)s->buf + 64, 8, s->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
	REQUIRE(!ibv_post_recv(qp, &wr, &bad));
}

static struct ibv_qp *create_builder_qp(struct setup *s)
{
	struct ibv_qp_init_attr a = rc_attr(s);
	struct ibv_qp_init_attr_ex ex = {
		.send_cq = a.send_cq,
		.recv_cq = a.recv_cq,
		.cap = a.cap,
		.qp_type = a.qp_type,
		.sq_sig_all = 1,
		.pd = s->pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(s->context, &ex);
	REQUIRE(qp);
	return qp;
}

/* Exchanges messages, and leaves qp with three sends and two receives that will not complete. */
static void leave_outstanding(struct setup *s, struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_wc wc;
	connect_qp(s, qp, peer->qp_num);
	connect_qp(s, peer, qp->qp_num);
	for (int i = 0; i < ROUNDS; i++) {
		post_recv(s, qp, 0);
		post_recv(s, peer, 0);
		post_send(s, qp, 0);
		post_send(s, peer, 0);
		for (int n = 0; n < 4;) {
			int got = ibv_poll_cq(s->cq, 1, &wc);
			REQUIRE(got >= 0 && (!got || wc.status == IBV_WC_SUCCESS));
			n += got;
		}
	}
	RETURNS(0, ibv_destroy_qp(peer));
	for (int i = 0; i < 3; i++)
		post_send(s, qp, 10 + i);
	for (int i = 0; i < 2; i++)
		post_recv(s, qp, 20 + i);
}

/* The thread that builds work requests polls meanwhile. What it has not posted is not flushed. */
static void check_flush(struct setup *s, struct ibv_qp *qp)
{
	static const uint64_t ids[] = {10, 11, 12, 20, 21};
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_wc wc[16];
	ibv_wr_start(ex);
	ex->wr_id = 30;
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, s->mr->lkey, (uintptr_t)s->buf, 8);
	end_daemon();
	struct ibv_async_event e;
	REQUIRE(!ibv_get_async_event(s->context, &e) && e.event_type == IBV_EVENT_DEVICE_FATAL);
	int n = 0, got;
	while (n < 16 && (got = ibv_poll_cq(s->cq, 1, &wc[n])) >= 0)
		n += got;
	CHECK(n == 5);
	for (int i = 0; i < n && i < 5; i++)
		CHECK(wc[i].wr_id == ids[i] && wc[i].status == IBV_WC_WR_FLUSH_ERR);
	ibv_wr_abort(ex);
	FAILS(EIO, ibv_poll_cq(s->cq, 1, wc) == -1);
}

/* One object of each kind, in the order in which they are used. */
struct objects {
	struct ibv_td *td;
	struct ibv_pd *parent;
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq, *xrc_srq;
	struct ibv_qp *srq_qp, *target;
	struct ibv_ah *ah;
	struct ibv_mw *mw;
	struct ibv_dm *dm;
	struct ibv_mr *dm_mr;
};

static void create_objects(struct setup *s, struct objects *o)
{
	struct ibv_td_init_attr td = {0};
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_xrcd_init_attr xrcd = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_alloc_dm_attr dm = {.length = 64};
	struct ibv_ah_attr ah = {
		.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}};
	REQUIRE(!ibv_query_gid(s->context, 1, 1, &ah.grh.dgid));
	REQUIRE((o->td = ibv_alloc_td(s->context, &td)));
	struct ibv_parent_domain_init_attr parent = {.pd = s->pd, .td = o->td};
	REQUIRE((o->parent = ibv_alloc_parent_domain(s->context, &parent)));
	REQUIRE((o->srq = ibv_create_srq(s->pd, &srq)));
	struct ibv_qp_init_attr init = rc_attr(s);
	init.srq = o->srq;
	REQUIRE((o->srq_qp = ibv_create_qp(o->parent, &init)));
	REQUIRE((o->xrcd = ibv_open_xrcd(s->context, &xrcd)));
	struct ibv_srq_init_attr_ex xrc = {
		.attr = srq.attr,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = s->pd,
		.xrcd = o->xrcd,
		.cq = s->cq,
	};
	REQUIRE((o->xrc_srq = ibv_create_srq_ex(s->context, &xrc)));
	struct ibv_qp_init_attr_ex target = {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = o->xrcd};
	REQUIRE((o->target = ibv_create_qp_ex(s->context, &target)));
	REQUIRE((o->ah = ibv_create_ah(s->pd, &ah)));
	REQUIRE((o->mw = ibv_alloc_mw(s->pd, IBV_MW_TYPE_2)));
	REQUIRE((o->dm = ibv_alloc_dm(s->context, &dm)));
	REQUIRE((o->dm_mr = ibv_reg_dm_mr(s->pd, o->dm, 0, 64,
					  IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE)));
}

/* Each object is in use until the last one that uses it is destroyed. */
static void destroy_all(struct setup *s, struct ibv_qp *qp, struct objects *o)
{
	RETURNS(EBUSY, ibv_dealloc_td(o->td));
	RETURNS(EBUSY, ibv_dealloc_pd(o->parent));
	RETURNS(EBUSY, ibv_destroy_srq(o->srq));
	RETURNS(0, ibv_destroy_qp(o->srq_qp));
	RETURNS(0, ibv_destroy_srq(o->srq));
	RETURNS(0, ibv_dealloc_pd(o->parent));
	RETURNS(0, ibv_dealloc_td(o->td));

	RETURNS(EBUSY, ibv_close_xrcd(o->xrcd));
	RETURNS(0, ibv_destroy_qp(o->target));
	RETURNS(EBUSY, ibv_close_xrcd(o->xrcd));
	RETURNS(EBUSY, ibv_destroy_cq(s->cq));
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(EBUSY, ibv_destroy_cq(s->cq));
	RETURNS(EBUSY, ibv_destroy_comp_channel(s->channel));
	RETURNS(0, ibv_destroy_srq(o->xrc_srq));
	RETURNS(0, ibv_close_xrcd(o->xrcd));

	RETURNS(EBUSY, ibv_free_dm(o->dm));
	RETURNS(0, ibv_dereg_mr(o->dm_mr));
	RETURNS(0, ibv_free_dm(o->dm));
	RETURNS(EBUSY, ibv_dealloc_pd(s->pd));
	RETURNS(0, ibv_dealloc_mw(o->mw));
	RETURNS(EBUSY, ibv_dealloc_pd(s->pd));
	RETURNS(0, ibv_destroy_ah(o->ah));
	RETURNS(EBUSY, ibv_dealloc_pd(s->pd));
	setup_close(s);
}

int main(void)
{
	struct setup s;
	struct objects o;
	setup_open(&s);
	struct ibv_qp *qp = create_builder_qp(&s);
	create_objects(&s, &o);
	pid_t pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		destroy_all(&s, qp, &o);
		_exit(failures != 0);
	}
	int status;
	REQUIRE(waitpid(pid, &status, 0) == pid);
	CHECK(status == 0);
	leave_outstanding(&s, qp, create_qp(&s));
	check_flush(&s, qp);
	destroy_all(&s, qp, &o);
	return failures != 0;
}
