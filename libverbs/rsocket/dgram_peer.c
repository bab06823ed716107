// SPDX-License-Identifier: Apache-2.0
/*
 * Datagram sockets over RDMA: peers, and how their queue pairs become known.
 */
#include "rsocket/dgram.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QPN_MASK	0xffffff
#define RESOLVE_TIMEOUT 2000 /* ms */
#define MAX_GIDS	256  /* that the index in an address vector has room for */

bool ds_addr_from(union ds_addr *out, const struct sockaddr *addr, socklen_t len)
{
	if (!addr || len < sizeof addr->sa_family)
		return false;
	size_t n = cm_addr_len(addr);
	if (!n || len < n)
		return false;
	memset(out, 0, sizeof *out);
	memcpy(out, addr, n);
	return true;
}

socklen_t ds_addr_len(const union ds_addr *a)
{
	return (socklen_t)cm_addr_len(&a->sa);
}

void *ds_addr_bytes(union ds_addr *a, size_t *len)
{
	bool v4 = a->sa.sa_family == AF_INET;
	*len = v4 ? 4 : 16;
	return v4 ? (void *)&a->in.sin_addr : (void *)&a->in6.sin6_addr;
}

uint16_t *ds_addr_port(union ds_addr *a)
{
	return a->sa.sa_family == AF_INET ? &a->in.sin_port : &a->in6.sin6_port;
}

bool ds_addr_any(const union ds_addr *a)
{
	return a->sa.sa_family == AF_INET ? a->in.sin_addr.s_addr == INADDR_ANY
					  : IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr);
}

bool ds_same(const union ds_addr *a, const union ds_addr *b, bool port)
{
	if (a->sa.sa_family != b->sa.sa_family)
		return false;
	if (a->sa.sa_family == AF_INET)
		return a->in.sin_addr.s_addr == b->in.sin_addr.s_addr &&
		       (!port || a->in.sin_port == b->in.sin_port);
	return IN6_ARE_ADDR_EQUAL(&a->in6.sin6_addr, &b->in6.sin6_addr) &&
	       (!port || a->in6.sin6_port == b->in6.sin6_port);
}

/* Finds a peer that is known, and makes it the one heard of last. */
struct ds_peer *ds_find_peer(struct ds *d, const union ds_addr *addr)
{
	for (struct ds_peer **at = &d->peers; *at; at = &(*at)->next) {
		struct ds_peer *p = *at;
		if (!ds_same(&p->addr, addr, true))
			continue;
		*at = p->next;
		p->next = d->peers;
		d->peers = p;
		return p;
	}
	return NULL;
}

static void settle(struct ds_peer *p)
{
	if (p->id)
		rdma_destroy_id(p->id);
	p->id = NULL;
	p->settled = true;
}

void ds_forget(struct ds *d, struct ds_peer *p)
{
	struct ds_peer **at = &d->peers;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	settle(p);
	if (p->ah)
		ibv_destroy_ah(p->ah);
	free(p);
}

static struct ds_peer *add_peer(struct ds *d, const union ds_addr *addr)
{
	int count = 0;
	struct ds_peer *oldest = NULL;
	for (struct ds_peer *p = d->peers; p; p = p->next) {
		count++;
		if (p != d->to)
			oldest = p;
	}
	if (count >= DS_MAX_PEERS)
		ds_forget(d, oldest);
	struct ds_peer *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	p->addr = *addr;
	p->next = d->peers;
	d->peers = p;
	return p;
}

/* Our address on the system's way to a peer. */
static bool route(const union ds_addr *to, union ds_addr *local)
{
	socklen_t len = sizeof *local;
	int fd = socket(to->sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	memset(local, 0, sizeof *local);
	bool ok = fd >= 0 && !connect(fd, &to->sa, ds_addr_len(to)) &&
		  !getsockname(fd, &local->sa, &len);
	if (fd >= 0)
		close(fd);
	return ok;
}

/* The queue pair for a peer that is reached through UDP; NULL: it is not. */
static struct ds_qp *qp_towards(struct rs *s, const union ds_addr *to)
{
	union ds_addr local = s->ds->local;
	if (!s->ds->routed)
		return NULL;
	if (ds_addr_any(&local) && !route(to, &local))
		return NULL;
	return ds_find_qp(s, &local);
}

/* Asks for the way to a peer, from our address where that is clear. 0 or an errno. */
static int ask(struct rs *s, struct ds_peer *p)
{
	struct ds *d = s->ds;
	union ds_addr *src = p->qp ? &p->qp->local : ds_addr_any(&d->local) ? NULL : &d->local;
	union ds_addr from;
	if (src) {
		from = *src;
		*ds_addr_port(&from) = 0;
	}
	if (rdma_create_id(d->channel, &p->id, p, RDMA_PS_UDP))
		return errno;
	p->patience = rs_now() + DS_PATIENCE;
	if (rdma_resolve_addr(p->id, src ? &from.sa : NULL, &p->addr.sa, RESOLVE_TIMEOUT)) {
		int error = errno;
		settle(p);
		return error;
	}
	return 0;
}

/* Finds a peer, or makes its acquaintance. 0 or an errno. */
int ds_meet(struct rs *s, const union ds_addr *addr, struct ds_peer **out)
{
	struct ds *d = s->ds;
	struct ds_peer *p = ds_find_peer(d, addr);
	if (p && p->id && rs_now() >= p->patience) {
		settle(p);
		p->error = p->udp ? 0 : EHOSTUNREACH;
	}
	if (p && p->error) {
		int error = p->error;
		p->error = 0;
		if (!p->udp) /* it is asked again next time */
			p->settled = false;
		return error;
	}
	if (!p)
		p = add_peer(d, addr);
	if (!p)
		return ENOMEM;
	if (!p->qp) {
		p->qp = qp_towards(s, addr);
		p->udp = p->qp != NULL;
	}
	*out = p;
	if (p->ah || p->id || p->settled)
		return 0;
	int error = ask(s, p);
	return p->udp ? 0 : error; /* UDP is a way, too */
}

static void fill_udp_header(struct ds_udp_header *h, enum rs_op op, struct ds_peer *p)
{
	size_t n;
	memset(h, 0, sizeof *h);
	h->tag = htobe32(DS_TAG);
	h->op = op;
	h->qpn = htobe32(p->qp->id->qp->qp_num);
	const void *to = ds_addr_bytes(&p->addr, &n);
	memcpy(h->to, to, n);
	h->version = n == 4 ? 4 : 6;
	h->length = (uint8_t)(offsetof(struct ds_udp_header, to) + n);
}

static ssize_t send_udp(struct ds *d, struct ds_peer *p, enum rs_op op, const void *data,
			size_t len)
{
	struct ds_udp_header h;
	fill_udp_header(&h, op, p);
	struct iovec pieces[2] = {{&h, h.length}, {(void *)data, len}};
	struct msghdr msg = {
		.msg_name = &p->addr,
		.msg_namelen = ds_addr_len(&p->addr),
		.msg_iov = pieces,
		.msg_iovlen = 2,
	};
	return sendmsg(d->udp, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t ds_send_udp(struct ds *d, struct ds_peer *p, const void *data, size_t len)
{
	return send_udp(d, p, RS_OP_DATA, data, len);
}

/*
 * A datagram through UDP says at which of our addresses the peer looks for us. Returns our queue
 * pair there, or NULL.
 */
static struct ds_qp *greet(struct rs *s, const struct ds_udp_header *h, const union ds_addr *from)
{
	union ds_addr local;
	size_t n;
	memset(&local, 0, sizeof local);
	local.sa.sa_family = from->sa.sa_family;
	void *to = ds_addr_bytes(&local, &n);
	memcpy(to, h->to, n);
	if (from->sa.sa_family == AF_INET6)
		local.in6.sin6_scope_id = from->in6.sin6_scope_id;
	if (!ds_addr_any(&s->ds->local) && !ds_same(&s->ds->local, &local, false))
		return NULL;
	struct ds_qp *qp = ds_find_qp(s, &local);
	if (!qp)
		return NULL;
	struct ds_peer *p = ds_find_peer(s->ds, from);
	if (!p)
		p = add_peer(s->ds, from);
	if (!p)
		return NULL;
	if (!p->qp || !p->ah) { /* else it is another way to the same peer */
		p->qp = qp;
		p->udp = true;
	}
	p->qpn = be32toh(h->qpn) & QPN_MASK;
	send_udp(s->ds, p, RS_OP_CTRL, NULL, 0);
	return qp;
}

static void heard(struct rs *s, const uint8_t *buf, size_t len, const union ds_addr *from)
{
	struct ds_udp_header h;
	size_t least =
		offsetof(struct ds_udp_header, to) + (from->sa.sa_family == AF_INET ? 4 : 16);
	if (len < least)
		return;
	memset(&h, 0, sizeof h);
	memcpy(&h, buf, least);
	if (be32toh(h.tag) != DS_TAG || h.length < least || h.length > len ||
	    h.version != (from->sa.sa_family == AF_INET ? 4 : 6))
		return;
	if (h.op == RS_OP_CTRL) {
		struct ds_peer *p = ds_find_peer(s->ds, from);
		if (p && (be32toh(h.qpn) & QPN_MASK))
			p->qpn = be32toh(h.qpn) & QPN_MASK;
		return;
	}
	if (h.op != RS_OP_DATA || !(be32toh(h.qpn) & QPN_MASK))
		return;
	struct ds_qp *qp = greet(s, &h, from);
	if (!qp || len - h.length > qp->mtu - qp->header.length)
		return; /* and no answer to that could be sent */
	struct ds_msg *m = malloc(sizeof *m + len - h.length);
	if (!m)
		return;
	m->qp = NULL;
	m->from = *from;
	m->len = (uint32_t)(len - h.length);
	memcpy(m->own, buf + h.length, m->len);
	m->data = m->own;
	s->ds->udp_count++;
	ds_queue(s->ds, m);
}

/* Takes what has come through UDP. What the program has no room for stays in the system. */
void ds_read_udp(struct rs *s)
{
	uint8_t buf[8192];
	while (s->ds->udp_count < DS_MAX_UDP) {
		union ds_addr from;
		socklen_t len = sizeof from;
		memset(&from, 0, sizeof from);
		ssize_t n = recvfrom(s->ds->udp, buf, sizeof buf, MSG_DONTWAIT | MSG_TRUNC,
				     &from.sa, &len);
		if (n < 0 && errno == ECONNREFUSED)
			continue; /* of an earlier datagram of ours; UDP does not promise more */
		if (n < 0)
			return;
		s->changes++;
		if (from.sa.sa_family == s->ds->domain && (size_t)n <= sizeof buf)
			heard(s, buf, (size_t)n, &from);
	}
}

/* The way that the connection manager has found. NULL: none. */
static struct ibv_ah *make_ah(struct ds_qp *qp, struct rdma_cm_id *id)
{
	const struct ibv_sa_path_rec *path = id->route.path_rec;
	struct ibv_gid_entry gids[MAX_GIDS];
	if (!id->route.num_paths)
		return NULL;
	ssize_t n = ibv_query_gid_table(qp->id->verbs, gids, MAX_GIDS, 0);
	for (ssize_t i = 0; i < n; i++) {
		const struct ibv_gid_entry *e = &gids[i];
		if (memcmp(&e->gid, &path->sgid, sizeof e->gid) ||
		    e->gid_type != IBV_GID_TYPE_ROCE_V2 || e->port_num != qp->id->port_num)
			continue;
		struct ibv_ah_attr attr = {
			.grh = {.dgid = path->dgid,
				.flow_label = be32toh(path->flow_label),
				.sgid_index = (uint8_t)e->gid_index,
				.hop_limit = path->hop_limit,
				.traffic_class = path->traffic_class},
			.is_global = 1,
			.port_num = qp->id->port_num,
		};
		return ibv_create_ah(qp->id->pd, &attr);
	}
	return NULL;
}

static void take_way(struct ds_peer *p, struct rdma_cm_id *id)
{
	if (p->ah)
		ibv_destroy_ah(p->ah);
	p->ah = make_ah(p->qp, id);
}

/* Asks a peer that is not reached through UDP for its queue pair. 0 or an errno. */
static int call(struct rs *s, struct ds_peer *p)
{
	union ds_addr local;
	if (!ds_addr_from(&local, rdma_get_local_addr(p->id), sizeof local))
		return EADDRNOTAVAIL;
	p->qp = ds_find_qp(s, &local);
	if (!p->qp)
		return errno;
	take_way(p, p->id);
	if (!p->ah)
		return EHOSTUNREACH;
	struct ds_call c = {
		.tag = htobe32(DS_TAG),
		.qpn = htobe32(p->qp->id->qp->qp_num),
		.port = *ds_addr_port(&s->ds->local),
	};
	struct rdma_conn_param param = {
		.private_data = &c,
		.private_data_len = sizeof c,
		.qp_num = p->qp->id->qp->qp_num,
	};
	return rdma_connect(p->id, &param) ? errno : 0;
}

/* Goes on with what an event says of a peer. True: nothing is asked any more. */
static bool step(struct rs *s, struct ds_peer *p, const struct rdma_cm_event *e)
{
	switch (e->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		if (rdma_resolve_route(p->id, RESOLVE_TIMEOUT))
			p->error = errno;
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		if (!p->udp) {
			p->error = call(s, p);
			break;
		}
		take_way(p, p->id);
		return true;
	case RDMA_CM_EVENT_ESTABLISHED:
		p->qpn = e->param.ud.qp_num;
		return true;
	default:
		/* Refused by the peer's NIC, where nobody has the port, or not answered. */
		p->error = e->status < 0 ? -e->status : EHOSTUNREACH;
		if (e->event == RDMA_CM_EVENT_UNREACHABLE && e->status > 0)
			p->error = ECONNREFUSED;
	}
	if (p->error && p->udp)
		p->error = 0; /* it goes on through UDP */
	else if (!p->error)
		return false;
	return true;
}

/* Answers a socket that asks for our queue pair. */
static void answer(struct rs *s, const struct rdma_cm_event *e)
{
	const struct ds_call *c = e->param.ud.private_data;
	union ds_addr from, local;
	struct ds_qp *qp = NULL;
	struct ds_peer *p = NULL;
	bool ok = e->param.ud.private_data_len >= sizeof *c && be32toh(c->tag) == DS_TAG &&
		  (be32toh(c->qpn) & QPN_MASK) &&
		  ds_addr_from(&from, rdma_get_peer_addr(e->id), sizeof from) &&
		  ds_addr_from(&local, rdma_get_local_addr(e->id), sizeof local) &&
		  (qp = ds_find_qp(s, &local));
	if (ok) {
		*ds_addr_port(&from) = c->port;
		p = ds_find_peer(s->ds, &from);
		if (!p)
			p = add_peer(s->ds, &from);
	}
	struct rdma_conn_param param = {.qp_num = qp ? qp->id->qp->qp_num : 0};
	if (!p || rdma_accept(e->id, &param)) {
		rdma_reject(e->id, NULL, 0);
		return;
	}
	p->qp = qp;
	p->udp = false;
	p->qpn = be32toh(c->qpn) & QPN_MASK;
	take_way(p, e->id);
	p->settled = p->ah != NULL;
}

/* Looks at what the connection manager has to say. */
void ds_events(struct rs *s)
{
	struct rdma_cm_event *e;
	while (!rdma_get_cm_event(s->ds->channel, &e)) {
		s->changes++;
		if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			struct rdma_cm_id *id = e->id;
			answer(s, e);
			rdma_ack_cm_event(e);
			rdma_destroy_id(id);
			continue;
		}
		struct ds_peer *p = e->id->context; /* NULL: the listener, or a queue pair's */
		bool done = p && step(s, p, e);
		rdma_ack_cm_event(e);
		if (done)
			settle(p);
	}
	if (errno == ENODEV)
		s->error = ENETDOWN; /* the daemon is gone */
}
