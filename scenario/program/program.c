/*
 * program - the verbs program of a scenario, on the host of the NIC under test.
 *
 * It reads lines and answers each with one: "ok" and values, or "error" and a reason.
 * README.md has the lines. It ends with its input; what it holds goes with it.
 *
 * usage: program [-d DEVICE] [-g GID-INDEX]
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_WORDS 64
#define MAX_SGE 4
#define NAME 64
#define WR_FLUSH 14 /* IBV_WR_FLUSH, which libibverbs has from rdma-core 45 on */

enum kind { PD, MR, MW, CQ, SRQ, QP, XRCD };

/* An object has the name that the script gave it. */
struct object {
	struct object *next;
	enum kind kind;
	char name[NAME];
	union {
		struct ibv_pd *pd;
		struct ibv_mr *mr;
		struct ibv_mw *mw;
		struct ibv_cq *cq;
		struct ibv_srq *srq;
		struct ibv_qp *qp;
		struct ibv_xrcd *xrcd;
		void *any;
	};
	uint8_t *mem; /* MR */
	int shared;   /* MR: the memory is another's */
	int extended; /* QP: has the newer way of posting */
	struct ibv_ah_attr av; /* QP: the way to its peer */
	struct ibv_ah *ah;     /* QP of UD: made of it when first needed */
};

static struct object *objects;
static struct ibv_context *ctx;
static struct ibv_comp_channel *channel;
static const char *device;
static int gid_index = -1;
static int num_words;
static char *word[MAX_WORDS];

static void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("error ");
	vprintf(format, args);
	printf("\n");
	va_end(args);
}

static void fail_errno(const char *what)
{
	fail("%s: %s", what, strerror(errno));
}

static uint64_t number(int i)
{
	return i < num_words ? strtoull(word[i], NULL, 0) : 0;
}

static const char *text(int i)
{
	return i < num_words ? word[i] : "-";
}

static struct object *find(enum kind kind, const char *name)
{
	for (struct object *o = objects; o; o = o->next)
		if (o->kind == kind && !strcmp(o->name, name))
			return o;
	return NULL;
}

/* must_find answers with an error where there is no such object. */
static struct object *must_find(enum kind kind, const char *name)
{
	struct object *o = find(kind, name);

	if (!o)
		fail("there is no %s", name);
	return o;
}

static struct object *add(enum kind kind, const char *name, void *any)
{
	struct object *o = calloc(1, sizeof(*o));

	if (!o)
		exit(2);
	o->kind = kind;
	snprintf(o->name, sizeof(o->name), "%s", name);
	o->any = any;
	o->next = objects;
	objects = o;
	return o;
}

static void forget(struct object *gone)
{
	for (struct object **p = &objects; *p; p = &(*p)->next) {
		if (*p == gone) {
			*p = gone->next;
			free(gone);
			return;
		}
	}
}

static struct ibv_pd *pd_named(const char *name)
{
	struct object *o = find(PD, name);
	struct ibv_pd *pd;

	if (o)
		return o->pd;
	pd = ibv_alloc_pd(ctx);
	if (pd)
		add(PD, name, pd);
	return pd;
}

/* The first GID of the address family of the peer. */
static int find_gid(const char *peer, union ibv_gid *gid)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	int want4 = !strchr(peer, ':');

	for (int i = gid_index < 0 ? 0 : gid_index; !ibv_query_gid(ctx, 1, i, gid); i++) {
		int is4 = !memcmp(gid->raw, mapped, sizeof(mapped));
		int local = gid->raw[0] == 0xfe && gid->raw[1] == 0x80;

		if (gid_index >= 0 || (want4 ? is4 : !is4 && !local && gid->raw[0])) {
			gid_index = i;
			return 0;
		}
		if (i > 1000)
			break;
	}
	return -1;
}

/* hello PEER: which address the NIC has for it. */
static void do_hello(void)
{
	struct ibv_device **list;
	union ibv_gid gid;
	char address[INET6_ADDRSTRLEN];
	int n = 0;

	list = ctx ? NULL : ibv_get_device_list(&n);
	for (int i = 0; i < n && !ctx; i++)
		if (!device || !strcmp(ibv_get_device_name(list[i]), device))
			ctx = ibv_open_device(list[i]);
	if (!ctx) {
		fail("there is no RDMA device%s%s", device ? " " : "", device ? device : "");
		return;
	}
	fcntl(ctx->async_fd, F_SETFL, fcntl(ctx->async_fd, F_GETFL) | O_NONBLOCK);
	if (!channel) {
		channel = ibv_create_comp_channel(ctx);
		if (!channel) {
			fail_errno("ibv_create_comp_channel");
			return;
		}
		fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	}
	if (find_gid(text(1), &gid)) {
		fail("the device has no address of the family of %s", text(1));
		return;
	}
	printf("ok %s\n", inet_ntop(AF_INET6, gid.raw, address, sizeof(address)));
}

/* mr NAME SIZE FILL ACCESS PD */
static void do_mr(void)
{
	struct ibv_pd *pd = pd_named(text(5));
	size_t size = number(2), whole = (size + 4095) & ~(size_t)4095;
	struct object *of = find(MR, text(6)), *o;
	uint8_t *mem = of ? of->mem : NULL;
	struct ibv_mr *mr;

	if (!pd || (!of && posix_memalign((void **)&mem, 4096, whole ? whole : 4096))) {
		fail_errno("mr");
		return;
	}
	if (!of)
		memset(mem, number(3), whole);
	mr = ibv_reg_mr(pd, mem, size, number(4));
	if (!mr) {
		fail_errno("ibv_reg_mr");
		if (!of)
			free(mem);
		return;
	}
	o = add(MR, text(1), mr);
	o->mem = mem;
	o->shared = !!of;
	printf("ok %lu %u %u\n", (unsigned long)(uintptr_t)mem, mr->lkey, mr->rkey);
}

/* dereg NAME: the memory stays, to see that nobody writes to it. */
static void do_dereg(void)
{
	struct object *o = must_find(MR, text(1));

	if (!o)
		return;
	errno = o->mr ? ibv_dereg_mr(o->mr) : EINVAL;
	if (errno) {
		fail_errno("ibv_dereg_mr");
		return;
	}
	o->mr = NULL;
	printf("ok\n");
}

/* read NAME OFFSET LENGTH */
static void do_read(void)
{
	struct object *o = must_find(MR, text(1));
	uint64_t n = number(3);

	if (!o)
		return;
	printf("ok ");
	for (uint64_t i = 0; i < n; i++)
		printf("%02x", o->mem[number(2) + i]);
	printf("\n");
}

static size_t parse_hex(const char *hex, uint8_t *to, size_t room)
{
	size_t n = 0;
	unsigned byte;

	if (!strcmp(hex, "-"))
		return 0;
	for (; n < room && sscanf(hex + 2 * n, "%2x", &byte) == 1; n++)
		to[n] = byte;
	return n;
}

/* write NAME OFFSET HEX */
static void do_write(void)
{
	struct object *o = must_find(MR, text(1));

	if (!o)
		return;
	parse_hex(text(3), o->mem + number(2), strlen(text(3)) / 2);
	printf("ok\n");
}

/* cq NAME ENTRIES */
static void do_cq(void)
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
static void do_arm(void)
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

/* notice: the name of a completion queue that has given one, or nothing. */
static void do_notice(void)
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

/* cq_named finds a completion queue, or makes one that is somebody's own. */
static struct object *cq_named(const char *name)
{
	struct object *o = find(CQ, name);
	struct ibv_cq *own;

	if (o)
		return o;
	own = ibv_create_cq(ctx, 128, NULL, NULL, 0);
	return own ? add(CQ, "", own) : NULL;
}

/* no_xrc answers if the device has none. */
static int no_xrc(void)
{
	struct ibv_device_attr a = { 0 };

	if (!ibv_query_device(ctx, &a) && a.device_cap_flags & IBV_DEVICE_XRC)
		return 0;
	fail("no XRC");
	return 1;
}

/* xrcd NAME */
static void do_xrcd(void)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					   .fd = -1, .oflags = O_CREAT };
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
		.attr = { .max_wr = number(2), .max_sge = MAX_SGE },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd->xrcd,
	};
	struct object *cq = cq_named(text(5));

	if (!cq)
		return NULL;
	init.cq = cq->cq;
	return ibv_create_srq_ex(ctx, &init);
}

/* srq NAME ENTRIES LIMIT XRCD CQ: the number of one of an XRC domain, else 0 */
static void do_srq(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = number(2), .max_sge = MAX_SGE } };
	struct ibv_srq_attr limit = { .srq_limit = number(3) };
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

/* xrc_target is an XRC queue pair that receives: it has nothing but its domain. */
static struct ibv_qp *xrc_target(struct object *xrcd)
{
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV,
					    .comp_mask = IBV_QP_INIT_ATTR_XRCD };

	if (!xrcd) {
		errno = EINVAL;
		return NULL;
	}
	init.xrcd = xrcd->xrcd;
	return ibv_create_qp_ex(ctx, &init);
}

/* An RC queue pair that can ATOMIC WRITE, which the older way of posting has no room for. */
static struct ibv_qp *extended_qp(struct ibv_pd *pd, const struct ibv_qp_init_attr *init)
{
	struct ibv_qp_init_attr_ex ex = {
		.send_cq = init->send_cq, .recv_cq = init->recv_cq, .srq = init->srq, .cap = init->cap,
		.qp_type = init->qp_type, .sq_sig_all = init->sq_sig_all, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE,
	};

	return init->qp_type == IBV_QPT_RC ? ibv_create_qp_ex(ctx, &ex) : NULL;
}

/* qp NAME TYPE CQ SRQ PD SIG-ALL MAX-SEND-WR MAX-RECV-WR XRCD */
static void do_qp(void)
{
	struct object *cq, *srq = find(SRQ, text(4));
	struct ibv_pd *pd = pd_named(text(5));
	struct ibv_qp_init_attr init = {
		.qp_type = number(2),
		.sq_sig_all = number(6),
		.cap = { .max_send_wr = number(7) ? number(7) : 64,
			 .max_recv_wr = number(8) ? number(8) : 64, .max_send_sge = MAX_SGE,
			 .max_recv_sge = MAX_SGE, .max_inline_data = 128 },
	};
	struct ibv_qp *qp, *extended = NULL;

	if ((init.qp_type == IBV_QPT_XRC_SEND || init.qp_type == IBV_QPT_XRC_RECV) && no_xrc())
		return;
	if (init.qp_type == IBV_QPT_XRC_RECV) {
		qp = xrc_target(find(XRCD, text(9)));
	} else {
		cq = cq_named(text(3));
		if (!cq) {
			fail_errno("ibv_create_cq");
			return;
		}
		init.send_cq = cq->cq;
		if (init.qp_type == IBV_QPT_XRC_SEND) {
			init.cap.max_recv_wr = init.cap.max_recv_sge = 0;
		} else {
			init.recv_cq = cq->cq;
			init.srq = srq ? srq->srq : NULL;
		}
		extended = pd ? extended_qp(pd, &init) : NULL;
		qp = extended ? extended : pd ? ibv_create_qp(pd, &init) : NULL;
	}
	if (!qp) {
		fail_errno("ibv_create_qp");
		return;
	}
	add(QP, text(1), qp)->extended = !!extended;
	printf("ok %u\n", qp->qp_num);
}

/* destroy NAME */
static void do_destroy(void)
{
	struct object *o = must_find(QP, text(1));

	if (!o)
		return;
	errno = ibv_destroy_qp(o->qp);
	if (errno) {
		fail_errno("ibv_destroy_qp");
		return;
	}
	if (o->ah)
		ibv_destroy_ah(o->ah);
	forget(o);
	printf("ok\n");
}

static enum ibv_mtu mtu_code(uint64_t bytes)
{
	for (int code = IBV_MTU_256; code <= IBV_MTU_4096; code++)
		if (bytes == 128u << code)
			return code;
	return 0;
}

/*
 * modify NAME MASK STATE MTU QKEY RQ-PSN SQ-PSN DEST-QPN ACCESS MAX-RD-ATOMIC MAX-DEST-RD-ATOMIC
 *        MIN-RNR-TIMER TIMEOUT RETRY-CNT RNR-RETRY PKEY-INDEX DGID TCLASS HOP-LIMIT FLOW-LABEL SL
 */
static void do_modify(void)
{
	struct object *o = must_find(QP, text(1));
	char address[INET6_ADDRSTRLEN + 8];
	struct ibv_qp_attr a = {
		.qp_state = number(3), .path_mtu = mtu_code(number(4)), .qkey = number(5),
		.rq_psn = number(6), .sq_psn = number(7), .dest_qp_num = number(8),
		.qp_access_flags = number(9), .max_rd_atomic = number(10),
		.max_dest_rd_atomic = number(11), .min_rnr_timer = number(12), .timeout = number(13),
		.retry_cnt = number(14), .rnr_retry = number(15), .pkey_index = number(16),
		.port_num = 1, .en_sqd_async_notify = !!(number(2) & IBV_QP_EN_SQD_ASYNC_NOTIFY),
		.ah_attr = { .is_global = 1, .port_num = 1, .sl = number(21),
			     .grh = { .sgid_index = gid_index, .traffic_class = number(18),
				      .hop_limit = number(19), .flow_label = number(20) } },
	};

	if (!o)
		return;
	snprintf(address, sizeof(address), "%s%s", strchr(text(17), ':') ? "" : "::ffff:", text(17));
	inet_pton(AF_INET6, address, a.ah_attr.grh.dgid.raw);
	if (!a.ah_attr.grh.hop_limit)
		a.ah_attr.grh.hop_limit = 64;
	o->av = a.ah_attr;
	errno = ibv_modify_qp(o->qp, &a, number(2));
	if (errno)
		fail_errno("ibv_modify_qp");
	else
		printf("ok\n");
}

/*
 * query NAME: STATE MTU QKEY RQ-PSN SQ-PSN DEST-QPN ACCESS MAX-RD-ATOMIC MAX-DEST-RD-ATOMIC
 *        MIN-RNR-TIMER TIMEOUT RETRY-CNT RNR-RETRY PKEY-INDEX TCLASS HOP-LIMIT FLOW-LABEL SL
 */
static void do_query(void)
{
	static const int everything = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX |
				      IBV_QP_QKEY | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT |
				      IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN |
				      IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER |
				      IBV_QP_SQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_DEST_QPN;
	struct object *o = must_find(QP, text(1));
	struct ibv_qp_attr a = { 0 };
	struct ibv_qp_init_attr init;

	if (!o)
		return;
	errno = ibv_query_qp(o->qp, &a, everything, &init);
	if (errno) {
		fail_errno("ibv_query_qp");
		return;
	}
	printf("ok %d %d %u %u %u %u %u %u %u %u %u %u %u %u %u %u %u %u\n", a.qp_state,
	       128 << a.path_mtu, a.qkey, a.rq_psn, a.sq_psn, a.dest_qp_num, a.qp_access_flags,
	       a.max_rd_atomic, a.max_dest_rd_atomic, a.min_rnr_timer, a.timeout, a.retry_cnt,
	       a.rnr_retry, a.pkey_index, a.ah_attr.grh.traffic_class, a.ah_attr.grh.hop_limit,
	       a.ah_attr.grh.flow_label, a.ah_attr.sl);
}

/* resize NAME ENTRIES: of a completion queue, or a shared receive queue. */
static void do_resize(void)
{
	struct ibv_srq_attr length = { .max_wr = number(2) };
	struct object *cq = find(CQ, text(1)), *srq = cq ? NULL : must_find(SRQ, text(1));

	if (!cq && !srq)
		return;
	errno = cq ? ibv_resize_cq(cq->cq, number(2)) : ibv_modify_srq(srq->srq, &length, IBV_SRQ_MAX_WR);
	if (errno)
		fail_errno("resize");
	else
		printf("ok\n");
}

/* limit NAME N */
static void do_limit(void)
{
	struct ibv_srq_attr limit = { .srq_limit = number(2) };
	struct object *o = must_find(SRQ, text(1));

	if (!o)
		return;
	errno = ibv_modify_srq(o->srq, &limit, IBV_SRQ_LIMIT);
	if (errno)
		fail_errno("ibv_modify_srq");
	else
		printf("ok\n");
}

/* state NAME */
static void do_state(void)
{
	struct object *o = must_find(QP, text(1));
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;

	if (!o)
		return;
	errno = ibv_query_qp(o->qp, &a, IBV_QP_STATE, &init);
	if (errno)
		fail_errno("ibv_query_qp");
	else
		printf("ok %d\n", a.qp_state);
}

/* sges reads COUNT {ADDRESS LENGTH LKEY}... from a word on. */
static int sges(int at, struct ibv_sge *list)
{
	int n = number(at);

	for (int i = 0; i < n && i < MAX_SGE; i++)
		list[i] = (struct ibv_sge){ number(at + 1 + 3 * i), number(at + 2 + 3 * i),
					    number(at + 3 + 3 * i) };
	return n;
}

/* atomic_write posts eight bytes that are where its first element says. */
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
	ibv_wr_atomic_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, (void *)(uintptr_t)wr->sg_list[0].addr);
	errno = ibv_wr_complete(ex);
	if (errno)
		fail_errno("ibv_wr_atomic_write");
	else
		printf("ok\n");
}

/* send NAME ID OPCODE FLAGS IMM REMOTE-ADDRESS RKEY COMPARE-ADD SWAP INLINE REMOTE-SRQ FLUSH-LENGTH PLACEMENT SELECTIVITY SGES */
static void do_send(void)
{
	struct object *o = must_find(QP, text(1));
	uint8_t data[256];
	struct ibv_sge list[MAX_SGE];
	struct ibv_send_wr *bad, wr = { .wr_id = number(2), .opcode = number(3),
					.send_flags = number(4), .sg_list = list };

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

/* mw NAME TYPE PD */
static void do_mw(void)
{
	struct ibv_pd *pd = pd_named(text(3));
	struct ibv_mw *mw = pd ? ibv_alloc_mw(pd, number(2)) : NULL;

	if (!mw) {
		fail_errno("ibv_alloc_mw");
		return;
	}
	add(MW, text(1), mw);
	printf("ok %u\n", mw->rkey);
}

/* free NAME */
static void do_free(void)
{
	struct object *o = must_find(MW, text(1));

	if (!o)
		return;
	errno = ibv_dealloc_mw(o->mw);
	if (errno) {
		fail_errno("ibv_dealloc_mw");
		return;
	}
	forget(o);
	printf("ok\n");
}

/* bind QP ID FLAGS MW MR ADDRESS LENGTH ACCESS RKEY: the key that the window has from then on. */
static void do_bind(void)
{
	struct object *qp = must_find(QP, text(1)), *mw = qp ? must_find(MW, text(4)) : NULL;
	struct object *mr = find(MR, text(5));
	struct ibv_mw_bind_info info = { .mr = mr ? mr->mr : NULL, .addr = number(6),
					 .length = number(7), .mw_access_flags = number(8) };
	uint32_t key = number(9);

	if (!mw)
		return;
	if (mw->mw->type == IBV_MW_TYPE_1) {
		struct ibv_mw_bind bind = { .wr_id = number(2), .send_flags = number(3),
					    .bind_info = info };

		errno = ibv_bind_mw(qp->qp, mw->mw, &bind);
		key = mw->mw->rkey;
	} else {
		struct ibv_send_wr *bad, wr = { .wr_id = number(2), .opcode = IBV_WR_BIND_MW,
						.send_flags = number(3) };

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

static void change_group(int (*change)(struct ibv_qp *, const union ibv_gid *, uint16_t))
{
	struct object *o = must_find(QP, text(1));
	char address[INET6_ADDRSTRLEN + 8];
	union ibv_gid gid;

	if (!o)
		return;
	snprintf(address, sizeof(address), "%s%s", strchr(text(2), ':') ? "" : "::ffff:", text(2));
	inet_pton(AF_INET6, address, gid.raw);
	errno = change(o->qp, &gid, 0);
	if (errno)
		fail_errno("multicast");
	else
		printf("ok\n");
}

/* How long a driver may take to tell its hardware of a group: Linux's virtio_net does so from a work queue. */
#define DRIVER_TIME_US 50000

/* What is sent to a group reaches a host only whose kernel has joined it, on the NIC's interface. */
static void join_on_interface(const char *group)
{
	static int fd4 = -1, fd6 = -1;
	struct ip_mreqn m4 = { .imr_ifindex = 0 };
	struct ipv6_mreq m6 = { .ipv6mr_interface = 0 };
	char path[128], name[IF_NAMESIZE] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/%d",
		 ibv_get_device_name(ctx->device), gid_index);
	f = fopen(path, "r");
	if (!f)
		return;
	if (fscanf(f, "%15s", name) != 1)
		name[0] = 0;
	fclose(f);
	m4.imr_ifindex = m6.ipv6mr_interface = if_nametoindex(name);
	if (fd4 < 0) {
		fd4 = socket(AF_INET, SOCK_DGRAM, 0);
		fd6 = socket(AF_INET6, SOCK_DGRAM, 0);
	}
	if (inet_pton(AF_INET, group, &m4.imr_multiaddr) == 1)
		setsockopt(fd4, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m4, sizeof(m4));
	else if (inet_pton(AF_INET6, group, &m6.ipv6mr_multiaddr) == 1)
		setsockopt(fd6, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, &m6, sizeof(m6));
	usleep(DRIVER_TIME_US);
}

/* attach QP GROUP */
static void do_attach(void)
{
	join_on_interface(text(2));
	change_group(ibv_attach_mcast);
}

/* detach QP GROUP */
static void do_detach(void)
{
	change_group(ibv_detach_mcast);
}

/* recv NAME ID SGES */
static void do_recv(void)
{
	struct object *srq = find(SRQ, text(1)), *o = srq ? srq : must_find(QP, text(1));
	struct ibv_sge list[MAX_SGE];
	struct ibv_recv_wr *bad, wr = { .wr_id = number(2), .sg_list = list };

	if (!o)
		return;
	wr.num_sge = sges(3, list);
	errno = srq ? ibv_post_srq_recv(o->srq, &wr, &bad) : ibv_post_recv(o->qp, &wr, &bad);
	if (errno)
		fail_errno("ibv_post_recv");
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

/* poll: QP ID STATUS OPCODE BYTE-LEN IMM SRC-QP FLAGS of a completion, or nothing. */
static void do_poll(void)
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

/* event: TYPE OBJECT of an asynchronous event, or nothing. */
static void do_event(void)
{
	struct ibv_async_event e;

	if (ibv_get_async_event(ctx, &e)) {
		printf("ok\n");
		return;
	}
	printf("ok %d %s\n", e.event_type, event_object(&e));
	ibv_ack_async_event(&e);
}

/* gone destroys an object, in whatever state it is. */
static int gone(struct object *o)
{
	switch (o->kind) {
	case QP:
		errno = ibv_destroy_qp(o->qp);
		if (o->ah)
			ibv_destroy_ah(o->ah);
		break;
	case SRQ:
		errno = ibv_destroy_srq(o->srq);
		break;
	case CQ:
		errno = ibv_destroy_cq(o->cq);
		break;
	case MW:
		errno = ibv_dealloc_mw(o->mw);
		break;
	case MR:
		errno = o->mr ? ibv_dereg_mr(o->mr) : 0;
		if (!o->shared)
			free(o->mem);
		break;
	case PD:
		errno = ibv_dealloc_pd(o->pd);
		break;
	case XRCD:
		errno = ibv_close_xrcd(o->xrcd);
		break;
	}
	return errno;
}

/* reset: nothing is left of what was made since hello. */
static void do_reset(void)
{
	static const enum kind order[] = { QP, SRQ, CQ, MW, MR, XRCD, PD };
	struct ibv_async_event e;
	int failed = 0;

	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		for (struct object *o = objects, *next; o; o = next) {
			next = o->next;
			if (o->kind != order[i])
				continue;
			if (gone(o) && !failed)
				failed = errno;
			forget(o);
		}
	}
	while (!ibv_get_async_event(ctx, &e))
		ibv_ack_async_event(&e);
	errno = failed;
	if (failed)
		fail_errno("reset");
	else
		printf("ok\n");
}

/*
 * now: nanoseconds of a clock that does not jump. Whoever asks knows then that the host has had its turn, and the device,
 * which was asked twice: what came before the first question was received before the second.
 */
static void do_now(void)
{
	struct ibv_port_attr a;
	struct timespec t;

	for (int i = 0; i < 2; i++)
		ibv_query_port(ctx, 1, &a);
	clock_gettime(CLOCK_MONOTONIC, &t);
	printf("ok %lld\n", t.tv_sec * 1000000000LL + t.tv_nsec);
}

static const struct command {
	const char *name;
	void (*carry_out)(void);
} commands[] = {
	{ "hello", do_hello }, { "mr", do_mr },		  { "dereg", do_dereg },
	{ "read", do_read },   { "write", do_write },	  { "cq", do_cq },
	{ "srq", do_srq },     { "qp", do_qp },		  { "destroy", do_destroy },
	{ "modify", do_modify }, { "state", do_state },	  { "send", do_send },
	{ "recv", do_recv },   { "poll", do_poll },	  { "event", do_event },
	{ "now", do_now },     { "arm", do_arm },	  { "notice", do_notice },
	{ "xrcd", do_xrcd },   { "query", do_query }, { "resize", do_resize },	  { "limit", do_limit },
	{ "mw", do_mw },       { "free", do_free },	  { "bind", do_bind },
	{ "attach", do_attach }, { "detach", do_detach },     { "reset", do_reset },
};

static void carry_out(char *line)
{
	num_words = 0;
	for (char *w = strtok(line, " \n"); w && num_words < MAX_WORDS; w = strtok(NULL, " \n"))
		word[num_words++] = w;
	if (!num_words) {
		fail("an empty line");
		return;
	}
	if (!ctx && strcmp(word[0], "hello")) {
		fail("hello comes first");
		return;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (!strcmp(word[0], commands[i].name)) {
			commands[i].carry_out();
			return;
		}
	}
	fail("%s is not known", word[0]);
}

int main(int argc, char **argv)
{
	char *line = NULL;
	size_t room = 0;
	int c;

	while ((c = getopt(argc, argv, "d:g:")) != -1) {
		if (c == 'd') {
			device = optarg;
		} else if (c == 'g') {
			gid_index = atoi(optarg);
		} else {
			fprintf(stderr, "usage: program [-d DEVICE] [-g GID-INDEX]\n");
			return 2;
		}
	}
	while (getline(&line, &room, stdin) > 0) {
		carry_out(line);
		fflush(stdout);
	}
	return 0;
}
