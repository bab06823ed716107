// SPDX-License-Identifier: Apache-2.0
/*
 * A NIC with two ports of 800 Gb/s. Port 2 has no cable. "ready" asks the test for its events.
 */
#include "setup.h"

#include <stddef.h>

int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed);

static void test_attributes(struct setup *s)
{
	struct ibv_device_attr d;
	struct ibv_port_attr p;
	RETURNS(0, ibv_query_device(s->context, &d));
	CHECK(d.phys_port_cnt == 2);
	RETURNS(0, ibv_query_port(s->context, 1, &p));
	CHECK(p.state == IBV_PORT_ACTIVE && p.phys_state == 5);
	RETURNS(0, ibv_query_port(s->context, 2, &p));
	CHECK(p.state == IBV_PORT_DOWN && p.phys_state == 3 && p.gid_tbl_len > 0);
	RETURNS(EINVAL, ibv_query_port(s->context, 3, &p));
	RETURNS(EINVAL, ibv_query_port(s->context, 0, &p));
}

/* XDR does not fit into active_speed. Newer programs pass a longer struct. */
static void test_speed(struct setup *s)
{
	struct {
		struct ibv_port_attr attr;
		char more[64];
	} p;
	uint32_t ex;
	for (uint8_t port = 1; port <= 2; port++) {
		memset(&p, 0xff, sizeof p);
		RETURNS(0, verbs_get_ctx(s->context)->query_port(s->context, port, &p.attr, 56));
		memcpy(&ex, (char *)&p + 52, sizeof ex);
		CHECK(p.attr.active_speed == 128 && ex == 256 && p.attr.active_width == 2);
		CHECK(((unsigned char *)&p)[56] == 0xff);
		uint64_t speed = 0;
		RETURNS(0, ibv_query_port_speed(s->context, port, &speed));
		CHECK(speed == 8000);
	}
	uint64_t speed = 1;
	RETURNS(EINVAL, ibv_query_port_speed(s->context, 3, &speed));
	RETURNS(EINVAL, ibv_query_port_speed(s->context, 257, &speed));
	CHECK(speed == 1);
}

static void test_tables(struct setup *s)
{
	union ibv_gid gid, zero = {0};
	struct ibv_gid_entry e;
	__be16 key;
	memset(&gid, 1, sizeof gid);
	CHECK(!ibv_query_gid(s->context, 2, 1, &gid) && !memcmp(&gid, &zero, sizeof gid));
	FAILS(EINVAL, ibv_query_gid(s->context, 2, 100000, &gid) == -1);
	FAILS(EINVAL, ibv_query_gid(s->context, 3, 1, &gid) == -1);
	RETURNS(ENODATA, ibv_query_gid_ex(s->context, 2, 1, &e, 0));
	RETURNS(EINVAL, ibv_query_gid_ex(s->context, 2, 100000, &e, 0));
	RETURNS(EINVAL, ibv_query_gid_ex(s->context, 3, 1, &e, 0));
	CHECK(!ibv_query_pkey(s->context, 2, 0, &key) && key == 0xffff);
	FAILS(EINVAL, ibv_query_pkey(s->context, 3, 0, &key) == -1);
}

static void file_is(const char *name, const char *want)
{
	char path[128], line[64] = "";
	snprintf(path, sizeof path, "/sys/class/infiniband/nic0/ports/%s", name);
	FILE *f = fopen(path, "r");
	CHECK(f && fgets(line, sizeof line, f) && !strcmp(line, want));
	if (f)
		fclose(f);
}

/* Without a GID there is no connection, and the GIDs of port 1 are not those of port 2. */
static void test_queue_pair(struct setup *s)
{
	struct ibv_qp *qp = create_qp(s);
	struct ibv_qp_attr a = connected_attr(qp->qp_num);
	REQUIRE(!ibv_query_gid(s->context, 1, 1, &a.ah_attr.grh.dgid));
	a.port_num = 3;
	RETURNS(EINVAL, ibv_modify_qp(qp, &a, INIT_MASK));
	a.port_num = 2;
	RETURNS(0, ibv_modify_qp(qp, &a, INIT_MASK));
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr now;
	RETURNS(0, ibv_query_qp(qp, &now, IBV_QP_PORT, &init));
	CHECK(now.port_num == 2);
	a.qp_state = IBV_QPS_RTR;
	RETURNS(EINVAL, ibv_modify_qp(qp, &a, RTR_MASK));
	a.ah_attr.port_num = 2;
	RETURNS(EINVAL, ibv_modify_qp(qp, &a, RTR_MASK));
	RETURNS(0, ibv_destroy_qp(qp));
}

static void test_datagram(struct setup *s)
{
	struct ibv_qp_init_attr init = rc_attr(s);
	init.qp_type = IBV_QPT_UD;
	struct ibv_qp *qp = ibv_create_qp(s->pd, &init);
	REQUIRE(qp);
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 2, .qkey = 1};
	RETURNS(0, ibv_modify_qp(qp, &a,
				 IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	a.qp_state = IBV_QPS_RTR;
	RETURNS(0, ibv_modify_qp(qp, &a, IBV_QP_STATE));
	a.qp_state = IBV_QPS_RTS;
	RETURNS(0, ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN));

	struct ibv_ah_attr to = {
		.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}};
	REQUIRE(!ibv_query_gid(s->context, 1, 1, &to.grh.dgid));
	struct ibv_ah *ah = ibv_create_ah(s->pd, &to);
	REQUIRE(ah);
	to.port_num = 2;
	FAILS(EINVAL, !ibv_create_ah(s->pd, &to));
	struct ibv_send_wr *bad,
		wr = {.wr_id = 7,
		      .opcode = IBV_WR_SEND,
		      .wr.ud = {.ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = 1}};
	RETURNS(0, ibv_post_send(qp, &wr, &bad));
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(s->cq, 1, &wc)))
		;
	CHECK(n == 1 && wc.wr_id == 7 && wc.status == IBV_WC_LOC_QP_OP_ERR);
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_ah(ah));
}

static void wants_event(struct setup *s, enum ibv_event_type type)
{
	struct ibv_async_event e;
	REQUIRE(!ibv_get_async_event(s->context, &e));
	CHECK(e.event_type == type && e.element.port_num == 2);
	ibv_ack_async_event(&e);
}

int main(void)
{
	struct setup s;
	setup_open(&s);
	test_attributes(&s);
	test_speed(&s);
	test_tables(&s);
	file_is("1/state", "4: ACTIVE\n");
	file_is("2/state", "1: DOWN\n");
	file_is("2/rate", "800 Gb/sec (4X XDR)\n");
	file_is("2/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n");
	file_is("2/pkeys/0", "0xffff\n");
	test_queue_pair(&s);
	test_datagram(&s);
	puts("ready");
	fflush(stdout);
	wants_event(&s, IBV_EVENT_PORT_ACTIVE);
	wants_event(&s, IBV_EVENT_PORT_ERR);
	wants_event(&s, IBV_EVENT_CLIENT_REREGISTER);
	wants_event(&s, IBV_EVENT_PORT_ACTIVE);
	struct ibv_port_attr p;
	RETURNS(0, ibv_query_port(s.context, 2, &p));
	CHECK(p.state == IBV_PORT_ACTIVE);
	setup_close(&s);
	return failures != 0;
}
