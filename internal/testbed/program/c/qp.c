/* Queue pairs: creation, states and multicast groups. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "program.h"

/* xrc_target creates an XRC target queue pair, which has no attributes besides its domain. */
static struct ibv_qp *xrc_target(struct object *xrcd)
{
	struct ibv_qp_init_attr_ex init = {.qp_type = IBV_QPT_XRC_RECV,
					   .comp_mask = IBV_QP_INIT_ATTR_XRCD};

	if (!xrcd) {
		errno = EINVAL;
		return NULL;
	}
	init.xrcd = xrcd->xrcd;
	return ibv_create_qp_ex(ctx, &init);
}

/* extended_qp creates an RC queue pair that supports ATOMIC WRITE, which ibv_post_send does not. */
static struct ibv_qp *extended_qp(struct ibv_pd *pd, const struct ibv_qp_init_attr *init)
{
	struct ibv_qp_init_attr_ex ex = {
		.send_cq = init->send_cq,
		.recv_cq = init->recv_cq,
		.srq = init->srq,
		.cap = init->cap,
		.qp_type = init->qp_type,
		.sq_sig_all = init->sq_sig_all,
		.pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE,
	};

	return init->qp_type == IBV_QPT_RC ? ibv_create_qp_ex(ctx, &ex) : NULL;
}

/* qp NAME TYPE CQ SRQ PD SIG-ALL MAX-SEND-WR MAX-RECV-WR XRCD */
void do_qp(void)
{
	struct object *cq, *srq = find(SRQ, text(4));
	struct ibv_pd *pd = pd_named(text(5));
	struct ibv_qp_init_attr init = {
		.qp_type = number(2),
		.sq_sig_all = number(6),
		.cap = {.max_send_wr = number(7) ? number(7) : 64,
			.max_recv_wr = number(8) ? number(8) : 64,
			.max_send_sge = MAX_SGE,
			.max_recv_sge = MAX_SGE,
			.max_inline_data = 128},
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
void do_destroy(void)
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
 *        [SGID-INDEX]
 */
void do_modify(void)
{
	struct object *o = must_find(QP, text(1));
	char address[INET6_ADDRSTRLEN + 8];
	struct ibv_qp_attr a = {
		.qp_state = number(3),
		.path_mtu = mtu_code(number(4)),
		.qkey = number(5),
		.rq_psn = number(6),
		.sq_psn = number(7),
		.dest_qp_num = number(8),
		.qp_access_flags = number(9),
		.max_rd_atomic = number(10),
		.max_dest_rd_atomic = number(11),
		.min_rnr_timer = number(12),
		.timeout = number(13),
		.retry_cnt = number(14),
		.rnr_retry = number(15),
		.pkey_index = number(16),
		.port_num = 1,
		.en_sqd_async_notify = !!(number(2) & IBV_QP_EN_SQD_ASYNC_NOTIFY),
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .sl = number(21),
			    .grh = {.sgid_index = num_words > 22 ? (int)number(22) : gid_index,
				    .traffic_class = number(18),
				    .hop_limit = number(19),
				    .flow_label = number(20)}},
	};

	if (!o)
		return;
	snprintf(address, sizeof(address), "%s%s",
		 strchr(text(17), ':') ? "" : "::ffff:", text(17));
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
void do_query(void)
{
	static const int everything = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX |
				      IBV_QP_QKEY | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT |
				      IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN |
				      IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER |
				      IBV_QP_SQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_DEST_QPN;
	struct object *o = must_find(QP, text(1));
	struct ibv_qp_attr a = {0};
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

/* state NAME */
void do_state(void)
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

/*
 * How long a driver may take to configure a group in its hardware: Linux's virtio_net does so
 * from a work queue.
 */
#define DRIVER_TIME_US 50000

/*
 * A host receives multicast packets only if its kernel has joined the group on the NIC's
 * interface.
 */
static void join_on_interface(const char *group)
{
	static int fd4 = -1, fd6 = -1;
	struct ip_mreqn m4 = {.imr_ifindex = 0};
	struct ipv6_mreq m6 = {.ipv6mr_interface = 0};
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
void do_attach(void)
{
	join_on_interface(text(2));
	change_group(ibv_attach_mcast);
}

/* detach QP GROUP */
void do_detach(void)
{
	change_group(ibv_detach_mcast);
}
