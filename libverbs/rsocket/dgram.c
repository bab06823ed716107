// SPDX-License-Identifier: Apache-2.0
/*
 * Datagram sockets: what the socket calls do. All functions are called with the socket's lock.
 */
#include "rsocket/dgram.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define BACKLOG	   64	/* outstanding requests of peers */
#define DRAIN_TIME 1000 /* ms; datagrams are not acknowledged, so sending takes no longer */
#define DRAIN_POLL 100	/* ms between checks of the send queues */
#define UDP_AGAIN  5	/* ms until sending to a full UDP socket is retried */

static int add_to_epoll(struct rs *s, int fd)
{
	struct epoll_event e = {.events = EPOLLIN};
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	return epoll_ctl(s->fd, EPOLL_CTL_ADD, fd, &e) ? errno : 0;
}

int ds_create(struct rs *s, int domain)
{
	struct ds *d = calloc(1, sizeof *d);
	if (!d)
		return ENOMEM;
	s->ds = d;
	d->domain = domain;
	d->last = &d->first;
	d->local.sa.sa_family = (sa_family_t)domain;
	d->udp = socket(domain, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	d->channel = rdma_create_event_channel();
	s->fd = epoll_create1(EPOLL_CLOEXEC);
	if (d->udp < 0 || !d->channel || s->fd < 0)
		return errno;
	int error = add_to_epoll(s, d->udp);
	return error ? error : add_to_epoll(s, d->channel->fd);
}

static void release(struct rs *s)
{
	struct ds *d = s->ds;
	if (!d)
		return;
	d->conn_dest = NULL;
	while (d->peers)
		ds_remove_peer(d, d->peers);
	while (d->first) {
		struct ds_msg *m = d->first;
		d->first = m->next;
		if (!m->qp)
			free(m);
	}
	while (d->qps) {
		struct ds_qp *qp = d->qps;
		d->qps = qp->next;
		ds_destroy_qp(qp);
	}
	if (d->listener)
		rdma_destroy_id(d->listener);
	if (d->channel)
		rdma_destroy_event_channel(d->channel);
	if (d->udp >= 0)
		close(d->udp);
	if (s->fd >= 0)
		close(s->fd);
	free(d);
}

/* Gets the address and port of the UDP socket. */
static int get_udp_addr(struct ds *d)
{
	socklen_t len = sizeof d->local;
	d->kernel_addr = true;
	return getsockname(d->udp, &d->local.sa, &len) ? errno : 0;
}

/* Listens for requests of peers for the number of a queue pair. 0 or an errno. */
static int listen_for_peers(struct rs *s)
{
	struct ds *d = s->ds;
	int on = 1;
	if (rdma_create_id(d->channel, &d->listener, NULL, RDMA_PS_UDP))
		return errno;
	if (s->opt.reuse &&
	    rdma_set_option(d->listener, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on))
		return errno;
	if (rdma_bind_addr(d->listener, &d->local.sa) || rdma_listen(d->listener, BACKLOG))
		return errno;
	*ds_addr_port(&d->local) = rdma_get_src_port(d->listener);
	return 0;
}

/* Binds a socket that the program did not bind. 0 or an errno. */
static int autobind(struct rs *s)
{
	union ds_addr any;
	if (s->state != RS_NEW)
		return 0;
	memset(&any, 0, sizeof any);
	any.sa.sa_family = (sa_family_t)s->ds->domain;
	if (bind(s->ds->udp, &any.sa, ds_addr_len(&any)))
		return errno;
	s->state = RS_BOUND;
	int error = get_udp_addr(s->ds);
	/*
	 * Without a listener, only peers that this socket sends to can reply, which is acceptable
	 * if the port is taken.
	 */
	if (!error && listen_for_peers(s) && s->ds->listener) {
		rdma_destroy_id(s->ds->listener);
		s->ds->listener = NULL;
	}
	return error;
}

int ds_bind(struct rs *s, const struct sockaddr *addr)
{
	struct ds *d = s->ds;
	if (s->state != RS_NEW)
		return EINVAL;
	if (addr->sa_family != d->domain)
		return EAFNOSUPPORT;
	if (!bind(d->udp, addr, (socklen_t)cm_addr_len(addr))) {
		int error = get_udp_addr(d);
		if (error)
			return error;
	} else if (errno == EADDRNOTAVAIL) {
		memcpy(&d->local, addr, cm_addr_len(addr));
	} else {
		return errno;
	}
	s->state = RS_BOUND;
	int error = listen_for_peers(s);
	if (error)
		return error;
	return ds_addr_any(&d->local) || ds_get_qp(s, &d->local) ? 0 : errno;
}

int ds_connect(struct rs *s, const struct sockaddr *addr)
{
	union ds_addr to;
	struct ds_peer *p;
	if (addr->sa_family == AF_UNSPEC) {
		s->ds->conn_dest = NULL;
		return 0;
	}
	if (!ds_addr_from(&to, addr, (socklen_t)cm_addr_len(addr)) ||
	    to.sa.sa_family != s->ds->domain)
		return EAFNOSUPPORT;
	int error = autobind(s);
	if (!error)
		error = ds_get_peer(s, &to, &p);
	if (!error)
		s->ds->conn_dest = p;
	return error;
}

int ds_name(struct rs *s, bool peer, union ds_addr *out)
{
	struct ds *d = s->ds;
	if (peer) {
		if (!d->conn_dest)
			return ENOTCONN;
		*out = d->conn_dest->addr;
		return 0;
	}
	*out = d->local;
	if (d->conn_dest && d->conn_dest->qp && ds_addr_any(&d->local)) {
		*out = d->conn_dest->qp->local;
		*ds_addr_port(out) = *ds_addr_port(&d->local);
	}
	return 0;
}

static ssize_t msg_length(const struct msghdr *msg)
{
	size_t all = 0;
	for (size_t i = 0; i < msg->msg_iovlen; i++) {
		if (msg->msg_iov[i].iov_len > INT_MAX - all)
			return -1;
		all += msg->msg_iov[i].iov_len;
	}
	return (ssize_t)all;
}

/* Waits for at most max_wait ms. EAGAIN: the call does not block, or its timeout is over. */
static int wait_or_eagain(struct rs *s, int flags, int64_t deadline, int max_wait)
{
	int64_t left = deadline == INT64_MAX ? INT_MAX : deadline - rs_now();
	if (rs_would_block(s, flags) || left <= 0)
		return EAGAIN;
	if (max_wait >= 0 && left > max_wait)
		left = max_wait;
	int error = rs_wait(s, left == INT_MAX ? -1 : (int)left);
	return error == ETIMEDOUT ? 0 : error;
}

static int send_via_udp(struct rs *s, struct ds_peer *p, const struct msghdr *msg)
{
	uint8_t buf[DS_MAX_MTU];
	size_t at = 0;
	for (size_t i = 0; i < msg->msg_iovlen; i++) {
		const struct iovec *v = &msg->msg_iov[i];
		if (v->iov_len)
			memcpy(buf + at, v->iov_base, v->iov_len);
		at += v->iov_len;
	}
	return ds_send_udp(s->ds, p, buf, at) < 0 ? errno : 0;
}

/*
 * Sends through the queue pair, or through UDP as long as the peer's queue pair is unknown. 0,
 * an errno, or EAGAIN: try again, after at most max_wait ms.
 */
static int send_to_peer(struct rs *s, struct ds_peer *p, const struct msghdr *msg, size_t len,
			int *max_wait)
{
	if (p->qp && len > p->qp->mtu - p->qp->header.length)
		return EMSGSIZE;

	if (p->ah && p->qpn) {
		if (!p->qp->free_count)
			ds_poll_qp(s, p->qp);
		return ds_post_send(p, msg->msg_iov, msg->msg_iovlen);
	}
	if (!p->udp) {
		*max_wait = DS_RESOLVE_TIMEOUT;
		return EAGAIN;
	}
	int error = send_via_udp(s, p, msg);
	*max_wait = UDP_AGAIN;
	return error;
}

ssize_t ds_send(struct rs *s, const struct msghdr *msg, int flags)
{
	struct ds *d = s->ds;
	union ds_addr to;
	ssize_t len = msg_length(msg);
	int64_t deadline = rs_deadline(s->opt.snd_timeout);
	if (msg->msg_name && !ds_addr_from(&to, msg->msg_name, msg->msg_namelen))
		return rs_fail(EINVAL);
	if (!msg->msg_name && !d->conn_dest)
		return rs_fail(EDESTADDRREQ);
	if (!msg->msg_name)
		to = d->conn_dest->addr;
	if (to.sa.sa_family != d->domain)
		return rs_fail(EAFNOSUPPORT);
	if (len < 0)
		return rs_fail(EMSGSIZE);
	int error = autobind(s);
	while (!error) {
		struct ds_peer *p;
		int max_wait = -1;
		error = ds_get_peer(s, &to, &p);
		if (!error && !(p->ah && p->qpn)) {
			rs_process_cm_events(s);
			error = ds_get_peer(s, &to, &p);
		}
		if (!error)
			error = send_to_peer(s, p, msg, (size_t)len, &max_wait);
		if (!error)
			return len;
		if (error == EAGAIN)
			error = wait_or_eagain(s, flags, deadline, max_wait);
	}
	return rs_fail(error);
}

static void drop_first(struct ds *d)
{
	struct ds_msg *m = d->first;
	d->first = m->next;
	if (!d->first)
		d->last = &d->first;
	if (m->qp) {
		ds_post_recv(m->qp, m);
		return;
	}
	d->udp_msgs--;
	free(m);
}

/* A connected socket receives datagrams of its peer only. */
bool ds_can_recv(struct rs *s)
{
	struct ds *d = s->ds;
	while (d->first && d->conn_dest &&
	       !ds_addr_equal(&d->first->from, &d->conn_dest->addr, true))
		drop_first(d);
	return d->first;
}

/* Copies a datagram to the program's buffers. Returns the number of bytes copied. */
static size_t copy_to_iov(const struct msghdr *msg, const uint8_t *from, size_t len)
{
	size_t done = 0;
	for (size_t i = 0; i < msg->msg_iovlen && done < len; i++) {
		size_t n = msg->msg_iov[i].iov_len;
		if (n > len - done)
			n = len - done;
		if (n)
			memcpy(msg->msg_iov[i].iov_base, from + done, n);
		done += n;
	}
	return done;
}

static ssize_t copy_msg(struct ds *d, struct msghdr *msg, int flags)
{
	struct ds_msg *m = d->first;
	size_t len = m->len, n = copy_to_iov(msg, m->data, len);
	msg->msg_flags = n < len ? MSG_TRUNC : 0;
	msg->msg_controllen = 0;
	if (msg->msg_name) {
		socklen_t full = ds_addr_len(&m->from);
		memcpy(msg->msg_name, &m->from, full < msg->msg_namelen ? full : msg->msg_namelen);
		msg->msg_namelen = full;
	}
	if (!(flags & MSG_PEEK))
		drop_first(d);
	return (ssize_t)(flags & MSG_TRUNC ? len : n);
}

ssize_t ds_recv(struct rs *s, struct msghdr *msg, int flags)
{
	int64_t deadline = rs_deadline(s->opt.rcv_timeout);
	if (++s->empty_calls % RS_CM_CHECK_CALLS == 0)
		rs_process_cm_events(s);
	for (;;) {
		if (!ds_can_recv(s))
			rs_process_cq(s);
		if (ds_can_recv(s))
			return copy_msg(s->ds, msg, flags);
		int error = s->error ? rs_take_error(s) : wait_or_eagain(s, flags, deadline, -1);
		if (error)
			return rs_fail(error);
	}
}

/* For rpoll: whether a send would transmit a datagram or report an error. */
bool ds_can_send(struct rs *s)
{
	struct ds *d = s->ds;
	struct ds_peer *p = d->conn_dest;
	if (p && (p->error || p->udp || !p->id || rs_now() >= p->deadline))
		return !p->ah || !p->qpn || p->qp->free_count;
	if (p)
		return false;
	for (struct ds_qp *qp = d->qps; qp; qp = qp->next)
		if (!qp->free_count)
			return false;
	return true;
}

void ds_drain(struct rs *s)
{
	int64_t deadline = rs_now() + DRAIN_TIME;
	for (struct ds_qp *qp = s->ds->qps; qp; qp = qp->next)
		while (qp->free_count < qp->sends && !s->error && rs_now() < deadline)
			rs_wait(s, DRAIN_POLL);
}

static void process_cq(struct rs *s)
{
	for (struct ds_qp *qp = s->ds->qps; qp; qp = qp->next)
		if (ds_poll_qp(s, qp))
			s->event_count++;
	if (!s->ds->first)
		ds_read_udp(s);
}

static void process_cm_events(struct rs *s)
{
	ds_process_cm_events(s);
	ds_read_udp(s);
}

static void arm_cq(struct rs *s)
{
	for (struct ds_qp *qp = s->ds->qps; qp; qp = qp->next)
		ibv_req_notify_cq(qp->cq, 0);
}

static void take_cq_events(struct rs *s)
{
	struct ibv_cq *cq;
	void *context;
	for (struct ds_qp *qp = s->ds->qps; qp; qp = qp->next)
		while (!ibv_get_cq_event(qp->comp, &cq, &context))
			ibv_ack_cq_events(cq, 1);
}

const struct rs_ops ds_ops = {
	.process_cm_events = process_cm_events,
	.process_cq = process_cq,
	.arm_cq = arm_cq,
	.take_cq_events = take_cq_events,
	.release = release,
};
