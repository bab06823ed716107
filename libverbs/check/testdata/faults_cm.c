// SPDX-License-Identifier: Apache-2.0
/*
 * What a program sees of faults of the connection manager. Every verb fails once and is then
 * carried out, from the resolution of an address to the end of the connection. 192.0.2.1 is an
 * address of nic0, 192.0.2.2 of nic1.
 */
#include "faults.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

static struct rdma_event_channel *channel;

static struct sockaddr *at(uint32_t ip, uint16_t port)
{
	static struct sockaddr_in a;
	a = (struct sockaddr_in){
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(ip), .sin_port = port};
	return (struct sockaddr *)&a;
}

#define CLIENT 0xc0000201
#define SERVER 0xc0000202
#define GROUP  0xef010101

/* Gets the next event, which must have this type, and returns its identifier. */
static struct rdma_cm_id *await(enum rdma_cm_event_type want, int status)
{
	struct rdma_cm_event *e;
	REQUIRE(!rdma_get_cm_event(channel, &e));
	struct rdma_cm_id *id = e->id;
	if (e->event != want || e->status != status) {
		fprintf(stderr, "%s (%d) instead of %s (%d)\n", rdma_event_str(e->event), e->status,
			rdma_event_str(want), status);
		exit(2);
	}
	REQUIRE(!rdma_ack_cm_event(e));
	return id;
}

static struct rdma_cm_id *new_id(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;
	REQUIRE(!rdma_create_id(channel, &id, NULL, ps));
	return id;
}

/* Returns an identifier with a route to a port. */
static struct rdma_cm_id *routed(enum rdma_port_space ps, uint16_t port)
{
	struct rdma_cm_id *id = new_id(ps);
	REQUIRE(!rdma_resolve_addr(id, NULL, at(SERVER, port), 1000));
	await(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	REQUIRE(!rdma_resolve_route(id, 1000));
	await(RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	return id;
}

static struct rdma_cm_id *listening(void)
{
	struct rdma_cm_id *id;
	uint8_t tos = 0;
	FAILING("rdma_create_event_channel", FAILS(EXDEV, !rdma_create_event_channel()));
	REQUIRE((channel = rdma_create_event_channel()));
	FAILING("rdma_create_id",
		FAILS(EXDEV, rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == -1));
	id = new_id(RDMA_PS_TCP);
	FAILING("rdma_set_option",
		FAILS(EXDEV, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos,
					     sizeof tos) == -1));
	FAILING("rdma_bind_addr", FAILS(EXDEV, rdma_bind_addr(id, at(SERVER, 0)) == -1));
	REQUIRE(!rdma_bind_addr(id, at(SERVER, 0)));
	FAILING("rdma_listen", FAILS(EXDEV, rdma_listen(id, 4) == -1));
	REQUIRE(!rdma_listen(id, 4));
	return id;
}

/* An identifier goes from one end of its life to the other. */
static void connection(uint16_t port)
{
	struct rdma_conn_param param = {0};
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP), *request_id;
	FAILING("rdma_resolve_addr",
		FAILS(EXDEV, rdma_resolve_addr(id, NULL, at(SERVER, port), 1000) == -1));
	REQUIRE(!rdma_resolve_addr(id, NULL, at(SERVER, port), 1000));
	await(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	FAILING("rdma_resolve_route", FAILS(EXDEV, rdma_resolve_route(id, 1000) == -1));
	REQUIRE(!rdma_resolve_route(id, 1000));
	await(RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	int mask;
	FAILING("rdma_init_qp_attr", FAILS(EXDEV, rdma_init_qp_attr(id, &attr, &mask) == -1));
	FAILING("rdma_connect", FAILS(EXDEV, rdma_connect(id, &param) == -1));
	REQUIRE(!rdma_connect(id, &param));
	request_id = await(RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	FAILING("rdma_reject", FAILS(EXDEV, rdma_reject(request_id, NULL, 0) == -1));
	FAILING("rdma_accept", FAILS(EXDEV, rdma_accept(request_id, &param) == -1));
	REQUIRE(!rdma_accept(request_id, &param));
	CHECK(await(RDMA_CM_EVENT_CONNECT_RESPONSE, 0) == id);
	FAILING("rdma_establish", FAILS(EXDEV, rdma_establish(id) == -1));
	REQUIRE(!rdma_establish(id));
	CHECK(await(RDMA_CM_EVENT_ESTABLISHED, 0) == request_id);
	FAILING("rdma_notify", FAILS(EXDEV, rdma_notify(request_id, IBV_EVENT_COMM_EST) == -1));

	struct rdma_event_channel *other = rdma_create_event_channel();
	REQUIRE(other);
	FAILING("rdma_migrate_id", FAILS(EXDEV, rdma_migrate_id(id, other) == -1));
	CHECK(id->channel == channel);
	FAILING("rdma_destroy_event_channel", rdma_destroy_event_channel(other));

	FAILING("rdma_disconnect", FAILS(EXDEV, rdma_disconnect(id) == -1));
	REQUIRE(!rdma_disconnect(id));
	CHECK(await(RDMA_CM_EVENT_DISCONNECTED, 0) == request_id);
	REQUIRE(!rdma_disconnect(request_id));
	CHECK(await(RDMA_CM_EVENT_DISCONNECTED, 0) == id);
	FAILING("rdma_destroy_id", FAILS(EXDEV, rdma_destroy_id(request_id) == -1));
	RETURNS(0, rdma_destroy_id(request_id));
	RETURNS(0, rdma_destroy_id(id));
}

static void group(void)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_UDP);
	REQUIRE(!rdma_bind_addr(id, at(CLIENT, 0)));
	FAILING("rdma_join_multicast",
		FAILS(EXDEV, rdma_join_multicast(id, at(GROUP, 0), NULL) == -1));
	REQUIRE(!rdma_join_multicast(id, at(GROUP, 0), NULL));
	await(RDMA_CM_EVENT_MULTICAST_JOIN, 0);
	FAILING("rdma_leave_multicast", FAILS(EXDEV, rdma_leave_multicast(id, at(GROUP, 0)) == -1));
	RETURNS(0, rdma_destroy_id(id));
}

/* Connections are rejected for a reason, and peers are unreachable. */
static void refused(uint16_t port)
{
	struct rdma_conn_param param = {0};
	struct rdma_cm_id *id = routed(RDMA_PS_TCP, port);
	request("fail connection insufficient_responder_resources");
	REQUIRE(!rdma_connect(id, &param));
	CHECK(await(RDMA_CM_EVENT_REJECTED, 27) == id);
	RETURNS(0, rdma_destroy_id(id));
	for (int datagrams = 0; datagrams < 2; datagrams++) {
		id = routed(datagrams ? RDMA_PS_UDP : RDMA_PS_TCP, port);
		request("fail connection unreachable");
		REQUIRE(!rdma_connect(id, &param));
		CHECK(await(RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT) == id);
		RETURNS(0, rdma_destroy_id(id));
	}
	request("# no rule");
}

/* The argument is how many seconds the program may take. */
int main(int argc, char **argv)
{
	limit_time(argc > 1 ? atoi(argv[1]) : 50);
	struct rdma_cm_id *listener = listening();
	uint16_t port = rdma_get_src_port(listener);
	connection(port);
	group();
	refused(port);
	connection(port);
	RETURNS(0, rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
	return failures > 0;
}
