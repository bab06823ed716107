// SPDX-License-Identifier: Apache-2.0
/*
 * Datagram sockets: peers, and how the numbers of their queue pairs are discovered.
 */
#include "rsocket/dgram.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QPN_MASK	0xffffff
#define RESOLVE_TIMEOUT 2000 /* ms */
#define MAX_GIDS	256  /* sgid_index of an address vector has 8 bits */

static struct ds_peer *find_peer(struct ds *d, const union ds_addr *addr)
{
	for (struct ds_peer **at = &d->peers; *at; at = &(*at)->next) {
		struct ds_peer *p = *at;
		if (!ds_addr_equal(&p->addr, addr, true))
			continue;
		*at = p->next;
		p->next = d->peers;
		d->peers = p;
		return p;
	}
	return NULL;
}

static void end_resolution(struct ds_peer *p)
{
	if (p->id)
		rdma_destroy_id(p->id);
	p->id = NULL;
	p->resolved = true;
}

void ds_remove_peer(struct ds *d, struct ds_peer *p)
{
	struct ds_peer **at = &d->peers;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	end_resolution(p);
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
		if (p != d->conn_dest)
			oldest = p;
	}
	if (count >= DS_MAX_PEERS)
		ds_remove_peer(d, oldest);
	struct ds_peer *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	p->addr = *addr;
	p->next = d->peers;
	d->peers = p;
	return p;
}

/* Finds the local address of the kernel's route to a peer. */
static bool kernel_route(const union ds_addr *to, union ds_addr *local)
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

/* Returns the queue pair for a peer that can be reached through UDP, or NULL. */
static struct ds_qp *udp_qp_for(struct rs *s, const union ds_addr *to)
{
	union ds_addr local = s->ds->local;
	if (!s->ds->kernel_addr)
		return NULL;
	if (ds_addr_any(&local) && !kernel_route(to, &local))
		return NULL;
	return ds_get_qp(s, &local);
}

/* Starts resolving the address of a peer, from the local address if it is known. 0 or an errno. */
static int start_resolution(struct rs *s, struct ds_peer *p)
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
	p->deadline = rs_now() + DS_RESOLVE_TIMEOUT;
	if (rdma_resolve_addr(p->id, src ? &from.sa : NULL, &p->addr.sa, RESOLVE_TIMEOUT)) {
		int error = errno;
		end_resolution(p);
		return error;
	}
	return 0;
}

int ds_get_peer(struct rs *s, const union ds_addr *addr, struct ds_peer **out)
{
	struct ds *d = s->ds;
	struct ds_peer *p = find_peer(d, addr);
	if (p && p->id && rs_now() >= p->deadline) {
		end_resolution(p);
		p->error = p->udp ? 0 : EHOSTUNREACH;
	}
	if (p && p->error) {
		int error = p->error;
		p->error = 0;
		if (!p->udp) /* the next send starts a new resolution */
			p->resolved = false;
		return error;
	}
	if (!p)
		p = add_peer(d, addr);
	if (!p)
		return ENOMEM;
	if (!p->qp) {
		p->qp = udp_qp_for(s, addr);
		p->udp = p->qp != NULL;
	}
	*out = p;
	if (p->ah || p->id || p->resolved)
		return 0;
	int error = start_resolution(s, p);
	return p->udp ? 0 : error; /* UDP remains */
}

static void fill_udp_header(struct ds_udp_header *h, enum rs_op op, struct ds_peer *p)
{
	size_t n;
	memset(h, 0, sizeof *h);
	h->tag = htobe32(DS_TAG);
	h->op = op;
	h->qpn = htobe32(p->qp->id->qp->qp_num);
	const void *to = ds_addr_bytes(&p->addr, &n);
	memcpy(h->addr, to, n);
	h->version = n == 4 ? 4 : 6;
	h->length = (uint8_t)(offsetof(struct ds_udp_header, addr) + n);
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
 * Learns a peer from a datagram through UDP, and replies with the number of the local queue
 * pair. The datagram names the local address that it was sent to. Returns the queue pair of that
 * address, or NULL.
 */
static struct ds_qp *learn_peer(struct rs *s, const struct ds_udp_header *h,
				const union ds_addr *from)
{
	union ds_addr local;
	size_t n;
	memset(&local, 0, sizeof local);
	local.sa.sa_family = from->sa.sa_family;
	void *to = ds_addr_bytes(&local, &n);
	memcpy(to, h->addr, n);
	if (from->sa.sa_family == AF_INET6)
		local.in6.sin6_scope_id = from->in6.sin6_scope_id;
	if (!ds_addr_any(&s->ds->local) && !ds_addr_equal(&s->ds->local, &local, false))
		return NULL;
	struct ds_qp *qp = ds_get_qp(s, &local);
	if (!qp)
		return NULL;
	struct ds_peer *p = find_peer(s->ds, from);
	if (!p)
		p = add_peer(s->ds, from);
	if (!p)
		return NULL;
	if (!p->qp || !p->ah) { /* otherwise the peer is reachable in another way as well */
		p->qp = qp;
		p->udp = true;
	}
	p->qpn = be32toh(h->qpn) & QPN_MASK;
	send_udp(s->ds, p, RS_OP_CTRL, NULL, 0);
	return qp;
}

static void handle_udp_msg(struct rs *s, const uint8_t *buf, size_t len, const union ds_addr *from)
{
	struct ds_udp_header h;
	size_t min_len =
		offsetof(struct ds_udp_header, addr) + (from->sa.sa_family == AF_INET ? 4 : 16);
	if (len < min_len)
		return;
	memset(&h, 0, sizeof h);
	memcpy(&h, buf, min_len);
	if (be32toh(h.tag) != DS_TAG || h.length < min_len || h.length > len ||
	    h.version != (from->sa.sa_family == AF_INET ? 4 : 6))
		return;
	if (h.op == RS_OP_CTRL) {
		struct ds_peer *p = find_peer(s->ds, from);
		if (p && (be32toh(h.qpn) & QPN_MASK))
			p->qpn = be32toh(h.qpn) & QPN_MASK;
		return;
	}
	if (h.op != RS_OP_DATA || !(be32toh(h.qpn) & QPN_MASK))
		return;
	struct ds_qp *qp = learn_peer(s, &h, from);
	if (!qp || len - h.length > qp->mtu - qp->header.length)
		return; /* too large for a reply of the same size */
	struct ds_msg *m = malloc(sizeof *m + len - h.length);
	if (!m)
		return;
	m->qp = NULL;
	m->from = *from;
	m->len = (uint32_t)(len - h.length);
	memcpy(m->buf, buf + h.length, m->len);
	m->data = m->buf;
	s->ds->udp_msgs++;
	ds_add_msg(s->ds, m);
}

void ds_read_udp(struct rs *s)
{
	uint8_t buf[8192];
	while (s->ds->udp_msgs < DS_MAX_UDP_MSGS) {
		union ds_addr from;
		socklen_t len = sizeof from;
		memset(&from, 0, sizeof from);
		ssize_t n = recvfrom(s->ds->udp, buf, sizeof buf, MSG_DONTWAIT | MSG_TRUNC,
				     &from.sa, &len);
		if (n < 0 && errno == ECONNREFUSED)
			continue; /* an earlier datagram was rejected; UDP is unreliable anyway */
		if (n < 0)
			return;
		s->event_count++;
		if (from.sa.sa_family == s->ds->domain && (size_t)n <= sizeof buf)
			handle_udp_msg(s, buf, (size_t)n, &from);
	}
}

/* Creates an address handle for the path that the connection manager has resolved; NULL: none. */
static struct ibv_ah *create_ah(struct ds_qp *qp, struct rdma_cm_id *id)
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

static void update_ah(struct ds_peer *p, struct rdma_cm_id *id)
{
	if (p->ah)
		ibv_destroy_ah(p->ah);
	p->ah = create_ah(p->qp, id);
}

/* Requests the queue pair number of a peer that cannot be reached through UDP. 0 or an errno. */
static int send_sidr_req(struct rs *s, struct ds_peer *p)
{
	union ds_addr local;
	if (!ds_addr_from(&local, rdma_get_local_addr(p->id), sizeof local))
		return EADDRNOTAVAIL;
	p->qp = ds_get_qp(s, &local);
	if (!p->qp)
		return errno;
	update_ah(p, p->id);
	if (!p->ah)
		return EHOSTUNREACH;
	struct ds_sidr_data c = {
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

/* Advances the resolution of a peer after an event. True: it has ended. */
static bool handle_peer_event(struct rs *s, struct ds_peer *p, const struct rdma_cm_event *e)
{
	switch (e->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		if (rdma_resolve_route(p->id, RESOLVE_TIMEOUT))
			p->error = errno;
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		if (!p->udp) {
			p->error = send_sidr_req(s, p);
			break;
		}
		update_ah(p, p->id);
		return true;
	case RDMA_CM_EVENT_ESTABLISHED:
		p->qpn = e->param.ud.qp_num;
		return true;
	default:
		/* No reply, or a rejection by the peer's NIC, on which no socket has the port. */
		p->error = e->status < 0 ? -e->status : EHOSTUNREACH;
		if (e->event == RDMA_CM_EVENT_UNREACHABLE && e->status > 0)
			p->error = ECONNREFUSED;
	}
	if (p->error && p->udp)
		p->error = 0; /* UDP remains */
	else if (!p->error)
		return false;
	return true;
}

/* Replies to a peer that requests the number of the local queue pair. */
static void handle_sidr_req(struct rs *s, const struct rdma_cm_event *e)
{
	const struct ds_sidr_data *c = e->param.ud.private_data;
	union ds_addr from, local;
	struct ds_qp *qp = NULL;
	struct ds_peer *p = NULL;
	bool ok = e->param.ud.private_data_len >= sizeof *c && be32toh(c->tag) == DS_TAG &&
		  (be32toh(c->qpn) & QPN_MASK) &&
		  ds_addr_from(&from, rdma_get_peer_addr(e->id), sizeof from) &&
		  ds_addr_from(&local, rdma_get_local_addr(e->id), sizeof local) &&
		  (qp = ds_get_qp(s, &local));
	if (ok) {
		*ds_addr_port(&from) = c->port;
		p = find_peer(s->ds, &from);
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
	update_ah(p, e->id);
	p->resolved = p->ah != NULL;
}

void ds_process_cm_events(struct rs *s)
{
	struct rdma_cm_event *e;
	while (!rdma_get_cm_event(s->ds->channel, &e)) {
		s->event_count++;
		if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			struct rdma_cm_id *id = e->id;
			handle_sidr_req(s, e);
			rdma_ack_cm_event(e);
			rdma_destroy_id(id);
			continue;
		}
		struct ds_peer *p = e->id->context; /* NULL: of the listener or a queue pair */
		bool done = p && handle_peer_event(s, p, e);
		rdma_ack_cm_event(e);
		if (done)
			end_resolution(p);
	}
	if (errno == ENODEV)
		s->error = ENETDOWN; /* the daemon is gone */
}
