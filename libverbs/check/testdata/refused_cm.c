// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon refuses each kind of request once while an identifier gets its queues. A call that
 * failed leaves neither queues nor pointers to them behind, and does not touch the queues of
 * earlier calls.
 */
#include "setup.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum {
	MAX_CALLS = 20
};

static struct rdma_cm_id *bound_id(int port_space)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = port_space}, *res;
	struct rdma_cm_id *id;
	REQUIRE(!rdma_getaddrinfo("192.0.2.1", "7", &hints, &res));
	REQUIRE(!rdma_create_ep(&id, res, NULL, NULL));
	rdma_freeaddrinfo(res);
	return id;
}

/* The daemon does not destroy a queue pair that is in a multicast group. */
static void refused_destruction(void)
{
	struct rdma_cm_id *id = bound_id(RDMA_PS_UDP);
	struct ibv_qp_init_attr attr = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_UD};
	union ibv_gid group = {.raw = {0xff, 0x0e, [15] = 1}};
	REQUIRE(!rdma_create_qp(id, NULL, &attr));
	REQUIRE(!ibv_attach_mcast(id->qp, &group, 0));
	struct ibv_qp *qp = id->qp;
	errno = 0;
	rdma_destroy_qp(id);
	int error = errno;
	CHECK(error == EBUSY && id->qp == qp && id->send_cq && id->recv_cq);
	RETURNS(0, ibv_detach_mcast(qp, &group, 0));
	rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq);
	rdma_destroy_ep(id);
}

int main(void)
{
	limit_time(50);
	struct rdma_cm_id *id = bound_id(RDMA_PS_TCP);
	struct ibv_qp_init_attr_ex attr = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	int calls = 0;
	while (rdma_create_qp_ex(id, &attr)) {
		int error = errno;
		REQUIRE(error == EOPNOTSUPP && ++calls < MAX_CALLS);
		CHECK(!id->qp && !id->send_cq && !id->recv_cq && !id->send_cq_channel);
		CHECK(!attr.send_cq && !attr.recv_cq && !attr.comp_mask);
	}
	CHECK(calls == 5); /* channel, completion queue, queue pair, attributes, state */

	struct ibv_srq_init_attr_ex srq = {.attr = {.max_wr = 4, .max_sge = 1}};
	FAILS(EOPNOTSUPP, rdma_create_srq_ex(id, &srq) == -1);
	CHECK(id->send_cq && id->recv_cq && id->send_cq_channel && !srq.comp_mask);
	RETURNS(0, ibv_req_notify_cq(id->send_cq, 0));
	rdma_destroy_qp(id);
	CHECK(!id->send_cq && !id->recv_cq);
	rdma_destroy_ep(id);
	refused_destruction();
	return failures != 0;
}
