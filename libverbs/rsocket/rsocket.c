// SPDX-License-Identifier: Apache-2.0
/*
 * The socket calls other than those for data, options and polling. A socket's descriptor is that
 * of its event channel. Only rpoll and rselect accept descriptors that are not rsockets.
 */
#include "rsocket/dgram.h"

#include "core/cancel.h"

#include <netinet/in.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define DRAIN_TIME 30000 /* ms; longer than the transport retries */

static int create_stream(struct rs *s)
{
	s->channel = rdma_create_event_channel();
	if (!s->channel || rdma_create_id(s->channel, &s->id, s, RDMA_PS_TCP))
		return errno;
	s->fd = s->channel->fd;
	fcntl(s->fd, F_SETFL, fcntl(s->fd, F_GETFL) | O_NONBLOCK);
	return 0;
}

static int create(int kind, int domain, int flags, int *fd)
{
	struct rs *s = rs_new(kind == SOCK_STREAM ? &rs_stream_ops : &ds_ops, NULL);
	if (!s)
		return ENOMEM;
	s->flags = flags;
	int error = kind == SOCK_STREAM ? create_stream(s) : ds_create(s, domain);
	if (!error) {
		*fd = s->fd;
		error = rs_add(s);
	}
	if (error) {
		s->ops->release(s);
		free(s);
	}
	return error;
}

SR_PUBLIC int rsocket(int domain, int type, int protocol)
{
	if (domain != AF_INET && domain != AF_INET6)
		return rs_fail(EAFNOSUPPORT);
	int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (kind != SOCK_STREAM && kind != SOCK_DGRAM)
		return rs_fail(ESOCKTNOSUPPORT);
	if (protocol && protocol != (kind == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP))
		return rs_fail(EPROTONOSUPPORT);
	int state = sr_defer_cancel(), fd = -1;
	int error = create(kind, domain, type & SOCK_NONBLOCK ? O_NONBLOCK : 0, &fd);
	sr_restore_cancel(state);
	return error ? rs_fail(error) : fd;
}

static bool valid_addr(const struct sockaddr *addr, socklen_t len)
{
	return addr && len >= sizeof addr->sa_family && len >= cm_addr_len(addr);
}

static int do_bind(struct rs *s, const struct sockaddr *addr)
{
	if (s->ds)
		return ds_bind(s, addr);
	if (s->state != RS_NEW)
		return EINVAL;
	if (rdma_bind_addr(s->id, (struct sockaddr *)addr))
		return errno;
	s->state = RS_BOUND;
	return 0;
}

SR_PUBLIC int rbind(int fd, const struct sockaddr *addr, socklen_t len)
{
	RS_WITH_SOCKET(fd, valid_addr(addr, len) ? do_bind(s, addr) : EINVAL);
}

static int do_listen(struct rs *s, int backlog)
{
	if (s->ds)
		return EOPNOTSUPP;
	if (s->state == RS_LISTENING)
		return 0;
	if (s->state != RS_NEW && s->state != RS_BOUND)
		return EINVAL;
	if (rdma_listen(s->id, backlog))
		return errno;
	s->state = RS_LISTENING;
	return 0;
}

SR_PUBLIC int rlisten(int fd, int backlog)
{
	RS_WITH_SOCKET(fd, do_listen(s, backlog));
}

static int do_accept(struct rs *s, struct rs **out)
{
	if (s->ds)
		return EOPNOTSUPP;
	while (s->state == RS_LISTENING) {
		int error = rs_accept_request(s, out);
		if (error != EAGAIN || rs_would_block(s, 0))
			return error;
		error = rs_wait(s, -1);
		if (error)
			return error;
	}
	return EINVAL;
}

static int copy_addr(const struct sockaddr *from, struct sockaddr *addr, socklen_t *len)
{
	socklen_t n = (socklen_t)cm_addr_len(from);
	memcpy(addr, from, *len < n ? *len : n);
	*len = n;
	return 0;
}

SR_PUBLIC int raccept(int fd, struct sockaddr *addr, socklen_t *len)
{
	struct rs *s = rs_enter(fd), *accepted = NULL;
	if (!s)
		return -1;
	int error = do_accept(s, &accepted);
	rs_leave(s);
	if (error)
		return rs_fail(error);
	if (addr && len)
		copy_addr(rdma_get_peer_addr(accepted->id), addr, len);
	return accepted->fd;
}

static int do_connect(struct rs *s, const struct sockaddr *addr)
{
	if (s->ds)
		return ds_connect(s, addr);
	rs_process_cm_events(s);
	if (rs_open(s))
		return EISCONN;
	if (rs_connecting(s))
		return EALREADY;
	if (s->state != RS_NEW && s->state != RS_BOUND)
		return s->error ? rs_take_error(s) : EINVAL;
	int error = rs_start_connect(s, addr);
	if (error)
		return error;
	if (rs_would_block(s, 0))
		return EINPROGRESS;
	while (rs_connecting(s)) {
		error = rs_wait(s, -1);
		if (error)
			return error;
	}
	return s->state == RS_CONNECTED ? 0 : rs_take_error(s);
}

SR_PUBLIC int rconnect(int fd, const struct sockaddr *addr, socklen_t len)
{
	RS_WITH_SOCKET(fd, valid_addr(addr, len) ? do_connect(s, addr) : EINVAL);
}

static int64_t drain_timeout(const struct rs *s)
{
	return s->opt.linger.l_onoff ? s->opt.linger.l_linger * (int64_t)1000 : DRAIN_TIME;
}

/*
 * Waits until all sends are acknowledged. This cannot happen after the peer has disconnected: it
 * may have destroyed its queue pair.
 */
static void drain(struct rs *s, int64_t deadline)
{
	while (s->state == RS_CONNECTED && s->cq &&
	       (s->sqe_avail < s->opt.sq_size || s->ctrl_outstanding > 0)) {
		int error =
			rs_now() < deadline ? rs_wait(s, (int)(deadline - rs_now())) : ETIMEDOUT;
		if (error && error != EINTR)
			return;
	}
}

/* Waits until the peer has received the reply to its connection request. */
static void finish_accepting(struct rs *s, int64_t deadline)
{
	while (s->state == RS_ACCEPTING && rs_now() < deadline) {
		int error = rs_wait(s, (int)(deadline - rs_now()));
		if (error && error != EINTR)
			return;
	}
}

static int do_shutdown(struct rs *s, int how)
{
	if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR)
		return EINVAL;
	if (s->ds)
		return s->ds->conn_dest ? 0 : ENOTCONN;
	rs_process_cq(s);
	if (!rs_open(s))
		return s->state == RS_DISCONNECTED || s->state == RS_FAILED ? 0 : ENOTCONN;
	bool wrote = s->writable;
	if (how != SHUT_RD)
		s->writable = false;
	if (how != SHUT_WR)
		s->readable = false;
	if (s->writable)
		return 0; /* the peer continues to receive */
	int64_t deadline = rs_now() + drain_timeout(s);
	finish_accepting(s, deadline);
	/*
	 * rdma-core's library reports the disconnection to its program at once, even with data left
	 * to read, which some programs then do not read. So the peer gets time to read before it is
	 * notified.
	 */
	if (!s->readable)
		drain(s, deadline);
	while (s->state == RS_CONNECTED && s->ctrl_outstanding >= RS_MAX_CTRL_MSG)
		if (rs_wait(s, -1))
			break;
	if (s->state == RS_CONNECTED && (wrote || !s->readable))
		rs_send_ctrl(s, s->readable ? RS_CTRL_SHUTDOWN : RS_CTRL_DISCONNECT);
	drain(s, deadline);
	return 0;
}

SR_PUBLIC int rshutdown(int fd, int how)
{
	RS_WITH_SOCKET(fd, do_shutdown(s, how));
}

SR_PUBLIC int rclose(int fd)
{
	struct rs *s = rs_get(fd);
	if (!s)
		return -1;
	if (!rs_remove(s, fd)) { /* another thread has closed it */
		rs_put(s);
		return rs_fail(EBADF);
	}
	rs_lock(s);
	if (s->ds)
		ds_drain(s);
	if (rs_open(s))
		do_shutdown(s, SHUT_RDWR);
	if (rs_open(s) || s->state == RS_DISCONNECTED)
		rdma_disconnect(s->id);
	s->state = RS_DISCONNECTED;
	pthread_cond_broadcast(&s->cond);
	rs_leave(s);
	return 0;
}

static int get_name(struct rs *s, bool peer, struct sockaddr *addr, socklen_t *len)
{
	union ds_addr name;
	if (s->ds) {
		int error = ds_name(s, peer, &name);
		return error ? error : copy_addr(&name.sa, addr, len);
	}
	if (peer && s->state < RS_RESOLVING_ADDR)
		return ENOTCONN;
	return copy_addr(peer ? rdma_get_peer_addr(s->id) : rdma_get_local_addr(s->id), addr, len);
}

SR_PUBLIC int rgetpeername(int fd, struct sockaddr *addr, socklen_t *len)
{
	RS_WITH_SOCKET(fd, get_name(s, true, addr, len));
}

SR_PUBLIC int rgetsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
	RS_WITH_SOCKET(fd, get_name(s, false, addr, len));
}

SR_PUBLIC int rfcntl(int fd, int cmd, ...)
{
	struct rs *s = rs_enter(fd);
	if (!s)
		return -1;
	va_list args;
	va_start(args, cmd);
	int arg = cmd == F_SETFL || cmd == F_SETFD ? va_arg(args, int) : 0;
	va_end(args);
	int result = 0;
	switch (cmd) {
	case F_GETFL:
		result = O_RDWR | s->flags;
		break;
	case F_SETFL:
		s->flags = arg & O_NONBLOCK;
		break;
	case F_GETFD:
		result = fcntl(s->fd, F_GETFD);
		break;
	case F_SETFD:
		result = fcntl(s->fd, F_SETFD, arg);
		break;
	default:
		result = rs_fail(ENOTSUP);
	}
	rs_leave(s);
	return result;
}
