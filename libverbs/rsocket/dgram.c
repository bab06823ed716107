// SPDX-License-Identifier: Apache-2.0
/*
 * Datagram sockets over RDMA: what the calls of programs do with them. All with the socket's lock.
 */
#include "rsocket/dgram.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define BACKLOG	   64	/* sockets that may ask at a time */
#define DRAIN_TIME 1000 /* ms; nobody acknowledges a datagram */
#define UDP_AGAIN  5	/* ms until a full UDP socket is tried again */

static int watch(struct rs *s, int fd)
{
	struct epoll_event e = {.events = EPOLLIN};
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	return epoll_ctl(s->fd, EPOLL_CTL_ADD, fd, &e) ? errno : 0;
}

/* Makes what a datagram socket has. 0 or an errno; the rest is rs_release's. */
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
	int error = watch(s, d->udp);
	return error ? error : watch(s, d->channel->fd);
}

void ds_release(struct rs *s)
{
	struct ds *d = s->ds;
	d->to = NULL;
	while (d->peers)
		ds_forget(d, d->peers);
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

/* The address and port that the UDP socket has. */
static int learn_local(struct ds *d)
{
	socklen_t len = sizeof d->local;
	d->routed = true;
	return getsockname(d->udp, &d->local.sa, &len) ? errno : 0;
}

/* Lets other sockets ask for our queue pair. 0 or an errno. */
static int be_found(struct rs *s)
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

/* Gives the socket a port where the program has not. 0 or an errno. */
static int ensure_port(struct rs *s)
{
	union ds_addr any;
	if (s->state != RS_NEW)
		return 0;
	memset(&any, 0, sizeof any);
	any.sa.sa_family = (sa_family_t)s->ds->domain;
	if (bind(s->ds->udp, &any.sa, ds_addr_len(&any)))
		return errno;
	s->state = RS_BOUND;
	int error = learn_local(s->ds);
	/* Who is to answer may do so from another socket. It is no matter where the port is taken.
	 */
	if (!error && be_found(s) && s->ds->listener) {
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
		int error = learn_local(d);
		if (error)
			return error;
	} else if (errno == EADDRNOTAVAIL) {
		memcpy(&d->local, addr, cm_addr_len(addr));
	} else {
		return errno;
	}
	s->state = RS_BOUND;
	int error = be_found(s);
	if (error)
		return error;
	return ds_addr_any(&d->local) || ds_find_qp(s, &d->local) ? 0 : errno;
}

int ds_connect(struct rs *s, const struct sockaddr *addr)
{
	union ds_addr to;
	struct ds_peer *p;
	if (addr->sa_family == AF_UNSPEC) {
		s->ds->to = NULL;
		return 0;
	}
	if (!ds_addr_from(&to, addr, (socklen_t)cm_addr_len(addr)) ||
	    to.sa.sa_family != s->ds->domain)
		return EAFNOSUPPORT;
	int error = ensure_port(s);
	if (!error)
		error = ds_meet(s, &to, &p);
	if (!error)
		s->ds->to = p;
	return error;
}

int ds_name(struct rs *s, bool peer, union ds_addr *out)
{
	struct ds *d = s->ds;
	if (peer) {
		if (!d->to)
			return ENOTCONN;
		*out = d->to->addr;
		return 0;
	}
	*out = d->local;
	if (d->to && d->to->qp && ds_addr_any(&d->local)) {
		*out = d->to->qp->local;
		*ds_addr_port(out) = *ds_addr_port(&d->local);
	}
	return 0;
}

static ssize_t length(const struct msghdr *msg)
{
	size_t all = 0;
	for (size_t i = 0; i < msg->msg_iovlen; i++) {
		if (msg->msg_iov[i].iov_len > INT_MAX - all)
			return -1;
		all += msg->msg_iov[i].iov_len;
	}
	return (ssize_t)all;
}

static int64_t until(int64_t timeout)
{
	return timeout ? rs_now() + timeout : INT64_MAX;
}

/* Waits, most ms at most, or says EAGAIN where the program does not wait, or no longer. */
static int wait_or_not(struct rs *s, int flags, int64_t end, int most)
{
	int64_t left = end == INT64_MAX ? INT_MAX : end - rs_now();
	if (rs_would_block(s, flags) || left <= 0)
		return EAGAIN;
	if (most >= 0 && left > most)
		left = most;
	int error = rs_wait(s, left == INT_MAX ? -1 : (int)left);
	return error == ETIMEDOUT ? 0 : error;
}

static int send_through_udp(struct rs *s, struct ds_peer *p, const struct msghdr *msg)
{
	uint8_t buf[4096];
	size_t at = 0;
	for (size_t i = 0; i < msg->msg_iovlen; i++) {
		const struct iovec *v = &msg->msg_iov[i];
		if (v->iov_len)
			memcpy(buf + at, v->iov_base, v->iov_len);
		at += v->iov_len;
	}
	return ds_send_udp(s->ds, p, buf, at) < 0 ? errno : 0;
}

/* Sends to a peer whichever way it can be reached. 0; EAGAIN: not now; or an errno. */
static int send_to(struct rs *s, struct ds_peer *p, const struct msghdr *msg, size_t len, int *most)
{
	if (p->qp && len > p->qp->mtu - p->qp->header.length)
		return EMSGSIZE;

	if (p->ah && p->qpn) {
		if (!p->qp->idle_count)
			ds_poll(s, p->qp);
		return ds_post_send(p, msg->msg_iov, msg->msg_iovlen);
	}
	if (!p->udp) {
		*most = DS_PATIENCE;
		return EAGAIN;
	}
	int error = send_through_udp(s, p, msg);
	*most = UDP_AGAIN;
	return error;
}

ssize_t ds_send(struct rs *s, const struct msghdr *msg, int flags)
{
	struct ds *d = s->ds;
	union ds_addr to;
	ssize_t len = length(msg);
	int64_t end = until(s->opt.snd_timeout);
	if (msg->msg_name && !ds_addr_from(&to, msg->msg_name, msg->msg_namelen))
		return rs_fail(EINVAL);
	if (!msg->msg_name && !d->to)
		return rs_fail(EDESTADDRREQ);
	if (!msg->msg_name)
		to = d->to->addr;
	if (to.sa.sa_family != d->domain)
		return rs_fail(EAFNOSUPPORT);
	if (len < 0)
		return rs_fail(EMSGSIZE);
	int error = ensure_port(s);
	while (!error) {
		struct ds_peer *p;
		int most = -1;
		error = ds_meet(s, &to, &p);
		if (!error && !(p->ah && p->qpn)) {
			rs_advance(s);
			error = ds_meet(s, &to, &p);
		}
		if (!error)
			error = send_to(s, p, msg, (size_t)len, &most);
		if (!error)
			return len;
		if (error == EAGAIN)
			error = wait_or_not(s, flags, end, most);
	}
	return rs_fail(error);
}

static void consume(struct ds *d)
{
	struct ds_msg *m = d->first;
	d->first = m->next;
	if (!d->first)
		d->last = &d->first;
	if (m->qp) {
		ds_post_recv(m->qp, m);
		return;
	}
	d->udp_count--;
	free(m);
}

/* Whether there is a datagram to read. One that is connected reads those of its peer alone. */
bool ds_can_recv(struct rs *s)
{
	struct ds *d = s->ds;
	while (d->first && d->to && !ds_same(&d->first->from, &d->to->addr, true))
		consume(d);
	return d->first;
}

/* Copies a datagram to the program. Returns how many bytes it has room for. */
static size_t scatter(const struct msghdr *msg, const uint8_t *from, size_t len)
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

static ssize_t deliver(struct ds *d, struct msghdr *msg, int flags)
{
	struct ds_msg *m = d->first;
	size_t len = m->len, n = scatter(msg, m->data, len);
	msg->msg_flags = n < len ? MSG_TRUNC : 0;
	msg->msg_controllen = 0;
	if (msg->msg_name) {
		socklen_t full = ds_addr_len(&m->from);
		memcpy(msg->msg_name, &m->from, full < msg->msg_namelen ? full : msg->msg_namelen);
		msg->msg_namelen = full;
	}
	if (!(flags & MSG_PEEK))
		consume(d);
	return (ssize_t)(flags & MSG_TRUNC ? len : n);
}

ssize_t ds_recv(struct rs *s, struct msghdr *msg, int flags)
{
	int64_t end = until(s->opt.rcv_timeout);
	if (++s->tries % 64 == 0)
		rs_advance(s);
	for (;;) {
		if (!ds_can_recv(s))
			rs_process(s);
		if (ds_can_recv(s))
			return deliver(s->ds, msg, flags);
		int error = s->error ? rs_take_error(s) : wait_or_not(s, flags, end, -1);
		if (error)
			return rs_fail(error);
	}
}

/* For poll: whether a datagram could be sent, or why not be said. */
bool ds_can_send(struct rs *s)
{
	struct ds *d = s->ds;
	struct ds_peer *p = d->to;
	if (p && (p->error || p->udp || !p->id || rs_now() >= p->patience))
		return !p->ah || !p->qpn || p->qp->idle_count;
	if (p)
		return false;
	for (struct ds_qp *qp = d->qps; qp; qp = qp->next)
		if (!qp->idle_count)
			return false;
	return true;
}

/* Lets what was sent leave. */
void ds_close(struct rs *s)
{
	int64_t end = rs_now() + DRAIN_TIME;
	for (struct ds_qp *qp = s->ds->qps; qp; qp = qp->next)
		while (qp->idle_count < qp->sends && !s->error && rs_now() < end)
			rs_wait(s, 100);
}

/* What rs_process, rs_advance … are for datagrams. */
void ds_process(struct rs *s)
{
	for (struct ds_qp *qp = s->ds->qps; qp; qp = qp->next)
		if (ds_poll(s, qp))
			s->changes++;
	if (!s->ds->first)
		ds_read_udp(s);
}

void ds_advance(struct rs *s)
{
	ds_events(s);
	ds_read_udp(s);
}

void ds_arm(struct rs *s)
{
	for (struct ds_qp *qp = s->ds->qps; qp; qp = qp->next)
		ibv_req_notify_cq(qp->cq, 0);
}

void ds_take_events(struct rs *s)
{
	struct ibv_cq *cq;
	void *context;
	for (struct ds_qp *qp = s->ds->qps; qp; qp = qp->next)
		while (!ibv_get_cq_event(qp->comp, &cq, &context))
			ibv_ack_cq_events(cq, 1);
}
