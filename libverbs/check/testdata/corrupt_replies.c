// SPDX-License-Identifier: Apache-2.0
/*
 * Makes many calls and ignores their errors. No reply may crash the program, whatever it
 * contains.
 */
#include "setup.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

static void query_all(struct ibv_context *c)
{
	struct ibv_device_attr_ex attr;
	struct ibv_port_attr port;
	struct ibv_gid_entry entries[8];
	union ibv_gid gid;
	__be16 pkey;
	ibv_query_device_ex(c, NULL, &attr);
	ibv_query_port(c, 1, &port);
	ibv_query_gid_table(c, entries, 8, 0);
	for (int i = -1; i < 4; i++) {
		ibv_query_gid(c, 1, i, &gid);
		ibv_query_pkey(c, 1, i, &pkey);
	}
}

static struct ibv_qp *loopback(struct ibv_context *c, struct ibv_pd *pd, struct ibv_cq *cq,
			       struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {.send_cq = cq,
					.recv_cq = cq,
					.srq = srq,
					.cap = {8, 8, 2, 2, 100},
					.qp_type = IBV_QPT_RC,
					.sq_sig_all = 1};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	if (!qp)
		return NULL;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.path_mtu = IBV_MTU_256,
		.dest_qp_num = qp->qp_num,
		.timeout = 14,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1}},
	};
	struct ibv_qp_init_attr queried;
	ibv_query_gid(c, 1, 1, &a.ah_attr.grh.dgid);
	ibv_modify_qp(qp, &a, INIT_MASK);
	a.qp_state = IBV_QPS_RTR;
	ibv_modify_qp(qp, &a, RTR_MASK);
	a.qp_state = IBV_QPS_RTS;
	ibv_modify_qp(qp, &a, RTS_MASK);
	ibv_query_qp(qp, &a, 0, &queried);
	qp->state = IBV_QPS_RTS; /* the reply may have contained another state */
	return qp;
}

static void post_and_poll(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr)
{
	char data[100] = "";
	struct ibv_sge sge[2] = {{(uintptr_t)data, 50, mr ? mr->lkey : 0}};
	struct ibv_send_wr send = {.sg_list = sge, .num_sge = 2, .opcode = IBV_WR_SEND}, *bad;
	struct ibv_recv_wr recv = {.sg_list = sge, .num_sge = 2}, *bad_recv;
	struct ibv_wc wc[4];
	sge[1] = sge[0];
	for (int i = 0; i < 20; i++) {
		send.send_flags = i % 2 ? IBV_SEND_INLINE : 0;
		ibv_post_recv(qp, &recv, &bad_recv);
		ibv_post_send(qp, &send, &bad);
		if (cq)
			ibv_poll_cq(cq, 4, wc);
	}
}

static void use_verbs(struct ibv_context *c)
{
	static char buf[256];
	struct ibv_async_event event;
	struct ibv_pd *pd = ibv_alloc_pd(c);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(c);
	struct ibv_cq *cq = ibv_create_cq(c, 20, NULL, channel, 0);
	query_all(c);
	if (cq) {
		ibv_req_notify_cq(cq, 0);
		ibv_resize_cq(cq, 40);
	}
	if (pd) {
		struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, ALL_ACCESS);
		struct ibv_srq_init_attr init = {.attr = {.max_wr = 10, .max_sge = 2}};
		struct ibv_srq_attr attr = {.max_wr = 30};
		struct ibv_srq *srq = ibv_create_srq(pd, &init);
		struct ibv_qp *qp = cq ? loopback(c, pd, cq, NULL) : NULL;
		struct ibv_recv_wr recv = {0}, *bad;
		if (srq) {
			ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR);
			for (int i = 0; i < 40; i++)
				ibv_post_srq_recv(srq, &recv, &bad);
			ibv_destroy_srq(srq);
		}
		if (qp) {
			post_and_poll(qp, cq, mr);
			ibv_destroy_qp(qp);
		}
		if (mr)
			ibv_dereg_mr(mr);
		ibv_dealloc_pd(pd);
	}
	fcntl(c->async_fd, F_SETFL, O_NONBLOCK);
	ibv_get_async_event(c, &event);
	if (cq)
		ibv_destroy_cq(cq);
	if (channel)
		ibv_destroy_comp_channel(channel);
}

static void use_rdmacm(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr = {htonl(0xc0000201)}};
	struct rdma_cm_event *e;
	struct rdma_cm_id *id;
	if (!channel)
		return;
	fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	if (!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP)) {
		rdma_bind_addr(id, (struct sockaddr *)&addr);
		addr.sin_addr.s_addr = htonl(0xc0000202);
		rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 1);
		for (int i = 0; i < 20 && rdma_get_cm_event(channel, &e); i++)
			usleep(1000);
		_exit(0); /* without acknowledging an event, if there is one */
	}
}

int main(void)
{
	int n = 0;
	alarm(50); /* the program normally takes much less */
	struct ibv_device **list = ibv_get_device_list(&n);
	for (int i = 0; i < n; i++) {
		struct ibv_context *c = ibv_open_device(list[i]);
		if (!c)
			continue;
		use_verbs(c);
		ibv_close_device(c);
	}
	if (list)
		ibv_free_device_list(list);
	use_rdmacm();
	return 0;
}
