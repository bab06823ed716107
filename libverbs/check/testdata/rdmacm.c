// SPDX-License-Identifier: Apache-2.0
/*
 * The connection manager: errors of invalid calls, and the events that report the outcome of
 * valid ones. 192.0.2.1 and 2001:db8::1 are addresses of nic0, 192.0.2.2 and 2001:db8::2 of
 * nic1.
 */
#include "net.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

static struct rdma_event_channel *channel;

static struct sockaddr_storage at(const char *ip, int port)
{
	struct sockaddr_storage s = {0};
	struct sockaddr_in *v4 = (struct sockaddr_in *)&s;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&s;
	if (inet_pton(AF_INET, ip, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
	} else {
		REQUIRE(inet_pton(AF_INET6, ip, &v6->sin6_addr) == 1);
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
	}
	return s;
}

#define AT(ip, port) ((struct sockaddr *)&(struct sockaddr_storage[]){at(ip, port)})

static struct rdma_cm_id *new_id(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;
	REQUIRE(!rdma_create_id(channel, &id, NULL, ps));
	return id;
}

/* Gets the next event, which must have this type. */
static struct rdma_cm_event *event(enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e;
	REQUIRE(!rdma_get_cm_event(channel, &e));
	if (e->event != want) {
		fprintf(stderr, "%s (%d) instead of %s\n", rdma_event_str(e->event), e->status,
			rdma_event_str(want));
		exit(2);
	}
	return e;
}

static int status_of(enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e = event(want);
	int status = e->status;
	RETURNS(0, rdma_ack_cm_event(e));
	return status;
}

static void addresses(void)
{
	struct rdma_cm_id *a = new_id(RDMA_PS_TCP), *b = new_id(RDMA_PS_TCP);
	struct rdma_cm_id *none;
	FAILS(EINVAL, rdma_create_id(channel, &none, NULL, 0x9999) == -1);
	FAILS(EINVAL, rdma_bind_addr(a, NULL) == -1);
	struct sockaddr_storage unix_addr = {.ss_family = AF_UNIX};
	FAILS(EINVAL, rdma_bind_addr(a, (struct sockaddr *)&unix_addr) == -1);
	FAILS(EADDRNOTAVAIL, rdma_bind_addr(a, AT("203.0.113.9", 0)) == -1);
	FAILS(EADDRNOTAVAIL, rdma_bind_addr(a, AT("2001:db8::9", 0)) == -1);
	CHECK(!a->verbs);
	CHECK(!rdma_bind_addr(a, AT("192.0.2.1", 7171)));
	CHECK(a->verbs && a->pd && a->port_num == 1 && rdma_get_src_port(a) == htons(7171));
	FAILS(EINVAL, rdma_bind_addr(a, AT("192.0.2.1", 7171)) == -1);
	FAILS(EADDRINUSE, rdma_bind_addr(b, AT("192.0.2.1", 7171)) == -1);
	FAILS(EADDRINUSE, rdma_bind_addr(b, AT("0.0.0.0", 7171)) == -1);
	CHECK(!rdma_bind_addr(b, AT("192.0.2.2", 7171)));
	RETURNS(0, rdma_destroy_id(b));
	b = new_id(RDMA_PS_UDP); /* another port space */
	CHECK(!rdma_bind_addr(b, AT("192.0.2.1", 7171)));
	RETURNS(0, rdma_destroy_id(b));
	b = new_id(RDMA_PS_TCP);
	CHECK(!rdma_bind_addr(b, AT("::", 0)) && rdma_get_src_port(b) && !b->verbs);
	CHECK(!rdma_listen(b, 0));
	FAILS(EINVAL, rdma_listen(b, 0) == -1);
	RETURNS(0, rdma_destroy_id(b));
	RETURNS(0, rdma_destroy_id(a));
}

static void options(void)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	uint8_t tos = 3, timeout = 32;
	int on = 1;
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos));
	FAILS(EINVAL,
	      rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &on, sizeof on) == -1);
	FAILS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1) == -1);
	FAILS(EINVAL,
	      rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1) == -1);
	FAILS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &tos, 1) == -1);
	FAILS(ENOSYS, rdma_set_option(id, RDMA_OPTION_ID, 99, &on, sizeof on) == -1);
	FAILS(ENOSYS, rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &on, 4) == -1);
	FAILS(ENOSYS, rdma_set_option(id, 7, 0, &on, sizeof on) == -1);
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	CHECK(!rdma_bind_addr(id, AT("192.0.2.1", 7172)));
	FAILS(EINVAL,
	      rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on) == -1);
	struct rdma_cm_id *same = new_id(RDMA_PS_TCP);
	CHECK(!rdma_set_option(same, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	CHECK(!rdma_bind_addr(same, AT("192.0.2.1", 7172)));
	RETURNS(0, rdma_destroy_id(same));
	RETURNS(0, rdma_destroy_id(id));
}

/* Calls in the wrong order. */
static void wrong_order(void)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	struct rdma_conn_param param = {.qp_num = 0};
	struct rdma_cm_event *none;
	struct rdma_cm_id *request;
	int mask;
	FAILS(EINVAL, rdma_get_cm_event(NULL, &none) == -1);
	FAILS(EINVAL, rdma_get_cm_event(channel, NULL) == -1);
	FAILS(EINVAL, rdma_ack_cm_event(NULL) == -1);
	FAILS(EINVAL, rdma_resolve_route(id, 100) == -1);
	FAILS(EINVAL, rdma_connect(id, &param) == -1);
	FAILS(EINVAL, rdma_accept(id, &param) == -1);
	FAILS(EINVAL, rdma_reject(id, NULL, 0) == -1);
	FAILS(EINVAL, rdma_disconnect(id) == -1);
	FAILS(EINVAL, rdma_establish(id) == -1);
	FAILS(EINVAL, rdma_notify(id, IBV_EVENT_COMM_EST) == -1);
	FAILS(EINVAL, rdma_notify(id, IBV_EVENT_PORT_ERR) == -1);
	FAILS(EINVAL, rdma_create_qp(id, NULL, &init) == -1);
	FAILS(EINVAL, rdma_init_qp_attr(id, &attr, &mask) == -1);
	FAILS(EINVAL, rdma_get_request(id, &request) == -1);
	FAILS(EINVAL, rdma_join_multicast(id, AT("239.1.1.1", 0), NULL) == -1);
	FAILS(EADDRNOTAVAIL, rdma_leave_multicast(id, AT("239.1.1.1", 0)) == -1);
	FAILS(EINVAL, rdma_resolve_addr(id, NULL, NULL, 100) == -1);
	FAILS(EINVAL, rdma_resolve_addr(id, AT("192.0.2.1", 0), AT("2001:db8::2", 1), 100) == -1);
	RETURNS(0, rdma_destroy_id(id));

	id = new_id(RDMA_PS_TCP);
	REQUIRE(!rdma_resolve_addr(id, NULL, AT("192.0.2.2", 7999), 1000));
	FAILS(EINVAL, rdma_resolve_addr(id, NULL, AT("192.0.2.2", 7999), 1000) == -1);
	CHECK(status_of(RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
	FAILS(EINVAL, rdma_init_qp_attr(id, &attr, &mask) == -1);
	CHECK(!rdma_create_qp(id, NULL, &init) && id->qp && id->send_cq && id->recv_cq);
	FAILS(EINVAL, rdma_create_qp(id, NULL, &init) == -1);
	REQUIRE(!rdma_resolve_route(id, 1000));
	CHECK(status_of(RDMA_CM_EVENT_ROUTE_RESOLVED) == 0 && id->route.num_paths == 1);
	char data[200] = "";
	param.private_data = data;
	param.private_data_len = 57; /* the maximum is 56 */
	FAILS(EINVAL, rdma_connect(id, &param) == -1);
	param.private_data_len = 56;
	CHECK(!rdma_connect(id, &param));
	CHECK(status_of(RDMA_CM_EVENT_REJECTED) == 8); /* invalid service ID: no listener */
	rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq_channel);
	RETURNS(0, rdma_destroy_id(id));

	id = new_id(RDMA_PS_UDP);
	REQUIRE(!rdma_resolve_addr(id, NULL, AT("2001:db8::2", 7999), 1000));
	CHECK(status_of(RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
	REQUIRE(!rdma_resolve_route(id, 1000));
	CHECK(status_of(RDMA_CM_EVENT_ROUTE_RESOLVED) == 0);
	REQUIRE(!rdma_connect(id, &(struct rdma_conn_param){0}));
	CHECK(status_of(RDMA_CM_EVENT_UNREACHABLE) == 1);
	RETURNS(0, rdma_destroy_id(id));
}

static struct rdma_cm_id *listener(int port)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	REQUIRE(!rdma_bind_addr(id, AT("192.0.2.2", port)) && !rdma_listen(id, 4));
	return id;
}

static struct rdma_cm_id *connect_to(int port, const char *data)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
	struct rdma_conn_param p = {.private_data = data,
				    .private_data_len = strlen(data),
				    .responder_resources = 1,
				    .initiator_depth = 1,
				    .retry_count = 255,
				    .rnr_retry_count = 255};
	REQUIRE(!rdma_resolve_addr(id, AT("192.0.2.1", 0), AT("192.0.2.2", port), 1000));
	CHECK(status_of(RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
	REQUIRE(!rdma_resolve_route(id, 1000));
	CHECK(status_of(RDMA_CM_EVENT_ROUTE_RESOLVED) == 0);
	REQUIRE(!rdma_create_qp(id, NULL, &init) && !rdma_connect(id, &p));
	return id;
}

static void rejected(void)
{
	struct rdma_cm_id *l = listener(7173), *id = connect_to(7173, "request");
	struct rdma_cm_event *e = event(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *request = e->id;
	char too_long[149] = "";
	CHECK(e->listen_id == l && request != l && e->param.conn.retry_count == 7);
	CHECK(e->param.conn.private_data_len == 56 &&
	      !strcmp(e->param.conn.private_data, "request"));
	rdma_ack_cm_event(e);
	FAILS(EINVAL, rdma_reject(request, too_long, sizeof too_long) == -1);
	CHECK(!rdma_reject(request, "no", 2));
	RETURNS(0, rdma_destroy_id(request));
	e = event(RDMA_CM_EVENT_REJECTED);
	CHECK(e->id == id && e->status == 28);
	CHECK(e->param.conn.private_data_len == 148 &&
	      !memcmp(e->param.conn.private_data, "no", 3));
	rdma_ack_cm_event(e);
	rdma_destroy_qp(id);
	RETURNS(0, rdma_destroy_id(id));
	RETURNS(0, rdma_destroy_id(l));
}

/* A connection from beginning to end. Its identifiers are migrated to another channel. */
static void connected(void)
{
	struct rdma_cm_id *l = listener(7174), *id = connect_to(7174, "");
	struct rdma_cm_event *e = event(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = e->id;
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
	rdma_ack_cm_event(e);
	REQUIRE(!rdma_create_qp(server, NULL, &init));
	CHECK(!rdma_accept(
		server, &(struct rdma_conn_param){.private_data = "yes", .private_data_len = 3}));
	for (int i = 0; i < 2; i++) { /* in either order */
		e = event(RDMA_CM_EVENT_ESTABLISHED);
		if (e->id == id)
			CHECK(!memcmp(e->param.conn.private_data, "yes", 4));
		rdma_ack_cm_event(e);
	}
	CHECK(id->qp->state == IBV_QPS_RTS && server->qp->state == IBV_QPS_RTS);
	FAILS(EINVAL, rdma_establish(id) == -1);
	RETURNS(0, rdma_notify(server, IBV_EVENT_COMM_EST));

	struct rdma_event_channel *first = channel;
	REQUIRE((channel = rdma_create_event_channel()));
	CHECK(!rdma_migrate_id(id, channel) && !rdma_migrate_id(server, channel));
	CHECK(id->channel == channel && server->channel == channel);
	CHECK(!rdma_disconnect(id));
	e = event(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(e->id == server);
	rdma_ack_cm_event(e);
	CHECK(!rdma_disconnect(server)); /* sends the DREP */
	CHECK(status_of(RDMA_CM_EVENT_DISCONNECTED) == 0);
	rdma_destroy_qp(id);
	rdma_destroy_qp(server);
	RETURNS(0, rdma_destroy_id(server));
	RETURNS(0, rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	channel = first;
	RETURNS(0, rdma_destroy_id(l));
}

static void *serve(void *arg)
{
	struct rdma_cm_id *l = arg, *id;
	struct rdma_conn_param yes = {
		.responder_resources = 1, .private_data = "no", .private_data_len = 2};
	REQUIRE(!rdma_get_request(l, &id));
	CHECK(id->qp && !strcmp(id->event->param.conn.private_data, "1"));
	CHECK(!rdma_reject(id, "no", 2));
	rdma_destroy_ep(id);
	REQUIRE(!rdma_get_request(l, &id));
	CHECK(!rdma_accept(id, &yes));
	CHECK(!rdma_disconnect(id));
	rdma_destroy_ep(id);
	return NULL;
}

/* Endpoints, whose calls are synchronous. */
static void endpoints(void)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE | RAI_NUMERICHOST,
				      .ai_port_space = RDMA_PS_TCP},
			     *ai;
	struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}, .sq_sig_all = 1};
	struct rdma_cm_id *l, *id;
	REQUIRE(!rdma_getaddrinfo("192.0.2.2", "7175", &hints, &ai));
	CHECK(ai->ai_src_addr && !ai->ai_dst_addr && ai->ai_qp_type == IBV_QPT_RC);
	REQUIRE(!rdma_create_ep(&l, ai, NULL, &init));
	FAILS(EADDRINUSE, rdma_create_ep(&id, ai, NULL, &init) == -1);
	rdma_freeaddrinfo(ai);
	REQUIRE(!rdma_listen(l, 4));
	pthread_t server;
	REQUIRE(!pthread_create(&server, NULL, serve, l));

	hints.ai_flags = RAI_NUMERICHOST;
	REQUIRE(!rdma_getaddrinfo("192.0.2.2", "7175", &hints, &ai));
	CHECK(!ai->ai_src_addr && ai->ai_dst_addr && !ai->ai_next);
	struct rdma_conn_param p = {
		.private_data = "1", .private_data_len = 1, .initiator_depth = 1};
	REQUIRE(!rdma_create_ep(&id, ai, NULL, &init));
	CHECK(id->qp && id->verbs && id->pd);
	FAILS(ECONNREFUSED, rdma_connect(id, &p) == -1);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_REJECTED);
	rdma_destroy_ep(id);
	REQUIRE(!rdma_create_ep(&id, ai, NULL, &init));
	CHECK(!rdma_connect(id, &p) && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!rdma_disconnect(id));
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(ai);
	REQUIRE(!pthread_join(server, NULL));
	rdma_destroy_ep(l);
}

static void name_resolution(void)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_NUMERICHOST}, *ai;
	CHECK(rdma_getaddrinfo("localhost", "1", &hints, &ai) == EAI_NONAME);
	hints.ai_family = AF_INET6;
	CHECK(rdma_getaddrinfo("192.0.2.1", "1", &hints, &ai) != 0);
	REQUIRE(!rdma_getaddrinfo("fe80::1%lo", "1", &hints, &ai));
	CHECK(((struct sockaddr_in6 *)ai->ai_dst_addr)->sin6_scope_id == 1);
	rdma_freeaddrinfo(ai);
	hints = (struct rdma_addrinfo){.ai_port_space = RDMA_PS_UDP};
	REQUIRE(!rdma_getaddrinfo("2001:db8::1", "1", &hints, &ai));
	CHECK(ai->ai_qp_type == IBV_QPT_UD && ai->ai_port_space == RDMA_PS_UDP);
	rdma_freeaddrinfo(ai);
	FAILS(EINVAL, rdma_getaddrinfo(NULL, NULL, NULL, &ai) == -1);
	struct sockaddr_storage dst = at("192.0.2.2", 5);
	hints = (struct rdma_addrinfo){.ai_dst_len = sizeof(struct sockaddr_in),
				       .ai_dst_addr = (struct sockaddr *)&dst};
	REQUIRE(!rdma_getaddrinfo(NULL, NULL, &hints, &ai));
	CHECK(ai->ai_dst_len == hints.ai_dst_len &&
	      !memcmp(ai->ai_dst_addr, &dst, hints.ai_dst_len));
	rdma_freeaddrinfo(ai);
	int n;
	struct ibv_context **devices = rdma_get_devices(&n);
	CHECK(devices && n == 2 && !devices[2] &&
	      !strcmp(ibv_get_device_name(devices[1]->device), "nic1"));
	rdma_free_devices(devices);
}

/* A channel that the program polls, with a non-blocking descriptor. */
static void nonblocking(void)
{
	struct rdma_cm_event *e;
	struct pollfd p = {.fd = channel->fd, .events = POLLIN};
	CHECK(poll(&p, 1, 0) == 0);
	REQUIRE(!fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	FAILS(EAGAIN, rdma_get_cm_event(channel, &e) == -1);
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	REQUIRE(!rdma_resolve_addr(id, NULL, AT("192.0.2.2", 7999), 1000));
	CHECK(poll(&p, 1, 20000) == 1 && p.revents == POLLIN);
	CHECK(status_of(RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
	FAILS(EAGAIN, rdma_get_cm_event(channel, &e) == -1);
	REQUIRE(!fcntl(channel->fd, F_SETFL, 0));
	RETURNS(0, rdma_destroy_id(id));
}

static bool readable(const struct rdma_event_channel *ch, int ms)
{
	return poll(&(struct pollfd){.fd = ch->fd, .events = POLLIN}, 1, ms) == 1;
}

/* An identifier with an event that was not fetched. */
static struct rdma_cm_id *resolved_id(void)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	REQUIRE(!rdma_resolve_addr(id, NULL, AT("192.0.2.2", 7999), 1000));
	CHECK(readable(channel, 20000));
	return id;
}

/* An identifier takes its events with it, and no others, when it is destroyed or migrated. */
static void removed_events(void)
{
	struct rdma_cm_id *id[3];
	struct rdma_cm_event *e;
	RETURNS(0, rdma_destroy_id(resolved_id()));
	CHECK(!readable(channel, 0));

	for (int i = 0; i < 3; i++) {
		id[i] = resolved_id();
		while (rdma_resolve_route(id[i], 1000)) /* until the address is resolved */
			usleep(1000);
	}
	struct rdma_event_channel *first = channel, *second = rdma_create_event_channel();
	REQUIRE(second);
	RETURNS(0, rdma_destroy_id(id[0]));
	RETURNS(0, rdma_migrate_id(id[2], second));
	for (int i = 0; i < 2; i++) {
		REQUIRE(!rdma_get_cm_event(first, &e));
		CHECK(e->id == id[1]);
		RETURNS(0, rdma_ack_cm_event(e));
	}
	CHECK(!readable(first, 0));
	for (int i = 0; i < 2; i++) {
		REQUIRE(!rdma_get_cm_event(second, &e));
		CHECK(e->id == id[2]);
		RETURNS(0, rdma_ack_cm_event(e));
	}
	CHECK(!readable(second, 0));
	RETURNS(0, rdma_destroy_id(id[1]));
	RETURNS(0, rdma_destroy_id(id[2]));
	rdma_destroy_event_channel(second);

	/* A listener takes its connection requests with it. */
	struct rdma_cm_id *l = listener(7176), *client = connect_to(7176, "");
	CHECK(readable(channel, 20000));
	RETURNS(0, rdma_destroy_id(l));
	rdma_destroy_qp(client);
	RETURNS(0, rdma_destroy_id(client));
	CHECK(!readable(channel, 0));
}

static atomic_bool acknowledged;

static void *acknowledge(void *event)
{
	usleep(50000); /* most likely the other thread waits by then */
	acknowledged = true;
	RETURNS(0, rdma_ack_cm_event(event));
	return NULL;
}

/* Migration waits until the events of the old channel are acknowledged. */
static void migration_waits(void)
{
	struct rdma_cm_id *id = resolved_id();
	struct rdma_event_channel *second = rdma_create_event_channel();
	pthread_t thread;
	REQUIRE(second &&
		!pthread_create(&thread, NULL, acknowledge, event(RDMA_CM_EVENT_ADDR_RESOLVED)));
	RETURNS(0, rdma_migrate_id(id, second));
	CHECK(acknowledged);
	REQUIRE(!pthread_join(thread, NULL));
	RETURNS(0, rdma_destroy_id(id));
	rdma_destroy_event_channel(second);
}

static struct rdma_cm_id *passive_endpoint(enum rdma_port_space ps, const char *port,
					   struct ibv_pd *pd)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE | RAI_NUMERICHOST,
				      .ai_port_space = ps},
			     *ai;
	struct rdma_cm_id *l;
	REQUIRE(!rdma_getaddrinfo("192.0.2.2", port, &hints, &ai));
	REQUIRE(!rdma_create_ep(&l, ai, pd, NULL));
	rdma_freeaddrinfo(ai);
	return l;
}

/* A listening endpoint has the default protection domain, or the program's. */
static void endpoint_domain(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	char buf[64];
	struct rdma_cm_id *l = passive_endpoint(RDMA_PS_TCP, "7177", NULL);
	CHECK(l->pd);
	CHECK(l->pd && !rdma_create_srq(l, NULL, &init) && l->srq);
	struct ibv_mr *mr = l->pd ? rdma_reg_msgs(l, buf, sizeof buf) : NULL;
	CHECK(mr && !rdma_dereg_mr(mr));
	struct ibv_pd *pd = ibv_alloc_pd(l->verbs);
	REQUIRE(pd);
	struct rdma_cm_id *other = passive_endpoint(RDMA_PS_TCP, "7178", pd);
	CHECK(other->pd == pd);
	rdma_destroy_ep(other);
	RETURNS(0, ibv_dealloc_pd(pd));
	rdma_destroy_ep(l);
}

static void *connect_datagrams(void *arg)
{
	struct rdma_cm_id *id = arg;
	CHECK(!rdma_connect(id, &(struct rdma_conn_param){0}));
	return NULL;
}

/* An accepted request of a datagram service is acknowledged: no event follows that would do it. */
static void datagram_endpoints(void)
{
	struct rdma_cm_id *l = passive_endpoint(RDMA_PS_UDP, "7179", NULL), *id, *server;
	pthread_t thread;
	REQUIRE(!rdma_listen(l, 4));
	REQUIRE(!rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP));
	REQUIRE(!rdma_resolve_addr(id, NULL, AT("192.0.2.2", 7179), 1000));
	REQUIRE(!rdma_resolve_route(id, 1000));
	REQUIRE(!pthread_create(&thread, NULL, connect_datagrams, id));
	REQUIRE(!rdma_get_request(l, &server));
	CHECK(server->event);
	CHECK(!rdma_accept(server, &(struct rdma_conn_param){0}));
	REQUIRE(!pthread_join(thread, NULL));
	CHECK(!server->event);
	rdma_destroy_ep(l); /* waits for the events that its requests hold */
	rdma_destroy_ep(server);
	rdma_destroy_ep(id);
}

/* The data that rdma_create_ep is given precede those of rdma_connect. */
static void endpoint_data(void)
{
	static char given[] = "given ";
	struct rdma_conn_param p = {.private_data = "later", .private_data_len = 6};
	struct rdma_cm_id *l = listener(7182), *id = endpoint_with_data("7182", given);
	REQUIRE(!rdma_migrate_id(id, channel));
	RETURNS(0, rdma_connect(id, &p));
	struct rdma_cm_event *e = event(RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(!strcmp(e->param.conn.private_data, "given later"));
	struct rdma_cm_id *server = e->id;
	rdma_ack_cm_event(e);
	RETURNS(0, rdma_destroy_id(server));
	rdma_destroy_qp(id);
	RETURNS(0, rdma_destroy_id(id));
	RETURNS(0, rdma_destroy_id(l));
}

static int option_of(int fd, int level, int name)
{
	int v = -1;
	socklen_t len = sizeof v;
	RETURNS(0, rgetsockopt(fd, level, name, &v, &len));
	return v;
}

/* An option that is refused keeps its value. */
static void socket_options(void)
{
	static const int names[] = {TCP_KEEPIDLE, TCP_KEEPCNT, TCP_KEEPINTVL};
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), zero = 0, five = 5;
	REQUIRE(fd >= 0);
	for (int i = 0; i < 3; i++) {
		RETURNS(0, rsetsockopt(fd, IPPROTO_TCP, names[i], &five, sizeof five));
		FAILS(EINVAL, rsetsockopt(fd, IPPROTO_TCP, names[i], &zero, sizeof zero) == -1);
		CHECK(option_of(fd, IPPROTO_TCP, names[i]) == 5);
	}
	REQUIRE(!rbind(fd, AT("192.0.2.1", 7181), sizeof(struct sockaddr_in)));
	FAILS(EINVAL, rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &five, sizeof five) == -1);
	CHECK(option_of(fd, SOL_SOCKET, SO_REUSEADDR) == 0);
	RETURNS(0, rclose(fd));
}

int main(void)
{
	REQUIRE((channel = rdma_create_event_channel()));
	addresses();
	options();
	wrong_order();
	rejected();
	connected();
	endpoints();
	name_resolution();
	nonblocking();
	removed_events();
	migration_waits();
	endpoint_domain();
	endpoint_data();
	datagram_endpoints();
	socket_options();
	rdma_destroy_event_channel(channel);
	return failures != 0;
}
