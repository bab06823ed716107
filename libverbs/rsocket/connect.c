// SPDX-License-Identifier: Apache-2.0
/*
 * Sockets over RDMA: connecting and accepting.
 */
#include "rsocket/dgram.h"

#include <endian.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RESOLVE_TIMEOUT 2000 /* ms */

static void *aligned(size_t n)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *p = aligned_alloc(page, (n + page - 1) / page * page);
	if (p)
		memset(p, 0, n);
	return p;
}

/* No more than the device has room for. */
static int fit_queues(struct rs *s)
{
	struct ibv_device_attr attr;
	int error = ibv_query_device(s->id->verbs, &attr);
	if (error)
		return error;
	int most = attr.max_qp_wr - RS_CTRL_MAX, cqe = attr.max_cqe / 2 - RS_CTRL_MAX;
	if (most > cqe)
		most = cqe;
	if (most < RS_MIN_QUEUE)
		return ENOBUFS;
	if (s->opt.sq_size > most)
		s->opt.sq_size = most;
	if (s->opt.rq_size > most)
		s->opt.rq_size = most;
	return 0;
}

/* Makes buffers and the queue pair of an identifier that is bound to a device. 0 or an errno. */
static int make_queues(struct rs *s)
{
	struct ibv_pd *pd = s->id->pd;
	int error = fit_queues(s);
	if (error)
		return error;
	size_t list =
		RS_TARGETS * sizeof(struct rs_sge) + s->opt.iomap_size * sizeof(struct rs_iomap);
	s->sbuf = aligned(s->opt.snd_size);
	s->rbuf = aligned(s->opt.rcv_size);
	s->targets = aligned(list);
	s->msize = s->opt.rq_size + 1;
	s->messages = calloc(s->msize, sizeof *s->messages);
	if (!s->sbuf || !s->rbuf || !s->targets || !s->messages)
		return ENOMEM;
	s->iomaps = (struct rs_iomap *)(s->targets + RS_TARGETS);
	int remote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	s->smr = ibv_reg_mr(pd, s->sbuf, s->opt.snd_size, IBV_ACCESS_LOCAL_WRITE);
	s->rmr = ibv_reg_mr(pd, s->rbuf, s->opt.rcv_size, remote);
	s->tmr = ibv_reg_mr(pd, s->targets, list, remote);
	s->comp = ibv_create_comp_channel(s->id->verbs);
	if (!s->smr || !s->rmr || !s->tmr || !s->comp)
		return errno;
	fcntl(s->comp->fd, F_SETFL, fcntl(s->comp->fd, F_GETFL) | O_NONBLOCK);
	/* Twice as many receives as credits: what the peer sends beside data needs none. */
	int receives = s->opt.rq_size + RS_CTRL_MAX, sends = s->opt.sq_size + RS_CTRL_MAX;
	s->cq = ibv_create_cq(s->id->verbs, receives + sends, s, s->comp, 0);
	if (!s->cq)
		return errno;
	struct ibv_qp_init_attr attr = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = {.max_send_wr = sends,
			.max_recv_wr = receives,
			.max_send_sge = 2,
			.max_recv_sge = 1,
			/* What we tell the peer is sent so. */
			.max_inline_data = s->opt.inline_size < (int)sizeof(struct rs_iomap)
						   ? (int)sizeof(struct rs_iomap)
						   : s->opt.inline_size},
	};
	if (rdma_create_qp(s->id, NULL, &attr))
		return errno;
	s->sfree = s->opt.snd_size;
	s->sqe = s->opt.sq_size;
	s->rtold = s->rbytes = s->rgiven = s->opt.rcv_size / 2;
	s->rseq_told = (uint16_t)(s->opt.rq_size / 2);
	return rs_post_recv(s, receives);
}

void rs_release(struct rs *s)
{
	if (s->ds)
		ds_release(s);
	if (s->id) {
		if (s->id->qp)
			rdma_destroy_qp(s->id);
		while (s->regions) {
			struct rs_region *r = s->regions;
			s->regions = r->next;
			if (r->mr)
				ibv_dereg_mr(r->mr);
			free(r);
		}
		if (s->cq)
			ibv_destroy_cq(s->cq);
		if (s->comp)
			ibv_destroy_comp_channel(s->comp);
		if (s->smr)
			ibv_dereg_mr(s->smr);
		if (s->rmr)
			ibv_dereg_mr(s->rmr);
		if (s->tmr)
			ibv_dereg_mr(s->tmr);
		rdma_destroy_id(s->id);
	}
	if (s->channel)
		rdma_destroy_event_channel(s->channel);
	free(s->sbuf);
	free(s->rbuf);
	free(s->targets);
	free(s->messages);
}

static void fail(struct rs *s, int error)
{
	s->state = RS_FAILED;
	s->error = error;
	s->readable = s->writable = false;
}

int rs_start(struct rs *s, const struct sockaddr *addr)
{
	s->state = RS_RESOLVING_ADDR;
	if (rdma_resolve_addr(s->id, NULL, (struct sockaddr *)addr, RESOLVE_TIMEOUT)) {
		s->state = RS_NEW;
		return errno;
	}
	return 0;
}

static void fill_param(struct rs *s, struct rdma_conn_param *p, struct rs_conn_data *d)
{
	rs_describe(s, d);
	memset(p, 0, sizeof *p);
	p->private_data = d;
	p->private_data_len = sizeof *d;
	p->flow_control = 1;
	p->retry_count = 7;
	p->rnr_retry_count = 7;
}

static int request(struct rs *s)
{
	struct rdma_conn_param param;
	struct rs_conn_data data;
	int error = make_queues(s);
	if (error)
		return error;
	fill_param(s, &param, &data);
	s->state = RS_CONNECTING;
	return rdma_connect(s->id, &param) ? errno : 0;
}

static bool understood(const struct rdma_cm_event *e)
{
	const struct rs_conn_data *d = e->param.conn.private_data;
	return e->param.conn.private_data_len >= sizeof *d && d->version == RS_VERSION &&
	       be32toh(d->targets.length) >= 1 && be32toh(d->targets.length) <= RS_MAX_LIST;
}

static void connected(struct rs *s, const struct rdma_cm_event *e)
{
	if (!understood(e)) {
		rdma_disconnect(s->id);
		fail(s, ECONNRESET);
		return;
	}
	rs_init_peer(s, e->param.conn.private_data);
	s->state = RS_CONNECTED;
	s->readable = s->writable = true;
}

static int status_error(const struct rdma_cm_event *e, int otherwise)
{
	return e->status < 0 ? -e->status : otherwise;
}

/* Goes on with what an event says. */
static void step(struct rs *s, const struct rdma_cm_event *e)
{
	int error = 0;
	switch (e->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		s->state = RS_RESOLVING_ROUTE;
		error = rdma_resolve_route(s->id, RESOLVE_TIMEOUT) ? errno : 0;
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		error = request(s);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (s->state == RS_CONNECTING)
			connected(s, e);
		break;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
		error = status_error(e, EHOSTUNREACH);
		break;
	case RDMA_CM_EVENT_UNREACHABLE:
		error = status_error(e, ETIMEDOUT);
		break;
	case RDMA_CM_EVENT_REJECTED:
		error = ECONNREFUSED;
		break;
	case RDMA_CM_EVENT_CONNECT_ERROR:
		error = status_error(e, ECONNABORTED);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		rs_process(s); /* what came before */
		if (s->state == RS_CONNECTED)
			s->state = RS_DISCONNECTED;
		s->readable = s->writable = false;
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		error = ENETDOWN;
		break;
	default:
		break;
	}
	if (error)
		fail(s, error);
}

/* Looks at the events that have come. A listener's are its program's to take. */
void rs_advance(struct rs *s)
{
	struct rdma_cm_event *e;
	if (s->ds)
		ds_advance(s);
	if (s->ds || s->state == RS_LISTENING)
		return;
	while (!rdma_get_cm_event(s->channel, &e)) {
		s->changes++;
		step(s, e);
		rdma_ack_cm_event(e);
	}
	if (errno == ENODEV && s->state != RS_FAILED)
		fail(s, ENETDOWN); /* the daemon is gone */
}

static int take_request(struct rdma_cm_event *e, struct rs *s)
{
	struct rdma_conn_param param;
	struct rs_conn_data data;
	s->id = e->id;
	s->id->context = s;
	s->channel = rdma_create_event_channel();
	if (!s->channel || rdma_migrate_id(s->id, s->channel))
		return errno;
	fcntl(s->channel->fd, F_SETFL, fcntl(s->channel->fd, F_GETFL) | O_NONBLOCK);
	if (!understood(e))
		return EPROTO;
	int error = make_queues(s);
	if (error)
		return error;
	rs_init_peer(s, e->param.conn.private_data);
	fill_param(s, &param, &data);
	if (rdma_accept(s->id, &param))
		return errno;
	s->state = RS_CONNECTED;
	s->readable = s->writable = true;
	s->fd = s->channel->fd;
	return rs_enlist(s);
}

/* Accepts a connection that was asked for. EAGAIN: there is none. */
int rs_accept_one(struct rs *listener, struct rs **out)
{
	struct rdma_cm_event *e;
	if (rdma_get_cm_event(listener->channel, &e))
		return errno;
	if (e->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		rdma_ack_cm_event(e);
		return EAGAIN;
	}
	struct rs *s = rs_new(listener);
	int error = s ? take_request(e, s) : ENOMEM;
	if (error)
		rdma_reject(e->id, NULL, 0);
	struct rdma_cm_id *id = e->id;
	rdma_ack_cm_event(e);
	if (!error) {
		*out = s;
		return 0;
	}
	if (s) {
		rs_release(s);
		free(s);
	} else {
		rdma_destroy_id(id);
	}
	/* The fault of one peer is no matter for the next. */
	return error == ENOMEM || error == EMFILE || error == ENFILE ? error : EAGAIN;
}
