// SPDX-License-Identifier: Apache-2.0
/*
 * Datagram sockets: queue pairs, and datagrams sent and received through them.
 */
#include "rsocket/dgram.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

/* Set in the wr_id of a receive; the other bits are the index of its buffer. */
#define RECV_BIT (1ULL << 63)

static uint32_t port_mtu(struct ds_qp *qp)
{
	struct ibv_port_attr port;
	if (ibv_query_port(qp->id->verbs, qp->id->port_num, &port))
		return 0;
	return 128U << port.active_mtu;
}

/* Sets the number of buffers from the options, limited by the device. 0 or an errno. */
static int set_buffer_counts(struct rs *s, struct ds_qp *qp)
{
	struct ibv_device_attr attr;
	int error = ibv_query_device(qp->id->verbs, &attr);
	if (error)
		return error;
	qp->mtu = port_mtu(qp);
	qp->recv_size = qp->mtu + DS_GRH;
	if (!qp->mtu)
		return EIO;
	qp->receives = s->opt.rq_size < attr.max_qp_wr ? s->opt.rq_size : attr.max_qp_wr;
	qp->sends = s->opt.snd_size / (int)qp->mtu;
	if (qp->sends > s->opt.sq_size)
		qp->sends = s->opt.sq_size;
	if (qp->sends > attr.max_qp_wr)
		qp->sends = attr.max_qp_wr;
	if (qp->sends < 1)
		qp->sends = 1;
	return 0;
}

static int alloc_buffers(struct ds_qp *qp)
{
	struct ibv_pd *pd = qp->id->pd;
	size_t in = (size_t)qp->receives * qp->recv_size, out = (size_t)qp->sends * qp->mtu;
	qp->rbuf = calloc(1, in);
	qp->sbuf = calloc(1, out);
	qp->msgs = calloc(qp->receives, sizeof *qp->msgs);
	qp->free_sends = calloc(qp->sends, sizeof *qp->free_sends);
	if (!qp->rbuf || !qp->sbuf || !qp->msgs || !qp->free_sends)
		return ENOMEM;
	while (qp->free_count < qp->sends) {
		qp->free_sends[qp->free_count] = qp->free_count;
		qp->free_count++;
	}
	qp->rmr = ibv_reg_mr(pd, qp->rbuf, in, IBV_ACCESS_LOCAL_WRITE);
	qp->smr = ibv_reg_mr(pd, qp->sbuf, out, 0);
	return qp->rmr && qp->smr ? 0 : errno;
}

static int create_queues(struct rs *s, struct ds_qp *qp)
{
	qp->comp = ibv_create_comp_channel(qp->id->verbs);
	if (!qp->comp)
		return errno;
	fcntl(qp->comp->fd, F_SETFL, fcntl(qp->comp->fd, F_GETFL) | O_NONBLOCK);
	struct epoll_event watch = {.events = EPOLLIN};
	if (epoll_ctl(s->fd, EPOLL_CTL_ADD, qp->comp->fd, &watch))
		return errno;
	qp->cq = ibv_create_cq(qp->id->verbs, qp->receives + qp->sends, NULL, qp->comp, 0);
	if (!qp->cq)
		return errno;
	struct ibv_qp_init_attr attr = {
		.send_cq = qp->cq,
		.recv_cq = qp->cq,
		.qp_type = IBV_QPT_UD,
		.sq_sig_all = 1,
		.cap = {.max_send_wr = qp->sends,
			.max_recv_wr = qp->receives,
			.max_send_sge = 1,
			.max_recv_sge = 1},
	};
	if (rdma_create_qp(qp->id, NULL, &attr))
		return errno;
	return ibv_req_notify_cq(qp->cq, 0);
}

/* Fills in the header of the datagrams that this queue pair sends. */
static void init_header(struct ds *d, struct ds_qp *qp)
{
	struct ds_header *h = &qp->header;
	h->port = *ds_addr_port(&d->local);
	if (qp->local.sa.sa_family == AF_INET) {
		h->version = 4;
		h->length = offsetof(struct ds_header, ipv4) + sizeof h->ipv4;
		memcpy(h->ipv4, &qp->local.in.sin_addr, sizeof h->ipv4);
		return;
	}
	h->version = 6;
	h->length = sizeof *h;
	memcpy(h->ipv6.addr, &qp->local.in6.sin6_addr, sizeof h->ipv6.addr);
}

static int init_qp(struct rs *s, struct ds_qp *qp)
{
	if (rdma_create_id(s->ds->channel, &qp->id, NULL, RDMA_PS_UDP))
		return errno;
	if (rdma_bind_addr(qp->id, &qp->local.sa))
		return errno;
	if (!qp->id->verbs)
		return ENODEV;
	int error = set_buffer_counts(s, qp);
	if (!error)
		error = alloc_buffers(qp);
	if (!error)
		error = create_queues(s, qp);
	if (error)
		return error;
	init_header(s->ds, qp);
	for (int i = 0; i < qp->receives; i++) {
		qp->msgs[i].qp = qp;
		ds_post_recv(qp, &qp->msgs[i]);
	}
	return 0;
}

struct ds_qp *ds_get_qp(struct rs *s, const union ds_addr *local)
{
	for (struct ds_qp *qp = s->ds->qps; qp; qp = qp->next)
		if (ds_addr_equal(&qp->local, local, false))
			return qp;
	struct ds_qp *qp = calloc(1, sizeof *qp);
	if (!qp)
		return NULL;
	qp->local = *local;
	*ds_addr_port(&qp->local) = 0;
	int error = init_qp(s, qp);
	if (error) {
		ds_destroy_qp(qp);
		errno = error;
		return NULL;
	}
	qp->next = s->ds->qps;
	s->ds->qps = qp;
	return qp;
}

void ds_destroy_qp(struct ds_qp *qp)
{
	if (qp->id && qp->id->qp)
		rdma_destroy_qp(qp->id);
	if (qp->cq)
		ibv_destroy_cq(qp->cq);
	if (qp->comp)
		ibv_destroy_comp_channel(qp->comp); /* also removes it from the epoll set */
	if (qp->rmr)
		ibv_dereg_mr(qp->rmr);
	if (qp->smr)
		ibv_dereg_mr(qp->smr);
	if (qp->id)
		rdma_destroy_id(qp->id);
	free(qp->rbuf);
	free(qp->sbuf);
	free(qp->msgs);
	free(qp->free_sends);
	free(qp);
}

void ds_post_recv(struct ds_qp *qp, struct ds_msg *m)
{
	size_t i = (size_t)(m - qp->msgs);
	struct ibv_sge sge = {
		.addr = (uintptr_t)qp->rbuf + i * qp->recv_size,
		.length = qp->recv_size,
		.lkey = qp->rmr->lkey,
	};
	struct ibv_recv_wr wr = {.wr_id = RECV_BIT | i, .sg_list = &sge, .num_sge = 1}, *bad;
	ibv_post_recv(qp->id->qp, &wr, &bad);
}

void ds_add_msg(struct ds *d, struct ds_msg *m)
{
	m->next = NULL;
	*d->last = m;
	d->last = &m->next;
}

/* Parses the header of a received datagram: its sender, and the start of its data. */
static bool parse_header(struct ds_msg *m, uint32_t len)
{
	const uint8_t *p = m->qp->rbuf + (size_t)(m - m->qp->msgs) * m->qp->recv_size + DS_GRH;
	size_t v4 = offsetof(struct ds_header, ipv4) + 4;
	struct ds_header h;
	if (len < DS_GRH + v4)
		return false;
	len -= DS_GRH;
	memset(&m->from, 0, sizeof m->from);
	memcpy(&h, p, len < sizeof h ? len : sizeof h);
	if (h.length > len)
		return false;
	if (h.version == 4 && h.length >= v4) {
		m->from.in.sin_family = AF_INET;
		m->from.in.sin_port = h.port;
		memcpy(&m->from.in.sin_addr, h.ipv4, sizeof h.ipv4);
	} else if (h.version == 6 && h.length >= sizeof h) {
		m->from.in6.sin6_family = AF_INET6;
		m->from.in6.sin6_port = h.port;
		memcpy(&m->from.in6.sin6_addr, h.ipv6.addr, sizeof h.ipv6.addr);
	} else {
		return false;
	}
	m->data = p + h.length;
	m->len = len - h.length;
	return true;
}

bool ds_poll_qp(struct rs *s, struct ds_qp *qp)
{
	struct ibv_wc wc;
	bool any = false;
	while (ibv_poll_cq(qp->cq, 1, &wc) > 0) {
		uint64_t i = wc.wr_id & ~RECV_BIT;
		any = true;
		if (!(wc.wr_id & RECV_BIT)) {
			qp->free_sends[qp->free_count++] = (int)i;
			continue;
		}
		if (wc.status == IBV_WC_WR_FLUSH_ERR) {
			s->error = ENETDOWN; /* only the end of the daemon flushes receives */
			continue;
		}
		struct ds_msg *m = &qp->msgs[i];
		if (wc.status == IBV_WC_SUCCESS && wc.wc_flags & IBV_WC_GRH &&
		    wc.byte_len <= qp->recv_size && parse_header(m, wc.byte_len))
			ds_add_msg(s->ds, m);
		else
			ds_post_recv(qp, m);
	}
	return any;
}

int ds_post_send(struct ds_peer *p, const struct iovec *v, size_t count)
{
	struct ds_qp *qp = p->qp;
	if (!qp->free_count)
		return EAGAIN;
	int i = qp->free_sends[qp->free_count - 1];
	uint8_t *at = qp->sbuf + (size_t)i * qp->mtu;
	struct ibv_sge sge = {.addr = (uintptr_t)at, .lkey = qp->smr->lkey};
	memcpy(at, &qp->header, qp->header.length);
	at += qp->header.length;
	for (size_t k = 0; k < count; k++) {
		if (v[k].iov_len)
			memcpy(at, v[k].iov_base, v[k].iov_len);
		at += v[k].iov_len;
	}
	sge.length = (uint32_t)((uintptr_t)at - sge.addr);
	struct ibv_send_wr wr = {
		.wr_id = i,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.wr.ud = {.ah = p->ah, .remote_qpn = p->qpn, .remote_qkey = RDMA_UDP_QKEY},
	};
	struct ibv_send_wr *bad;
	int error = ibv_post_send(qp->id->qp, &wr, &bad);
	if (!error)
		qp->free_count--;
	return error;
}
