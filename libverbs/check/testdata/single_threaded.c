// SPDX-License-Identifier: Apache-2.0
/*
 * A thread waits for the events of a channel while another one, the only user of a single-threaded
 * completion queue of that channel, resizes it.
 */
#include "setup.h"

#include <pthread.h>

enum {
	ROUNDS = 50
};

static void *take_events(void *channel)
{
	struct ibv_cq *cq;
	void *context;
	for (int i = 0; i < ROUNDS; i++) {
		REQUIRE(!ibv_get_cq_event(channel, &cq, &context));
		ibv_ack_cq_events(cq, 1);
	}
	return NULL;
}

int main(void)
{
	struct setup s;
	struct ibv_wc wc;
	pthread_t thread;
	setup_open(&s);
	struct ibv_cq_init_attr_ex attr = {.cqe = 16,
					   .channel = s.channel,
					   .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
					   .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED};
	struct ibv_cq *single = ibv_cq_ex_to_cq(ibv_create_cq_ex(s.context, &attr));
	struct ibv_qp *qp = loopback_qp(&s);
	struct ibv_sge sge = {(uintptr_t)s.buf, 8, s.mr->lkey};
	struct ibv_send_wr send = {.sg_list = &sge,
				   .num_sge = 1,
				   .opcode = IBV_WR_RDMA_WRITE,
				   .wr.rdma = {(uintptr_t)s.buf + 64, s.mr->rkey}},
			   *bad;
	REQUIRE(!pthread_create(&thread, NULL, take_events, s.channel));
	for (int i = 0; i < ROUNDS; i++) {
		REQUIRE(!ibv_req_notify_cq(s.cq, 0));
		REQUIRE(!ibv_post_send(qp, &send, &bad));
		RETURNS(0, ibv_resize_cq(single, i % 2 ? 16 : 1 << 13));
		while (!ibv_poll_cq(s.cq, 1, &wc))
			;
	}
	REQUIRE(!pthread_join(thread, NULL));
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_cq(single));
	setup_close(&s);
	return failures != 0;
}
