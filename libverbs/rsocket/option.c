// SPDX-License-Identifier: Apache-2.0
/*
 * Socket options.
 */
#include "rsocket/dgram.h"

#include <endian.h>
#include <infiniband/sa.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <string.h>

static int set_rdma(struct rs *s, int name, int v)
{
	if (s->state > RS_LISTENING)
		return EINVAL;
	switch (name) {
	case RDMA_SQSIZE:
		s->opt.sq_size = rs_clamp(v, RS_MIN_QUEUE, RS_MAX_QUEUE);
		return 0;
	case RDMA_RQSIZE:
		s->opt.rq_size = rs_clamp(v, RS_MIN_QUEUE, RS_MAX_QUEUE);
		return 0;
	case RDMA_INLINE:
		s->opt.inline_size = rs_clamp(v, 0, RS_MAX_INLINE);
		return 0;
	case RDMA_IOMAPSIZE:
		s->opt.iomap_size = rs_round_iomaps(v);
		return 0;
	}
	return ENOTSUP;
}

/* Sets an option of the identifier, and *stored, to whether v is not 0. */
static int set_id_option(struct rs *s, int option, int v, bool *stored)
{
	int on = v != 0;
	if (rdma_set_option(s->id, RDMA_OPTION_ID, option, &on, sizeof on))
		return errno;
	*stored = on;
	return 0;
}

static int set_socket(struct rs *s, int name, int v)
{
	switch (name) {
	case SO_REUSEADDR:
		return set_id_option(s, RDMA_OPTION_ID_REUSEADDR, v, &s->opt.reuse);
	case SO_RCVBUF:
	case SO_SNDBUF:
		if (s->state > RS_LISTENING)
			return EINVAL;
		*(name == SO_RCVBUF ? &s->opt.rcv_size : &s->opt.snd_size) = rs_round_buffer(v);
		return 0;
	case SO_KEEPALIVE:
		s->opt.keepalive = v != 0; /* no keepalive is sent */
		return 0;
	case SO_OOBINLINE:
		s->opt.oob_inline = v != 0; /* there is no out-of-band data */
		return 0;
	}
	return ENOTSUP;
}

static int set_positive(int *option, int v)
{
	if (v <= 0)
		return EINVAL;
	*option = v;
	return 0;
}

static int set_tcp(struct rs *s, int name, int v)
{
	switch (name) {
	case TCP_NODELAY:
		s->opt.nodelay = v != 0; /* data is never delayed */
		return 0;
	case TCP_KEEPIDLE:
		return set_positive(&s->opt.keep_idle, v);
	case TCP_KEEPCNT:
		return set_positive(&s->opt.keep_count, v);
	case TCP_KEEPINTVL:
		return set_positive(&s->opt.keep_interval, v);
	case TCP_MAXSEG:
		return 0; /* ignored: the path MTU is used */
	}
	return ENOTSUP;
}

/* Options of a datagram socket that concern addresses and buffers also apply to its UDP socket. */
static int set_datagram(struct rs *s, int level, int name, int v)
{
	bool buffer = level == SOL_SOCKET && (name == SO_RCVBUF || name == SO_SNDBUF);
	bool reuse = level == SOL_SOCKET && name == SO_REUSEADDR;
	bool v6only = level == IPPROTO_IPV6 && name == IPV6_V6ONLY;
	if ((buffer || reuse || v6only) && setsockopt(s->ds->udp, level, name, &v, sizeof v))
		return errno;
	if (reuse)
		s->opt.reuse = v != 0;
	else if (v6only)
		s->opt.v6only = v != 0;
	else if (level == SOL_RDMA)
		return set_rdma(s, name, v);
	else
		return level == SOL_SOCKET ? set_socket(s, name, v) : ENOTSUP;
	return 0;
}

static int set_int(struct rs *s, int level, int name, int v)
{
	if (s->ds)
		return set_datagram(s, level, name, v);
	switch (level) {
	case SOL_SOCKET:
		return set_socket(s, name, v);
	case SOL_RDMA:
		return set_rdma(s, name, v);
	case IPPROTO_TCP:
		return set_tcp(s, name, v);
	case IPPROTO_IPV6:
		if (name != IPV6_V6ONLY)
			return ENOTSUP;
		return set_id_option(s, RDMA_OPTION_ID_AFONLY, v, &s->opt.v6only);
	}
	return ENOTSUP;
}

/* Options whose value is not an int. */
static bool is_time(int level, int name)
{
	return level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO);
}

static bool is_linger(int level, int name)
{
	return level == SOL_SOCKET && name == SO_LINGER;
}

static int set_time(int64_t *ms, const void *value, socklen_t len)
{
	struct timeval t;
	if (len < sizeof t)
		return EINVAL;
	memcpy(&t, value, sizeof t);
	if (t.tv_sec < 0 || t.tv_usec < 0 || t.tv_usec >= 1000000)
		return EDOM;
	if (t.tv_sec > INT_MAX / 1000)
		t.tv_sec = 0; /* 0: no timeout */
	*ms = (int64_t)t.tv_sec * 1000 + (t.tv_usec + 999) / 1000;
	return 0;
}

static int set_linger(struct rs *s, const void *value, socklen_t len)
{
	if (len < sizeof s->opt.linger)
		return EINVAL;
	memcpy(&s->opt.linger, value, sizeof s->opt.linger);
	s->opt.linger.l_linger = rs_clamp(s->opt.linger.l_linger, 0, INT_MAX / 1000);
	return 0;
}

static int set_option(struct rs *s, int level, int name, const void *value, socklen_t len)
{
	int v;
	if (!value)
		return EFAULT;
	if (is_time(level, name))
		return set_time(name == SO_RCVTIMEO ? &s->opt.rcv_timeout : &s->opt.snd_timeout,
				value, len);
	if (is_linger(level, name))
		return set_linger(s, value, len);
	if (len < sizeof v)
		return EINVAL;
	memcpy(&v, value, sizeof v);
	return set_int(s, level, name, v);
}

SR_PUBLIC int rsetsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	RS_WITH_SOCKET(fd, set_option(s, level, name, value, len));
}

static int get_socket(struct rs *s, int name, int *v)
{
	switch (name) {
	case SO_ERROR:
		rs_process_cm_events(s);
		*v = rs_take_error(s);
		return 0;
	case SO_REUSEADDR:
		*v = s->opt.reuse;
		return 0;
	case SO_KEEPALIVE:
		*v = s->opt.keepalive;
		return 0;
	case SO_OOBINLINE:
		*v = s->opt.oob_inline;
		return 0;
	case SO_RCVBUF:
		*v = s->opt.rcv_size;
		return 0;
	case SO_SNDBUF:
		*v = s->opt.snd_size;
		return 0;
	case SO_TYPE:
		*v = s->ds ? SOCK_DGRAM : SOCK_STREAM;
		return 0;
	case SO_ACCEPTCONN:
		*v = s->state == RS_LISTENING;
		return 0;
	}
	return ENOTSUP;
}

/* The payload of a packet. It is that of the smallest MTU until the path is known. */
static int max_segment(const struct rs *s)
{
	return s->id && s->id->route.num_paths ? 128 << s->id->route.path_rec->mtu : 256;
}

static int get_tcp(struct rs *s, int name, int *v)
{
	switch (name) {
	case TCP_NODELAY:
		*v = s->opt.nodelay;
		return 0;
	case TCP_KEEPIDLE:
		*v = s->opt.keep_idle;
		return 0;
	case TCP_KEEPCNT:
		*v = s->opt.keep_count;
		return 0;
	case TCP_KEEPINTVL:
		*v = s->opt.keep_interval;
		return 0;
	case TCP_MAXSEG:
		*v = max_segment(s);
		return 0;
	}
	return ENOTSUP;
}

static int get_rdma(struct rs *s, int name, int *v)
{
	switch (name) {
	case RDMA_SQSIZE:
		*v = s->opt.sq_size;
		return 0;
	case RDMA_RQSIZE:
		*v = s->opt.rq_size;
		return 0;
	case RDMA_INLINE:
		*v = s->opt.inline_size;
		return 0;
	case RDMA_IOMAPSIZE:
		*v = s->opt.iomap_size;
		return 0;
	}
	return ENOTSUP;
}

static int get_int(struct rs *s, int level, int name, int *v)
{
	switch (level) {
	case SOL_SOCKET:
		return get_socket(s, name, v);
	case IPPROTO_TCP:
		return get_tcp(s, name, v);
	case IPPROTO_IPV6:
		*v = s->opt.v6only;
		return name == IPV6_V6ONLY ? 0 : ENOTSUP;
	case SOL_RDMA:
		return get_rdma(s, name, v);
	}
	return ENOTSUP;
}

/* Returns the path of a connection as a path record of subnet administration. */
static int get_route(struct rs *s, struct ibv_path_data *out)
{
	if (!s->id || !s->id->route.num_paths)
		return ENOTCONN;
	const struct ibv_sa_path_rec *p = s->id->route.path_rec;
	struct ibv_path_record *r = &out->path;
	memset(out, 0, sizeof *out);
	out->flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
	r->dgid = p->dgid;
	r->sgid = p->sgid;
	r->dlid = p->dlid;
	r->slid = p->slid;
	r->flowlabel_hoplimit = htobe32(be32toh(p->flow_label) << 8 | p->hop_limit);
	r->tclass = p->traffic_class;
	r->reversible_numpath = (uint8_t)(p->reversible << 7 | p->numb_path);
	r->pkey = p->pkey;
	r->mtu = (uint8_t)(p->mtu_selector << 6 | p->mtu);
	r->rate = (uint8_t)(p->rate_selector << 6 | p->rate);
	r->packetlifetime = (uint8_t)(p->packet_life_time_selector << 6 | p->packet_life_time);
	return 0;
}

static int get_option(struct rs *s, int level, int name, void *value, socklen_t *len)
{
	union {
		int number;
		struct timeval time;
		struct linger linger;
		struct ibv_path_data route;
	} u;
	size_t size = sizeof u.number;
	int error = 0;
	if (!value || !len)
		return EFAULT;
	if (is_time(level, name)) {
		int64_t ms = name == SO_RCVTIMEO ? s->opt.rcv_timeout : s->opt.snd_timeout;
		u.time = (struct timeval){ms / 1000, ms % 1000 * 1000};
		size = sizeof u.time;
	} else if (is_linger(level, name)) {
		u.linger = s->opt.linger;
		size = sizeof u.linger;
	} else if (level == SOL_RDMA && name == RDMA_ROUTE) {
		error = get_route(s, &u.route);
		size = sizeof u.route;
	} else {
		error = get_int(s, level, name, &u.number);
	}
	if (error)
		return error;
	if (*len < size)
		return EINVAL;
	memcpy(value, &u, size);
	*len = (socklen_t)size;
	return 0;
}

SR_PUBLIC int rgetsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	RS_WITH_SOCKET(fd, get_option(s, level, name, value, len));
}
