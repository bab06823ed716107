// SPDX-License-Identifier: Apache-2.0
/*
 * What a program sees of faults: verbs that fail, work requests that complete with an error, and
 * asynchronous events. faults_cm.c has the verbs of connections.
 */
#include "faults.h"
#include "setup.h"

#include <fcntl.h>
#include <rdma/rdma_cma.h>

static struct setup s;

static void device_verbs(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	union ibv_gid gid;
	__be16 pkey;
	REQUIRE(list && list[0]);
	FAILING("open_device", FAILS(EXDEV, !ibv_open_device(list[0])));
	ibv_free_device_list(list);
	FAILING("query_device", RETURNS(EXDEV, ibv_query_device(s.context, &device)));
	FAILING("query_port", RETURNS(EXDEV, ibv_query_port(s.context, 1, &port)));
	FAILING("query_gid", FAILS(EXDEV, ibv_query_gid(s.context, 1, 1, &gid) == -1));
	FAILING("query_pkey", FAILS(EXDEV, ibv_query_pkey(s.context, 1, 0, &pkey) == -1));
	struct ibv_values_ex now = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	FAILING("query_rt_values", RETURNS(EXDEV, ibv_query_rt_values_ex(s.context, &now)));
}

static void memory_verbs(void)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_dm *dm;
	struct ibv_alloc_dm_attr dm_attr = {.length = 64};
	FAILING("alloc_pd", FAILS(EXDEV, !ibv_alloc_pd(s.context)));
	REQUIRE((pd = ibv_alloc_pd(s.context)));
	FAILING("reg_mr", FAILS(EXDEV, !ibv_reg_mr(pd, s.buf, sizeof s.buf, ALL_ACCESS)));
	REQUIRE((mr = ibv_reg_mr(pd, s.buf, sizeof s.buf, ALL_ACCESS)));
	FAILING("rereg_mr", FAILS(EXDEV, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
						      IBV_ACCESS_LOCAL_WRITE)));
	FAILING("import_mr", FAILS(EXDEV, !ibv_import_mr(pd, mr->handle)));
	FAILING("dereg_mr", RETURNS(EXDEV, ibv_dereg_mr(mr)));
	RETURNS(0, ibv_dereg_mr(mr));
	FAILING("alloc_mw", FAILS(EXDEV, !ibv_alloc_mw(pd, IBV_MW_TYPE_1)));
	REQUIRE((mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1)));
	FAILING("dealloc_mw", RETURNS(EXDEV, ibv_dealloc_mw(mw)));
	RETURNS(0, ibv_dealloc_mw(mw));
	FAILING("alloc_dm", FAILS(EXDEV, !ibv_alloc_dm(s.context, &dm_attr)));
	REQUIRE((dm = ibv_alloc_dm(s.context, &dm_attr)));
	FAILING("import_dm", FAILS(EXDEV, !ibv_import_dm(s.context, dm->handle)));
	FAILING("memcpy_to_dm", RETURNS(EXDEV, ibv_memcpy_to_dm(dm, 0, s.buf, 64)));
	FAILING("memcpy_from_dm", RETURNS(EXDEV, ibv_memcpy_from_dm(s.buf, dm, 0, 64)));
	FAILING("free_dm", RETURNS(EXDEV, ibv_free_dm(dm)));
	RETURNS(0, ibv_free_dm(dm));
	FAILING("dealloc_pd", RETURNS(EXDEV, ibv_dealloc_pd(pd)));
	RETURNS(0, ibv_dealloc_pd(pd));
}

static void queue_verbs(void)
{
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq_attr srq_attr = {.srq_limit = 1};
	struct ibv_qp_init_attr init = rc_attr(&s);
	struct ibv_qp *qp;
	struct ibv_qp_attr attr = connected_attr(1);
	FAILING("create_comp_channel", FAILS(EXDEV, !ibv_create_comp_channel(s.context)));
	REQUIRE((channel = ibv_create_comp_channel(s.context)));
	FAILING("destroy_comp_channel", RETURNS(EXDEV, ibv_destroy_comp_channel(channel)));
	RETURNS(0, ibv_destroy_comp_channel(channel));
	FAILING("create_cq", FAILS(EXDEV, !ibv_create_cq(s.context, 4, NULL, NULL, 0)));
	REQUIRE((cq = ibv_create_cq(s.context, 4, NULL, NULL, 0)));
	FAILING("resize_cq", RETURNS(EXDEV, ibv_resize_cq(cq, 16)));
	FAILING("destroy_cq", RETURNS(EXDEV, ibv_destroy_cq(cq)));
	RETURNS(0, ibv_destroy_cq(cq));
	FAILING("create_srq", FAILS(EXDEV, !ibv_create_srq(s.pd, &srq_init)));
	REQUIRE((srq = ibv_create_srq(s.pd, &srq_init)));
	FAILING("modify_srq", RETURNS(EXDEV, ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT)));
	FAILING("query_srq", RETURNS(EXDEV, ibv_query_srq(srq, &srq_attr)));
	FAILING("destroy_srq", RETURNS(EXDEV, ibv_destroy_srq(srq)));
	RETURNS(0, ibv_destroy_srq(srq));
	FAILING("create_qp", FAILS(EXDEV, !ibv_create_qp(s.pd, &init)));
	qp = create_qp(&s);
	FAILING("modify_qp", RETURNS(EXDEV, ibv_modify_qp(qp, &attr, INIT_MASK)));
	RETURNS(0, ibv_modify_qp(qp, &attr, INIT_MASK));
	FAILING("query_qp", RETURNS(EXDEV, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init)));
	FAILING("destroy_qp", RETURNS(EXDEV, ibv_destroy_qp(qp)));
	RETURNS(0, ibv_destroy_qp(qp));
}

static void other_verbs(void)
{
	struct ibv_xrcd_init_attr xrcd_init = {.comp_mask = IBV_XRCD_INIT_ATTR_FD |
							    IBV_XRCD_INIT_ATTR_OFLAGS,
					       .fd = -1,
					       .oflags = O_CREAT};
	struct ibv_xrcd *xrcd;
	struct ibv_ah_attr ah = connected_attr(1).ah_attr;
	struct ibv_qp_init_attr init = rc_attr(&s);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1};
	union ibv_gid group = {.raw = {[10] = 0xff, 0xff, 224, 0, 2, 9}};
	FAILING("open_xrcd", FAILS(EXDEV, !ibv_open_xrcd(s.context, &xrcd_init)));
	REQUIRE((xrcd = ibv_open_xrcd(s.context, &xrcd_init)));
	FAILING("close_xrcd", RETURNS(EXDEV, ibv_close_xrcd(xrcd)));
	RETURNS(0, ibv_close_xrcd(xrcd));
	REQUIRE(!ibv_query_gid(s.context, 1, 1, &ah.grh.dgid));
	FAILING("create_ah", FAILS(EXDEV, !ibv_create_ah(s.pd, &ah)));
	init.qp_type = IBV_QPT_UD;
	struct ibv_qp *qp = ibv_create_qp(s.pd, &init);
	REQUIRE(qp && !ibv_modify_qp(qp, &attr,
				     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	FAILING("attach_mcast", RETURNS(EXDEV, ibv_attach_mcast(qp, &group, 0)));
	RETURNS(0, ibv_attach_mcast(qp, &group, 0));
	FAILING("detach_mcast", RETURNS(EXDEV, ibv_detach_mcast(qp, &group, 0)));
	RETURNS(0, ibv_detach_mcast(qp, &group, 0));
	RETURNS(0, ibv_destroy_qp(qp));
}

/* Posts a work request and returns its completion, or that of its receive. */
static struct ibv_wc complete(struct ibv_qp *qp, struct ibv_send_wr wr)
{
	struct ibv_sge sge = {(uintptr_t)s.buf, 8, s.mr->lkey};
	struct ibv_recv_wr recv = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad_recv;
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	wr.wr_id = 2;
	if (wr.opcode != IBV_WR_BIND_MW && wr.opcode != IBV_WR_LOCAL_INV) {
		wr.sg_list = &sge;
		wr.num_sge = 1;
	}
	REQUIRE(!ibv_post_recv(qp, &recv, &bad_recv) && !ibv_post_send(qp, &wr, &bad));
	while (!ibv_poll_cq(s.cq, 1, &wc))
		;
	return wc;
}

static struct ibv_send_wr rdma(enum ibv_wr_opcode op)
{
	return (struct ibv_send_wr){.opcode = op, .wr.rdma = {(uintptr_t)s.buf + 64, s.mr->rkey}};
}

static struct ibv_send_wr atomic(enum ibv_wr_opcode op)
{
	return (struct ibv_send_wr){
		.opcode = op,
		.wr.atomic = {.remote_addr = (uintptr_t)s.buf + 64, .rkey = s.mr->rkey}};
}

/* The first completion of a new queue pair has this status, and the queue pair is in ERR. */
static void completes(const char *opcode, struct ibv_send_wr wr, const char *name,
		      enum ibv_wc_status status)
{
	uint64_t id = strcmp(opcode, "recv") ? 2 : 1;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_wc wc;
	struct ibv_qp *qp = loopback_qp(&s);
	request("fail completion %s vendor_err 0x1%02x opcode %s qp %u", name, status, opcode,
		qp->qp_num);
	wc = complete(qp, wr);
	if (wc.status != status || wc.vendor_err != 0x100u + status || wc.wr_id != id) {
		fprintf(stderr, "%s, %s: status %d, vendor_err %#x, wr_id %d\n", opcode, name,
			wc.status, wc.vendor_err, (int)wc.wr_id);
		failures++;
	}
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
	/* Everything else is flushed. */
	struct ibv_send_wr *bad;
	wr.wr_id = 3;
	REQUIRE(!ibv_post_send(qp, &wr, &bad));
	do {
		while (!ibv_poll_cq(s.cq, 1, &wc))
			;
		if (wc.status != IBV_WC_WR_FLUSH_ERR || wc.vendor_err) {
			fprintf(stderr, "%s, %s: then wr_id %d with status %d, vendor_err %#x\n",
				opcode, name, (int)wc.wr_id, wc.status, wc.vendor_err);
			failures++;
		}
	} while (wc.wr_id != 3);
	RETURNS(0, ibv_destroy_qp(qp));
	while (ibv_poll_cq(s.cq, 1, &wc))
		;
}

/* Kinds of operations that can have the same errors. */
enum kind {
	RECV = 1,
	SEND = 2,
	RESPONSE = 4,
	LOCAL = 8,
	ALL = RECV | SEND | RESPONSE | LOCAL
};

static void completions(void)
{
	static const struct {
		const char *name;
		enum ibv_wc_status status;
		unsigned int kinds;
	} table[] = {
		{"LOC_LEN_ERR", IBV_WC_LOC_LEN_ERR, RECV | SEND | RESPONSE},
		{"LOC_QP_OP_ERR", IBV_WC_LOC_QP_OP_ERR, ALL},
		{"LOC_PROT_ERR", IBV_WC_LOC_PROT_ERR, ALL},
		{"MW_BIND_ERR", IBV_WC_MW_BIND_ERR, LOCAL},
		{"BAD_RESP_ERR", IBV_WC_BAD_RESP_ERR, RESPONSE},
		{"LOC_ACCESS_ERR", IBV_WC_LOC_ACCESS_ERR, RECV},
		{"REM_INV_REQ_ERR", IBV_WC_REM_INV_REQ_ERR, SEND | RESPONSE},
		{"REM_ACCESS_ERR", IBV_WC_REM_ACCESS_ERR, SEND | RESPONSE},
		{"REM_OP_ERR", IBV_WC_REM_OP_ERR, SEND | RESPONSE},
		{"RETRY_EXC_ERR", IBV_WC_RETRY_EXC_ERR, SEND | RESPONSE},
		{"RNR_RETRY_EXC_ERR", IBV_WC_RNR_RETRY_EXC_ERR, SEND},
		{"REM_ABORT_ERR", IBV_WC_REM_ABORT_ERR, RECV | SEND | RESPONSE},
		{"FATAL_ERR", IBV_WC_FATAL_ERR, ALL},
		{"RESP_TIMEOUT_ERR", IBV_WC_RESP_TIMEOUT_ERR, SEND | RESPONSE},
		{"GENERAL_ERR", IBV_WC_GENERAL_ERR, ALL},
	};
	struct ibv_mw *mw = ibv_alloc_mw(s.pd, IBV_MW_TYPE_2);
	REQUIRE(mw);
	const struct {
		const char *opcode;
		struct ibv_send_wr wr;
		enum kind kind;
	} operations[] = {
		{"recv", {.opcode = IBV_WR_SEND}, RECV},
		{"send", {.opcode = IBV_WR_SEND}, SEND},
		{"rdma_write", rdma(IBV_WR_RDMA_WRITE), SEND},
		{"rdma_read", rdma(IBV_WR_RDMA_READ), RESPONSE},
		{"atomic_write", rdma(IBV_WR_ATOMIC_WRITE), RESPONSE},
		{"comp_swap", atomic(IBV_WR_ATOMIC_CMP_AND_SWP), RESPONSE},
		{"fetch_add", atomic(IBV_WR_ATOMIC_FETCH_AND_ADD), RESPONSE},
		{"bind_mw",
		 {.opcode = IBV_WR_BIND_MW, .bind_mw = {.mw = mw, .bind_info = {.mr = s.mr}}},
		 LOCAL},
		{"local_inv", {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = mw->rkey}, LOCAL},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		for (size_t o = 0; o < sizeof operations / sizeof *operations; o++)
			if (table[i].kinds & operations[o].kind)
				completes(operations[o].opcode, operations[o].wr, table[i].name,
					  table[i].status);
	RETURNS(0, ibv_dealloc_mw(mw));
	request("# no rule");
}

static void event(enum ibv_event_type type, uint32_t number, const void *element)
{
	struct ibv_async_event e;
	request("fire %d %u", type, number);
	REQUIRE(!ibv_get_async_event(s.context, &e));
	if (e.event_type != type || (element && (void *)e.element.qp != element)) {
		fprintf(stderr, "%s: got %s\n", ibv_event_type_str(type),
			ibv_event_type_str(e.event_type));
		failures++;
	}
	ibv_ack_async_event(&e);
}

static void events(void)
{
	static const enum ibv_event_type of_nic[] = {IBV_EVENT_PORT_ERR,
						     IBV_EVENT_PORT_ACTIVE,
						     IBV_EVENT_LID_CHANGE,
						     IBV_EVENT_PKEY_CHANGE,
						     IBV_EVENT_SM_CHANGE,
						     IBV_EVENT_CLIENT_REREGISTER,
						     IBV_EVENT_GID_CHANGE},
					 of_qp[] = {IBV_EVENT_COMM_EST,
						    IBV_EVENT_SQ_DRAINED,
						    IBV_EVENT_PATH_MIG,
						    IBV_EVENT_PATH_MIG_ERR,
						    IBV_EVENT_QP_LAST_WQE_REACHED,
						    IBV_EVENT_QP_FATAL};
	struct ibv_qp *qp = loopback_qp(&s);
	for (size_t i = 0; i < sizeof of_nic / sizeof *of_nic; i++)
		event(of_nic[i], 0, NULL);
	for (size_t i = 0; i < sizeof of_qp / sizeof *of_qp; i++)
		event(of_qp[i], qp->qp_num, qp);
	RETURNS(0, ibv_destroy_qp(qp));
	qp = loopback_qp(&s);
	event(IBV_EVENT_QP_REQ_ERR, qp->qp_num, qp);
	RETURNS(0, ibv_destroy_qp(qp));
	qp = loopback_qp(&s);
	event(IBV_EVENT_QP_ACCESS_ERR, qp->qp_num, qp);
	RETURNS(0, ibv_destroy_qp(qp));
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(s.pd, &srq_init);
	REQUIRE(srq);
	event(IBV_EVENT_SRQ_LIMIT_REACHED, 0, srq);
	event(IBV_EVENT_SRQ_ERR, 0, srq);
	RETURNS(0, ibv_destroy_srq(srq));
	event(IBV_EVENT_CQ_ERR, 0, s.cq);
	event(IBV_EVENT_DEVICE_FATAL, 0, NULL);
}

/* A peer is refused access to registered memory. */
static void accesses(void)
{
	struct ibv_qp *qp = loopback_qp(&s), *peer = loopback_qp(&s);
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	REQUIRE(!ibv_modify_qp(qp, &reset, IBV_QP_STATE) &&
		!ibv_modify_qp(peer, &reset, IBV_QP_STATE));
	connect_qp(&s, qp, peer->qp_num);
	connect_qp(&s, peer, qp->qp_num);
	request("fail access qp %u rkey %u", peer->qp_num, s.mr->rkey);
	CHECK(complete(qp, rdma(IBV_WR_RDMA_WRITE)).status == IBV_WC_REM_ACCESS_ERR);
	struct ibv_async_event async;
	REQUIRE(!ibv_get_async_event(s.context, &async));
	CHECK(async.event_type == IBV_EVENT_QP_ACCESS_ERR && async.element.qp == peer);
	ibv_ack_async_event(&async);
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_qp(peer));
	request("# no rule");
}

/* A connection of the program to the daemon ends, and the others do not. */
static void closed_connection(void)
{
	struct ibv_context *closed = open_first();
	struct ibv_async_event e;
	request("close alloc_pd");
	FAILS(EIO, !ibv_alloc_pd(closed));
	request("# no rule");
	REQUIRE(!ibv_get_async_event(closed, &e));
	CHECK(e.event_type == IBV_EVENT_DEVICE_FATAL);
	ibv_ack_async_event(&e);
	RETURNS(0, ibv_close_device(closed));
	struct ibv_pd *pd = ibv_alloc_pd(s.context);
	CHECK(pd && !ibv_dealloc_pd(pd));

	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0xc0000201)};
	struct rdma_cm_id *id, *other;
	struct rdma_cm_event *event;
	REQUIRE(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	REQUIRE(!rdma_bind_addr(id, (struct sockaddr *)&at));
	request("close rdma_create_id");
	FAILS(EIO, rdma_create_id(channel, &other, NULL, RDMA_PS_TCP) == -1);
	request("# no rule");
	REQUIRE(!rdma_get_cm_event(channel, &event));
	CHECK(event->event == RDMA_CM_EVENT_DEVICE_REMOVAL && event->id == id);
	REQUIRE(!rdma_ack_cm_event(event) && !rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* The argument is how many seconds the program may take. */
int main(int argc, char **argv)
{
	limit_time(argc > 1 ? atoi(argv[1]) : 50);
	setup_open(&s);
	device_verbs();
	memory_verbs();
	queue_verbs();
	other_verbs();
	completions();
	accesses();
	closed_connection();
	events();
	setup_close(&s);
	return failures > 0;
}
