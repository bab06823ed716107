// SPDX-License-Identifier: Apache-2.0
/*
 * Sockets over RDMA: options, and memory that the peer writes to by offsets (riomap, riowrite).
 */
#include "rs.h"

#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

static int clamp(int v, int min, int max)
{
	return v < min ? min : v > max ? max : v;
}

static int set_rdma(struct rs *s, int name, int v)
{
	if (s->state > RS_LISTENING)
		return EINVAL;
	switch (name) {
	case RDMA_SQSIZE:
		s->sq_size = clamp(v, 4, 8192);
		return 0;
	case RDMA_RQSIZE:
		s->rq_size = clamp(v, 4, 8192);
		return 0;
	case RDMA_INLINE:
		s->inline_size = clamp(v, 0, 512);
		return 0;
	case RDMA_IOMAPSIZE:
		s->iomap_size =
			v <= 128 ? clamp(v, 0, 128) : clamp((v + 255) / 256 * 256, 0, 0x7f00);
		return 0;
	}
	return ENOTSUP;
}

static int set_socket(struct rs *s, int name, int v)
{
	switch (name) {
	case SO_REUSEADDR:
		s->reuse = v != 0;
		return rdma_set_option(s->id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &v,
				       sizeof v)
			       ? errno
			       : 0;
	case SO_RCVBUF:
	case SO_SNDBUF:
		if (s->state > RS_LISTENING)
			return EINVAL;
		/* Whole pages, in two halves. */
		*(name == SO_RCVBUF ? &s->rcv_size : &s->snd_size) =
			clamp(v, 8192, 1 << 28) / 8192 * 8192;
		return 0;
	case SO_LINGER:
	case SO_OOBINLINE:
		return 0; /* closing waits, and there is nothing out of band */
	}
	return ENOTSUP;
}

static int set_option(struct rs *s, int level, int name, int v)
{
	switch (level) {
	case SOL_SOCKET:
		return set_socket(s, name, v);
	case SOL_RDMA:
		return set_rdma(s, name, v);
	case IPPROTO_TCP:
		if (name != TCP_NODELAY)
			return ENOTSUP;
		s->nodelay = v != 0; /* nothing is ever delayed */
		return 0;
	case IPPROTO_IPV6:
		if (name != IPV6_V6ONLY)
			return ENOTSUP;
		return rdma_set_option(s->id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &v, sizeof v)
			       ? errno
			       : 0;
	}
	return ENOTSUP;
}

CM_PUBLIC int rsetsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	struct rs *s = rs_get(fd);
	if (!s)
		return -1;
	int v = 0, error = EINVAL;
	if (value && len >= sizeof v) {
		memcpy(&v, value, sizeof v);
		pthread_mutex_lock(&s->lock);
		error = set_option(s, level, name, v);
		pthread_mutex_unlock(&s->lock);
	}
	rs_put(s);
	return cm_result(error);
}

static int get_option(struct rs *s, int level, int name, int *v)
{
	switch (level) {
	case SOL_SOCKET:
		switch (name) {
		case SO_ERROR:
			*v = s->error;
			s->error = 0;
			return 0;
		case SO_REUSEADDR:
			*v = s->reuse;
			return 0;
		case SO_RCVBUF:
			*v = s->rcv_size;
			return 0;
		case SO_SNDBUF:
			*v = s->snd_size;
			return 0;
		case SO_TYPE:
			*v = SOCK_STREAM;
			return 0;
		}
		return ENOTSUP;
	case IPPROTO_TCP:
		*v = s->nodelay;
		return name == TCP_NODELAY ? 0 : ENOTSUP;
	case SOL_RDMA:
		switch (name) {
		case RDMA_SQSIZE:
			*v = s->sq_size;
			return 0;
		case RDMA_RQSIZE:
			*v = s->rq_size;
			return 0;
		case RDMA_INLINE:
			*v = s->inline_size;
			return 0;
		case RDMA_IOMAPSIZE:
			*v = s->iomap_size;
			return 0;
		}
	}
	return ENOTSUP;
}

CM_PUBLIC int rgetsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	struct rs *s = rs_get(fd);
	if (!s)
		return -1;
	int v = 0;
	pthread_mutex_lock(&s->lock);
	int error = *len < sizeof v ? EINVAL : get_option(s, level, name, &v);
	pthread_mutex_unlock(&s->lock);
	rs_put(s);
	if (error)
		return rs_fail(error);
	memcpy(value, &v, sizeof v);
	*len = sizeof v;
	return 0;
}

/* An entry of the peer's list that no region of ours has. */
static int free_index(const struct rs *s)
{
	for (int i = 0; i < (int)s->peer_iomaps.length; i++) {
		const struct rs_region *r = s->regions;
		while (r && r->index != i)
			r = r->next;
		if (!r)
			return i;
	}
	return -1;
}

static off_t map_region(struct rs *s, void *buf, size_t len, int prot, off_t offset)
{
	if (s->state != RS_CONNECTED || !s->id->pd)
		return rs_fail(ENOTCONN);
	int index = free_index(s);
	if (index < 0)
		return rs_fail(ENOBUFS);
	struct rs_region *r = calloc(1, sizeof *r);
	if (!r)
		return rs_fail(ENOMEM);
	int access = IBV_ACCESS_LOCAL_WRITE;
	if (prot & 2) /* PROT_WRITE */
		access |= IBV_ACCESS_REMOTE_WRITE;
	if (prot & 1) /* PROT_READ */
		access |= IBV_ACCESS_REMOTE_READ;
	r->mr = ibv_reg_mr(s->id->pd, buf, len, access);
	if (!r->mr) {
		int error = errno;
		free(r);
		return rs_fail(error);
	}
	r->offset = offset == -1 ? (off_t)(uintptr_t)buf : offset;
	r->index = index;
	r->pending = true;
	r->next = s->regions;
	s->regions = r;
	rs_process(s); /* tells the peer */
	return r->offset;
}

CM_PUBLIC off_t riomap(int fd, void *buf, size_t len, int prot, int flags, off_t offset)
{
	(void)flags;
	struct rs *s = rs_get(fd);
	if (!s)
		return -1;
	pthread_mutex_lock(&s->lock);
	off_t at = map_region(s, buf, len, prot, offset);
	pthread_mutex_unlock(&s->lock);
	rs_put(s);
	return at;
}

static int unmap_region(struct rs *s, void *buf, size_t len)
{
	struct rs_region *r = s->regions;
	while (r && !(r->mr && r->mr->addr == buf && r->mr->length == len))
		r = r->next;
	if (!r)
		return EINVAL;
	ibv_dereg_mr(r->mr);
	r->mr = NULL;
	r->gone = true;
	r->pending = true; /* its entry stays taken: the peer may still write there, in vain */
	rs_process(s);
	return 0;
}

CM_PUBLIC int riounmap(int fd, void *buf, size_t len)
{
	struct rs *s = rs_get(fd);
	if (!s)
		return -1;
	pthread_mutex_lock(&s->lock);
	int error = unmap_region(s, buf, len);
	pthread_mutex_unlock(&s->lock);
	rs_put(s);
	return cm_result(error);
}

/* The peer's region that holds an offset, read once; false where there is none. */
static bool find_map(const struct rs *s, uint64_t offset, struct rs_iomap *out)
{
	for (int i = 0; i < s->iomap_size; i++) {
		memcpy(out, (const void *)&s->iomaps[i], sizeof *out);
		if (out->sge.length && offset >= out->offset &&
		    offset - out->offset < out->sge.length)
			return true;
	}
	return false;
}

static size_t write_offset(struct rs *s, const uint8_t *buf, size_t count, uint64_t offset,
			   int flags)
{
	size_t done = 0;
	struct rs_iomap m;
	rs_process(s);
	while (done < count) {
		if (s->state != RS_CONNECTED)
			return done ? done : (size_t)rs_fail(s->error ? s->error : ECONNRESET);
		bool mapped = find_map(s, offset + done, &m);
		if (!mapped || s->sqe == 0 || s->sfree == 0) {
			/* The peer may be about to tell us. */
			int error = s->flags || flags & MSG_DONTWAIT ? EAGAIN : rs_wait(s, -1);
			if (error)
				return done ? done : (size_t)rs_fail(error);
			continue;
		}
		uint64_t into = offset + done - m.offset;
		size_t n = count - done;
		if (n > m.sge.length - into)
			n = m.sge.length - into;
		if (n > (size_t)s->sfree)
			n = (size_t)s->sfree;
		if (n > 1 << 16)
			n = 1 << 16;
		rs_write(s, buf + done, (int)n, RS_OP_WRITE, m.sge.addr + into, m.sge.key);
		done += n;
	}
	return done;
}

CM_PUBLIC size_t riowrite(int fd, const void *buf, size_t count, off_t offset, int flags)
{
	struct rs *s = rs_get(fd);
	if (!s)
		return (size_t)-1;
	pthread_mutex_lock(&s->lock);
	size_t n = write_offset(s, buf, count, (uint64_t)offset, flags);
	pthread_mutex_unlock(&s->lock);
	rs_put(s);
	return n;
}
