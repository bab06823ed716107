// SPDX-License-Identifier: Apache-2.0
/*
 * Stream sockets: connecting and accepting.
 */
#include "rsocket/rs.h"

#include <endian.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RESOLVE_TIMEOUT 2000 /* ms */

static void *alloc_pages(size_t n)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *p = aligned_alloc(page, (n + page - 1) / page * page);
	if (p)
		memset(p, 0, n);
	return p;
}

/* Limits the queue sizes to what the device supports. */
static int limit_queue_sizes(struct rs *s)
{
	struct ibv_device_attr attr;
	int error = ibv_query_device(s->id->verbs, &attr);
	if (error)
		return error;
	int max_wr = attr.max_qp_wr - RS_MAX_CTRL_MSG, cqe = attr.max_cqe / 2 - RS_MAX_CTRL_MSG;
	if (max_wr > cqe)
		max_wr = cqe;
	if (max_wr < RS_MIN_QUEUE)
		return ENOBUFS;
	if (s->opt.sq_size > max_wr)
		s->opt.sq_size = max_wr;
	if (s->opt.rq_size > max_wr)
		s->opt.rq_size = max_wr;
	return 0;
}

/*
 * Allocates the buffers and creates the queue pair of an identifier that is bound to a device. 0
 * or an errno.
 */
static int create_queues(struct rs *s)
{
	struct ibv_pd *pd = s->id->pd;
	int error = limit_queue_sizes(s);
	if (error)
		return error;
	size_t list =
		RS_SGL_SIZE * sizeof(struct rs_sge) + s->opt.iomap_size * sizeof(struct rs_iomap);
	s->sbuf = alloc_pages(s->opt.snd_size);
	s->rbuf = alloc_pages(s->opt.rcv_size);
	s->target_sgl = alloc_pages(list);
	s->rmsg_size = s->opt.rq_size + 1;
	s->rmsg = calloc(s->rmsg_size, sizeof *s->rmsg);
	if (!s->sbuf || !s->rbuf || !s->target_sgl || !s->rmsg)
		return ENOMEM;
	s->target_iomap = (struct rs_iomap *)(s->target_sgl + RS_SGL_SIZE);
	int remote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	s->smr = ibv_reg_mr(pd, s->sbuf, s->opt.snd_size, IBV_ACCESS_LOCAL_WRITE);
	s->rmr = ibv_reg_mr(pd, s->rbuf, s->opt.rcv_size, remote);
	s->target_mr = ibv_reg_mr(pd, s->target_sgl, list, remote);
	s->comp = ibv_create_comp_channel(s->id->verbs);
	if (!s->smr || !s->rmr || !s->target_mr || !s->comp)
		return errno;
	fcntl(s->comp->fd, F_SETFL, fcntl(s->comp->fd, F_GETFL) | O_NONBLOCK);
	/* Control messages of the peer need receives too, but no credits. */
	int receives = s->opt.rq_size + RS_MAX_CTRL_MSG, sends = s->opt.sq_size + RS_MAX_CTRL_MSG;
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
			/* Control messages are sent inline. */
			.max_inline_data = s->opt.inline_size < (int)sizeof(struct rs_iomap)
						   ? (int)sizeof(struct rs_iomap)
						   : s->opt.inline_size},
	};
	if (rdma_create_qp(s->id, NULL, &attr))
		return errno;
	s->sbuf_bytes_avail = s->opt.snd_size;
	s->sqe_avail = s->opt.sq_size;
	s->rbuf_free_pos = s->rbuf_bytes_free = s->rbuf_granted = s->opt.rcv_size / 2;
	s->rseq_comp = (uint16_t)(s->opt.rq_size / 2);
	return rs_post_recv(s, receives);
}

static void set_failed(struct rs *s, int error)
{
	s->state = RS_FAILED;
	s->error = error;
	s->readable = s->writable = false;
}

int rs_start_connect(struct rs *s, const struct sockaddr *addr)
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
	rs_format_conn_data(s, d);
	memset(p, 0, sizeof *p);
	p->private_data = d;
	p->private_data_len = sizeof *d;
	p->flow_control = 1;
	p->retry_count = 7;
	p->rnr_retry_count = 7;
}

static int connect_resolved(struct rs *s)
{
	struct rdma_conn_param param;
	struct rs_conn_data data;
	int error = create_queues(s);
	if (error)
		return error;
	fill_param(s, &param, &data);
	s->state = RS_CONNECTING;
	return rdma_connect(s->id, &param) ? errno : 0;
}

static bool valid_conn_data(const struct rdma_cm_event *e)
{
	const struct rs_conn_data *d = e->param.conn.private_data;
	return e->param.conn.private_data_len >= sizeof *d && d->version == RS_CONN_VERSION &&
	       be32toh(d->target_sgl.length) >= 1 &&
	       be32toh(d->target_sgl.length) <= RS_MAX_SGL_SIZE;
}

static void handle_established(struct rs *s, const struct rdma_cm_event *e)
{
	if (!valid_conn_data(e)) {
		rdma_disconnect(s->id);
		set_failed(s, ECONNRESET);
		return;
	}
	rs_save_conn_data(s, e->param.conn.private_data);
	s->state = RS_CONNECTED;
	s->readable = s->writable = true;
}

static int status_error(const struct rdma_cm_event *e, int otherwise)
{
	return e->status < 0 ? -e->status : otherwise;
}

/* Advances the state of the connection after an event. */
static void handle_cm_event(struct rs *s, const struct rdma_cm_event *e)
{
	int error = 0;
	switch (e->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		s->state = RS_RESOLVING_ROUTE;
		error = rdma_resolve_route(s->id, RESOLVE_TIMEOUT) ? errno : 0;
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		error = connect_resolved(s);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (s->state == RS_CONNECTING)
			handle_established(s, e);
		else if (s->state == RS_ACCEPTING)
			s->state = RS_CONNECTED;
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
		rs_process_cq(s); /* handle what arrived before */
		if (rs_open(s))
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
		set_failed(s, error);
}

/* The events of a listener are connection requests, which rs_accept_request handles. */
static void process_cm_events(struct rs *s)
{
	struct rdma_cm_event *e;
	if (s->state == RS_LISTENING)
		return;
	while (!rdma_get_cm_event(s->channel, &e)) {
		s->event_count++;
		handle_cm_event(s, e);
		rdma_ack_cm_event(e);
	}
	if (errno == ENODEV && s->state != RS_FAILED)
		set_failed(s, ENETDOWN); /* the daemon is gone */
}

static void arm_cq(struct rs *s)
{
	if (s->cq)
		ibv_req_notify_cq(s->cq, 0);
}

static void take_cq_events(struct rs *s)
{
	struct ibv_cq *cq;
	void *context;
	while (s->comp && !ibv_get_cq_event(s->comp, &cq, &context))
		ibv_ack_cq_events(cq, 1);
}

static void release(struct rs *s)
{
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
		if (s->target_mr)
			ibv_dereg_mr(s->target_mr);
		rdma_destroy_id(s->id);
	}
	if (s->channel)
		rdma_destroy_event_channel(s->channel);
	free(s->sbuf);
	free(s->rbuf);
	free(s->target_sgl);
	free(s->rmsg);
}

const struct rs_ops rs_stream_ops = {
	.process_cm_events = process_cm_events,
	.process_cq = rs_process_stream_cq,
	.arm_cq = arm_cq,
	.take_cq_events = take_cq_events,
	.release = release,
};

static int accept_connection(struct rdma_cm_event *e, struct rs *s)
{
	struct rdma_conn_param param;
	struct rs_conn_data data;
	s->id = e->id;
	s->id->context = s;
	s->channel = rdma_create_event_channel();
	if (!s->channel || rdma_migrate_id(s->id, s->channel))
		return errno;
	fcntl(s->channel->fd, F_SETFL, fcntl(s->channel->fd, F_GETFL) | O_NONBLOCK);
	if (!valid_conn_data(e))
		return EPROTO;
	int error = create_queues(s);
	if (error)
		return error;
	rs_save_conn_data(s, e->param.conn.private_data);
	fill_param(s, &param, &data);
	if (rdma_accept(s->id, &param))
		return errno;
	s->state = RS_ACCEPTING;
	s->readable = s->writable = true;
	s->fd = s->channel->fd;
	return rs_add(s);
}

int rs_accept_request(struct rs *listener, struct rs **out)
{
	struct rdma_cm_event *e;
	if (rdma_get_cm_event(listener->channel, &e))
		return errno;
	if (e->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		rdma_ack_cm_event(e);
		return EAGAIN;
	}
	struct rs *s = rs_new(&rs_stream_ops, listener);
	int error = s ? accept_connection(e, s) : ENOMEM;
	if (error)
		rdma_reject(e->id, NULL, 0);
	struct rdma_cm_id *id = e->id;
	rdma_ack_cm_event(e);
	if (!error) {
		*out = s;
		return 0;
	}
	if (s) {
		release(s);
		free(s);
	} else {
		rdma_destroy_id(id);
	}
	/* An error that concerns only this peer does not end the call of raccept. */
	return error == ENOMEM || error == EMFILE || error == ENFILE ? error : EAGAIN;
}
