// SPDX-License-Identifier: Apache-2.0
/*
 * The calls that send and receive.
 */
#include "rsocket/dgram.h"

#include <limits.h>
#include <string.h>

/* A position in the program's buffers. */
struct iov_iter {
	const struct iovec *iov;
	size_t count;
	size_t offset; /* of the position in the first buffer */
};

static void skip_empty(struct iov_iter *p)
{
	while (p->count && p->offset == p->iov->iov_len) {
		p->iov++;
		p->count--;
		p->offset = 0;
	}
}

static void copy_to_iter(struct iov_iter *p, const uint8_t *from, size_t len)
{
	while (len) {
		skip_empty(p);
		size_t n = p->iov->iov_len - p->offset;
		if (n > len)
			n = len;
		memcpy((uint8_t *)p->iov->iov_base + p->offset, from, n);
		p->offset += n;
		from += n;
		len -= n;
	}
}

/* Returns the number of bytes of the buffers, or -1 if it overflows. */
static ssize_t iov_length(const struct iovec *v, size_t n)
{
	size_t all = 0;
	for (size_t i = 0; i < n; i++) {
		if (v[i].iov_len > SSIZE_MAX - all)
			return -1;
		all += v[i].iov_len;
	}
	return (ssize_t)all;
}

/*
 * Waits until something may have changed, or returns EAGAIN if the call does not block or its
 * timeout is over. Programs that retry instead of polling must notice a disconnection too, so
 * some of these calls handle events of the connection manager. 0 or an errno.
 */
static int wait_or_eagain(struct rs *s, int flags, int64_t deadline)
{
	if (rs_would_block(s, flags)) {
		if (++s->empty_calls % RS_CM_CHECK_CALLS == 0)
			rs_process_cm_events(s);
		return EAGAIN;
	}
	if (deadline == INT64_MAX)
		return rs_wait(s, -1);
	int64_t left = deadline - rs_now();
	int error = left > 0 ? rs_wait(s, left < INT_MAX ? (int)left : INT_MAX) : ETIMEDOUT;
	return error == ETIMEDOUT ? EAGAIN : error;
}

/* Copies up to len bytes out of the receive buffer. */
static size_t read_bytes(struct rs *s, struct iov_iter *to, size_t len, bool peek)
{
	size_t got = 0;
	int at = s->rbuf_pos;
	for (int m = s->rmsg_head; m != s->rmsg_tail && got < len; m = (m + 1) % s->rmsg_size) {
		size_t n = s->rmsg[m] < len - got ? s->rmsg[m] : len - got;
		for (size_t done = 0; done < n;) {
			size_t part = n - done;
			if (part > (size_t)(s->opt.rcv_size - at))
				part = (size_t)(s->opt.rcv_size - at);
			copy_to_iter(to, s->rbuf + at, part);
			at = (at + (int)part) % s->opt.rcv_size;
			done += part;
		}
		got += n;
		if (peek)
			continue;
		s->rmsg[m] -= (uint32_t)n;
		if (s->rmsg[m])
			break;
		s->rseq_no++;
		s->rmsg_head = (m + 1) % s->rmsg_size;
	}
	if (!peek) {
		s->rbuf_pos = at;
		s->rbuf_bytes_free += (int)got;
	}
	return got;
}

static ssize_t do_recv(struct rs *s, const struct iovec *v, size_t count, int flags)
{
	struct iov_iter to = {v, count, 0};
	ssize_t len = iov_length(v, count);
	size_t got = 0;
	bool peek = flags & MSG_PEEK;
	int64_t deadline = rs_deadline(s->opt.rcv_timeout);
	if (len < 0)
		return rs_fail(EINVAL);
	if (rs_connecting(s) || s->state < RS_RESOLVING_ADDR)
		return rs_fail(ENOTCONN);
	if (!len)
		return 0;
	do {
		rs_process_cq(s);
		while (!rs_can_recv(s)) {
			if (!s->readable || !rs_open(s)) {
				int error = got ? 0 : rs_take_error(s);
				return error ? rs_fail(error) : (ssize_t)got;
			}
			int error = wait_or_eagain(s, flags, deadline);
			if (error)
				return got ? (ssize_t)got : rs_fail(error);
		}
		got += read_bytes(s, &to, (size_t)len - got, peek);
		rs_process_cq(s); /* offers the peer the space */
	} while (flags & MSG_WAITALL && !peek && got < (size_t)len);
	return (ssize_t)got;
}

/* The error of a send on a socket that cannot send. */
static int send_error(struct rs *s)
{
	int error = rs_take_error(s);
	if (error)
		return error;
	return s->state == RS_CONNECTED ? EPIPE : ECONNRESET;
}

static size_t min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

static ssize_t send_buf(struct rs *s, const uint8_t *buf, size_t len, int flags, int64_t deadline)
{
	size_t sent = 0;
	while (sent < len) {
		if (!s->writable || !rs_open(s))
			return sent ? (ssize_t)sent : rs_fail(send_error(s));
		if (!rs_can_send(s)) {
			int error = wait_or_eagain(s, flags, deadline);
			if (error)
				return sent ? (ssize_t)sent : rs_fail(error);
			continue;
		}
		struct rs_sge *t = &s->target[s->target_index];
		size_t n = min_size(min_size(len - sent, t->length),
				    min_size((size_t)s->sbuf_bytes_avail, RS_MAX_MESSAGE));
		uint64_t addr = t->addr;
		uint32_t key = t->key;
		t->addr += n;
		t->length -= (uint32_t)n;
		if (t->length == 0)
			s->target_index = (s->target_index + 1) % RS_SGL_SIZE;
		rs_write(s, buf + sent, (int)n, RS_OP_DATA, addr, key);
		sent += n;
	}
	return (ssize_t)sent;
}

static ssize_t do_send(struct rs *s, const struct iovec *v, size_t count, int flags)
{
	size_t sent = 0;
	int64_t deadline = rs_deadline(s->opt.snd_timeout);
	if (iov_length(v, count) < 0)
		return rs_fail(EINVAL);
	if (rs_connecting(s) || s->state < RS_RESOLVING_ADDR)
		return rs_fail(ENOTCONN);
	rs_process_cq(s);
	for (size_t i = 0; i < count; i++) {
		ssize_t n = send_buf(s, v[i].iov_base, v[i].iov_len, flags, deadline);
		if (n < 0)
			return sent ? (ssize_t)sent : n;
		sent += (size_t)n;
		if ((size_t)n < v[i].iov_len)
			break;
	}
	return (ssize_t)sent;
}

static ssize_t receive(int fd, struct msghdr *msg, int flags)
{
	struct rs *s = rs_enter(fd);
	if (!s)
		return -1;
	int saved = errno;
	ssize_t n;
	if (s->ds) {
		n = ds_recv(s, msg, flags);
	} else {
		n = do_recv(s, msg->msg_iov, msg->msg_iovlen, flags);
		msg->msg_namelen = 0;
		msg->msg_controllen = 0; /* there is no ancillary data */
		msg->msg_flags = 0;
	}
	if (n >= 0)
		errno = saved; /* some programs check errno at the end of the stream */
	rs_leave(s);
	return n;
}

static ssize_t transmit(int fd, const struct msghdr *msg, int flags)
{
	struct rs *s = rs_enter(fd);
	if (!s)
		return -1;
	int saved = errno;
	ssize_t n;
	if (s->ds)
		n = ds_send(s, msg, flags);
	else
		n = msg->msg_name ? rs_fail(EISCONN)
				  : do_send(s, msg->msg_iov, msg->msg_iovlen, flags);
	if (n >= 0)
		errno = saved;
	rs_leave(s);
	return n;
}

SR_PUBLIC ssize_t rrecv(int fd, void *buf, size_t len, int flags)
{
	struct iovec v = {buf, len};
	return rrecvmsg(fd, &(struct msghdr){.msg_iov = &v, .msg_iovlen = 1}, flags);
}

SR_PUBLIC ssize_t rsend(int fd, const void *buf, size_t len, int flags)
{
	struct iovec v = {(void *)buf, len};
	return rsendmsg(fd, &(struct msghdr){.msg_iov = &v, .msg_iovlen = 1}, flags);
}

SR_PUBLIC ssize_t rrecvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *src,
			    socklen_t *srclen)
{
	struct iovec v = {buf, len};
	bool named = src && srclen;
	struct msghdr msg = {
		.msg_name = named ? src : NULL,
		.msg_namelen = named ? *srclen : 0,
		.msg_iov = &v,
		.msg_iovlen = 1,
	};
	ssize_t n = receive(fd, &msg, flags);
	if (n < 0 || !named)
		return n;
	if (msg.msg_namelen)
		*srclen = msg.msg_namelen;
	else
		rgetpeername(fd, src, srclen);
	return n;
}

SR_PUBLIC ssize_t rsendto(int fd, const void *buf, size_t len, int flags,
			  const struct sockaddr *dst, socklen_t dstlen)
{
	struct iovec v = {(void *)buf, len};
	struct msghdr msg = {
		.msg_name = (void *)dst,
		.msg_namelen = dst ? dstlen : 0,
		.msg_iov = &v,
		.msg_iovlen = 1,
	};
	return rsendmsg(fd, &msg, flags);
}

SR_PUBLIC ssize_t rread(int fd, void *buf, size_t count)
{
	return rrecv(fd, buf, count, 0);
}

SR_PUBLIC ssize_t rwrite(int fd, const void *buf, size_t count)
{
	return rsend(fd, buf, count, 0);
}

SR_PUBLIC ssize_t rrecvmsg(int fd, struct msghdr *msg, int flags)
{
	return receive(fd, msg, flags);
}

SR_PUBLIC ssize_t rsendmsg(int fd, const struct msghdr *msg, int flags)
{
	if (msg->msg_control && msg->msg_controllen)
		return rs_fail(ENOTSUP);
	return transmit(fd, msg, flags);
}

SR_PUBLIC ssize_t rreadv(int fd, const struct iovec *iov, int n)
{
	if (n < 0)
		return rs_fail(EINVAL);
	return rrecvmsg(fd, &(struct msghdr){.msg_iov = (void *)iov, .msg_iovlen = (size_t)n}, 0);
}

SR_PUBLIC ssize_t rwritev(int fd, const struct iovec *iov, int n)
{
	if (n < 0)
		return rs_fail(EINVAL);
	return rsendmsg(fd, &(struct msghdr){.msg_iov = (void *)iov, .msg_iovlen = (size_t)n}, 0);
}
