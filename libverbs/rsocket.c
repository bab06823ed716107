// SPDX-License-Identifier: Apache-2.0
/*
 * Sockets over RDMA: the calls of programs. A socket's descriptor is that of its event channel;
 * other descriptors are passed on to the system by rpoll and rselect alone. There are stream
 * sockets; datagrams fail as an unknown type of socket does.
 */
#include "rs.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FD 65536

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rs *table[MAX_FD];

struct rs *rs_get(int fd)
{
	struct rs *s = NULL;
	pthread_mutex_lock(&table_lock);
	if (fd >= 0 && fd < MAX_FD && table[fd]) {
		s = table[fd];
		s->refs++;
	}
	pthread_mutex_unlock(&table_lock);
	if (!s)
		errno = EBADF;
	return s;
}

void rs_put(struct rs *s)
{
	int saved = errno;
	pthread_mutex_lock(&table_lock);
	bool last = --s->refs == 0;
	pthread_mutex_unlock(&table_lock);
	if (last) {
		rs_release(s);
		pthread_mutex_destroy(&s->lock);
		pthread_cond_destroy(&s->cond);
		free(s);
	}
	errno = saved;
}

int rs_enlist(struct rs *s)
{
	if (s->fd >= MAX_FD)
		return EMFILE;
	pthread_mutex_lock(&table_lock);
	table[s->fd] = s;
	s->refs = 1;
	pthread_mutex_unlock(&table_lock);
	return 0;
}

/* A socket with the options of another, or the usual ones. */
struct rs *rs_new(const struct rs *like)
{
	struct rs *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->cond, NULL);
	s->fd = -1;
	s->sq_size = like ? like->sq_size : 384;
	s->rq_size = like ? like->rq_size : 384;
	s->inline_size = like ? like->inline_size : 64;
	s->snd_size = like ? like->snd_size : 1 << 17;
	s->rcv_size = like ? like->rcv_size : 1 << 17;
	s->iomap_size = like ? like->iomap_size : 0;
	s->nodelay = like && like->nodelay;
	return s;
}

CM_PUBLIC int rsocket(int domain, int type, int protocol)
{
	(void)protocol;
	if (domain != AF_INET && domain != AF_INET6)
		return rs_fail(EAFNOSUPPORT);
	if ((type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_STREAM)
		return rs_fail(ESOCKTNOSUPPORT);
	struct rs *s = rs_new(NULL);
	if (!s)
		return rs_fail(ENOMEM);
	if (type & SOCK_NONBLOCK)
		s->flags = O_NONBLOCK;
	s->channel = rdma_create_event_channel();
	int error = s->channel ? 0 : errno;
	if (!error && rdma_create_id(s->channel, &s->id, s, RDMA_PS_TCP))
		error = errno;
	if (!error) {
		s->fd = s->channel->fd;
		fcntl(s->fd, F_SETFL, fcntl(s->fd, F_GETFL) | O_NONBLOCK);
		error = rs_enlist(s);
	}
	if (error) {
		rs_release(s);
		free(s);
		return rs_fail(error);
	}
	return s->fd;
}

/* The calls have one shape: with the socket's lock, and an errno to return. */
#define WITH_SOCKET(fd, expression)                                                                \
	struct rs *s = rs_get(fd);                                                                 \
	if (!s)                                                                                    \
		return -1;                                                                         \
	pthread_mutex_lock(&s->lock);                                                              \
	int error = (expression);                                                                  \
	pthread_mutex_unlock(&s->lock);                                                            \
	rs_put(s);                                                                                 \
	return cm_result(error)

static int do_bind(struct rs *s, const struct sockaddr *addr)
{
	if (s->state != RS_NEW)
		return EINVAL;
	if (rdma_bind_addr(s->id, (struct sockaddr *)addr))
		return errno;
	s->state = RS_BOUND;
	return 0;
}

CM_PUBLIC int rbind(int fd, const struct sockaddr *addr, socklen_t len)
{
	(void)len;
	WITH_SOCKET(fd, do_bind(s, addr));
}

static int do_listen(struct rs *s, int backlog)
{
	if (s->state == RS_LISTENING)
		return 0;
	if (s->state != RS_NEW && s->state != RS_BOUND)
		return EINVAL;
	if (rdma_listen(s->id, backlog))
		return errno;
	s->state = RS_LISTENING;
	return 0;
}

CM_PUBLIC int rlisten(int fd, int backlog)
{
	WITH_SOCKET(fd, do_listen(s, backlog));
}

static bool would_block(const struct rs *s, int flags)
{
	return s->flags & O_NONBLOCK || flags & MSG_DONTWAIT;
}

/*
 * Waits, or does not where the program does not want to. One that tries again and again instead
 * hears of the connection's end all the same.
 */
static int wait_or_not(struct rs *s, int flags)
{
	if (!would_block(s, flags))
		return rs_wait(s, -1);
	if (++s->tries % 64 == 0)
		rs_advance(s);
	return EAGAIN;
}

static int do_accept(struct rs *s, struct rs **out)
{
	while (s->state == RS_LISTENING) {
		int error = rs_accept_one(s, out);
		if (error != EAGAIN || would_block(s, 0))
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

CM_PUBLIC int raccept(int fd, struct sockaddr *addr, socklen_t *len)
{
	struct rs *s = rs_get(fd), *made = NULL;
	if (!s)
		return -1;
	pthread_mutex_lock(&s->lock);
	int error = do_accept(s, &made);
	pthread_mutex_unlock(&s->lock);
	rs_put(s);
	if (error)
		return rs_fail(error);
	if (addr && len)
		copy_addr(rdma_get_peer_addr(made->id), addr, len);
	return made->fd;
}

static bool connecting(const struct rs *s)
{
	return s->state >= RS_RESOLVING_ADDR && s->state <= RS_CONNECTING;
}

static int take_error(struct rs *s)
{
	int error = s->error;
	s->error = 0;
	return error;
}

static int do_connect(struct rs *s, const struct sockaddr *addr)
{
	rs_advance(s);
	if (s->state == RS_CONNECTED)
		return EISCONN;
	if (connecting(s))
		return EALREADY;
	if (s->state != RS_NEW && s->state != RS_BOUND)
		return s->error ? take_error(s) : EINVAL;
	int error = rs_start(s, addr);
	if (error)
		return error;
	if (would_block(s, 0))
		return EINPROGRESS;
	while (connecting(s)) {
		error = rs_wait(s, -1);
		if (error)
			return error;
	}
	return s->state == RS_CONNECTED ? 0 : take_error(s);
}

CM_PUBLIC int rconnect(int fd, const struct sockaddr *addr, socklen_t len)
{
	(void)len;
	WITH_SOCKET(fd, do_connect(s, addr));
}

/* Waits until all that was sent has been acknowledged, or cannot be any more. */
static void drain(struct rs *s)
{
	while ((s->state == RS_CONNECTED || s->state == RS_DISCONNECTED) && s->cq &&
	       (s->sqe < s->sq_size || s->ctrl > 0))
		if (rs_wait(s, 5000))
			return;
}

static int do_shutdown(struct rs *s, int how)
{
	if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR)
		return EINVAL;
	rs_process(s);
	if (s->state != RS_CONNECTED)
		return s->state == RS_DISCONNECTED || s->state == RS_FAILED ? 0 : ENOTCONN;
	bool wrote = s->writable;
	if (how != SHUT_RD)
		s->writable = false;
	if (how != SHUT_WR)
		s->readable = false;
	if (s->writable)
		return 0; /* the peer goes on to hear from us */
	while (s->state == RS_CONNECTED && s->ctrl >= RS_CTRL_MAX)
		if (rs_wait(s, -1))
			break;
	if (s->state == RS_CONNECTED && (wrote || !s->readable))
		rs_send_ctrl(s, s->readable ? RS_CTRL_SHUTDOWN : RS_CTRL_DISCONNECT);
	drain(s);
	return 0;
}

CM_PUBLIC int rshutdown(int fd, int how)
{
	WITH_SOCKET(fd, do_shutdown(s, how));
}

CM_PUBLIC int rclose(int fd)
{
	struct rs *s = rs_get(fd);
	if (!s)
		return -1;
	pthread_mutex_lock(&table_lock);
	table[fd] = NULL;
	s->refs--; /* the table's */
	pthread_mutex_unlock(&table_lock);
	pthread_mutex_lock(&s->lock);
	if (s->state == RS_CONNECTED)
		do_shutdown(s, SHUT_RDWR);
	if (s->state == RS_CONNECTED || s->state == RS_DISCONNECTED)
		rdma_disconnect(s->id);
	s->state = RS_DISCONNECTED;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	rs_put(s);
	return 0;
}

/* Takes up to len bytes out of the receive buffer. */
static size_t take_bytes(struct rs *s, uint8_t *buf, size_t len, bool peek)
{
	size_t got = 0;
	int at = s->rhead;
	for (int m = s->mhead; m != s->mtail && got < len; m = (m + 1) % s->msize) {
		size_t n = s->messages[m] < len - got ? s->messages[m] : len - got;
		for (size_t done = 0; done < n;) {
			size_t part = n - done;
			if (part > (size_t)(s->rcv_size - at))
				part = (size_t)(s->rcv_size - at);
			memcpy(buf + got + done, s->rbuf + at, part);
			at = (at + (int)part) % s->rcv_size;
			done += part;
		}
		got += n;
		if (peek)
			continue;
		s->messages[m] -= (uint32_t)n;
		if (s->messages[m])
			break;
		s->rseq++;
		s->mhead = (m + 1) % s->msize;
	}
	if (!peek) {
		s->rhead = at;
		s->rbytes += (int)got;
	}
	return got;
}

static ssize_t do_recv(struct rs *s, void *buf, size_t len, int flags)
{
	size_t got = 0;
	if (connecting(s) || s->state < RS_RESOLVING_ADDR)
		return rs_fail(ENOTCONN);
	do {
		rs_process(s);
		while (!rs_can_recv(s)) {
			if (!s->readable || s->state != RS_CONNECTED) {
				int error = got ? 0 : take_error(s);
				return error ? rs_fail(error) : (ssize_t)got;
			}
			int error = wait_or_not(s, flags);
			if (error)
				return got ? (ssize_t)got : rs_fail(error);
		}
		got += take_bytes(s, (uint8_t *)buf + got, len - got, flags & MSG_PEEK);
		rs_process(s); /* which tells the peer of the room */
	} while (flags & MSG_WAITALL && !(flags & MSG_PEEK) && got < len);
	return (ssize_t)got;
}

static ssize_t do_send(struct rs *s, const void *buf, size_t len, int flags)
{
	size_t sent = 0;
	if (connecting(s) || s->state < RS_RESOLVING_ADDR)
		return rs_fail(ENOTCONN);
	rs_process(s);
	while (sent < len) {
		if (!s->writable || s->state != RS_CONNECTED) {
			int error = s->error ? take_error(s) : ECONNRESET;
			return sent ? (ssize_t)sent : rs_fail(error);
		}
		if (!rs_can_send(s)) {
			int error = wait_or_not(s, flags);
			if (error)
				return sent ? (ssize_t)sent : rs_fail(error);
			continue;
		}
		/* The peer writes to the entry when it is empty, and not otherwise. */
		struct rs_sge *t = &s->targets[s->target];
		uint32_t room = ((volatile struct rs_sge *)t)->length;
		size_t n = len - sent;
		if (n > room)
			n = room;
		if (n > (size_t)s->sfree)
			n = (size_t)s->sfree;
		if (n > 1 << 16)
			n = 1 << 16;
		uint64_t addr = t->addr;
		t->addr += n;
		t->length = room - (uint32_t)n;
		if (t->length == 0)
			s->target = (s->target + 1) % RS_TARGETS;
		rs_write(s, (const uint8_t *)buf + sent, (int)n, RS_OP_DATA, addr, t->key);
		sent += n;
	}
	return (ssize_t)sent;
}

CM_PUBLIC ssize_t rrecv(int fd, void *buf, size_t len, int flags)
{
	struct rs *s = rs_get(fd);
	if (!s)
		return -1;
	int saved = errno;
	pthread_mutex_lock(&s->lock);
	ssize_t n = do_recv(s, buf, len, flags);
	pthread_mutex_unlock(&s->lock);
	if (n >= 0)
		errno = saved; /* programs ask for it at the end of the stream, too */
	rs_put(s);
	return n;
}

CM_PUBLIC ssize_t rsend(int fd, const void *buf, size_t len, int flags)
{
	struct rs *s = rs_get(fd);
	if (!s)
		return -1;
	int saved = errno;
	pthread_mutex_lock(&s->lock);
	ssize_t n = do_send(s, buf, len, flags);
	pthread_mutex_unlock(&s->lock);
	if (n >= 0)
		errno = saved; /* programs ask for it at the end of the stream, too */
	rs_put(s);
	return n;
}

CM_PUBLIC ssize_t rrecvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *src,
			    socklen_t *srclen)
{
	ssize_t n = rrecv(fd, buf, len, flags);
	if (n > 0 && src && srclen)
		rgetpeername(fd, src, srclen);
	return n;
}

CM_PUBLIC ssize_t rsendto(int fd, const void *buf, size_t len, int flags,
			  const struct sockaddr *dst, socklen_t dstlen)
{
	(void)dstlen;
	return dst ? rs_fail(EISCONN) : rsend(fd, buf, len, flags);
}

CM_PUBLIC ssize_t rread(int fd, void *buf, size_t count)
{
	return rrecv(fd, buf, count, 0);
}

CM_PUBLIC ssize_t rwrite(int fd, const void *buf, size_t count)
{
	return rsend(fd, buf, count, 0);
}

/* Of several pieces: the first waits as flags say, the others take what is there. */
static ssize_t pieces(int fd, const struct iovec *iov, size_t n, int flags, bool receive)
{
	ssize_t all = 0;
	for (size_t i = 0; i < n; i++) {
		int how = receive && all ? flags | MSG_DONTWAIT : flags;
		if (!iov[i].iov_len)
			continue;
		ssize_t got = receive ? rrecv(fd, iov[i].iov_base, iov[i].iov_len, how)
				      : rsend(fd, iov[i].iov_base, iov[i].iov_len, how);
		if (got < 0)
			return all ? all : got;
		all += got;
		if ((size_t)got < iov[i].iov_len)
			break;
	}
	return all;
}

CM_PUBLIC ssize_t rrecvmsg(int fd, struct msghdr *msg, int flags)
{
	if (msg->msg_controllen)
		return rs_fail(ENOTSUP);
	return pieces(fd, msg->msg_iov, msg->msg_iovlen, flags, true);
}

CM_PUBLIC ssize_t rsendmsg(int fd, const struct msghdr *msg, int flags)
{
	if (msg->msg_controllen)
		return rs_fail(ENOTSUP);
	return pieces(fd, msg->msg_iov, msg->msg_iovlen, flags, false);
}

CM_PUBLIC ssize_t rreadv(int fd, const struct iovec *iov, int n)
{
	return pieces(fd, iov, (size_t)n, 0, true);
}

CM_PUBLIC ssize_t rwritev(int fd, const struct iovec *iov, int n)
{
	return pieces(fd, iov, (size_t)n, 0, false);
}

static int do_name(struct rs *s, bool peer, struct sockaddr *addr, socklen_t *len)
{
	if (peer && s->state < RS_RESOLVING_ADDR)
		return ENOTCONN;
	return copy_addr(peer ? rdma_get_peer_addr(s->id) : rdma_get_local_addr(s->id), addr, len);
}

CM_PUBLIC int rgetpeername(int fd, struct sockaddr *addr, socklen_t *len)
{
	WITH_SOCKET(fd, do_name(s, true, addr, len));
}

CM_PUBLIC int rgetsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
	WITH_SOCKET(fd, do_name(s, false, addr, len));
}

CM_PUBLIC int rfcntl(int fd, int cmd, ...)
{
	struct rs *s = rs_get(fd);
	if (!s)
		return -1;
	va_list args;
	va_start(args, cmd);
	int arg = cmd == F_SETFL ? va_arg(args, int) : 0;
	va_end(args);
	pthread_mutex_lock(&s->lock);
	int result = 0;
	if (cmd == F_GETFL)
		result = O_RDWR | s->flags;
	else if (cmd == F_SETFL)
		s->flags = arg & O_NONBLOCK;
	else
		result = rs_fail(ENOTSUP);
	pthread_mutex_unlock(&s->lock);
	rs_put(s);
	return result;
}
