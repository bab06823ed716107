// SPDX-License-Identifier: Apache-2.0
/*
 * A message that is posted right before its queue pair ends arrives, even if the engine sleeps when
 * it is posted.
 */
#include "setup.h"

#include <unistd.h>

enum {
	ROUNDS = 40
};

static void end_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	RETURNS(0, ibv_modify_qp(qp, &a, IBV_QP_STATE));
	RETURNS(0, ibv_destroy_qp(qp));
}

static void end_destroy(struct ibv_qp *qp)
{
	RETURNS(0, ibv_destroy_qp(qp));
}

static void send_and_end(struct setup *s, void (*end)(struct ibv_qp *))
{
	struct ibv_qp *from = create_qp(s), *to = create_qp(s);
	uint32_t receiver = to->qp_num;
	struct ibv_sge sge = {(uintptr_t)s->buf, 8, s->mr->lkey};
	struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad_recv;
	struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	struct ibv_wc wc;
	connect_qp(s, from, to->qp_num);
	connect_qp(s, to, from->qp_num);
	REQUIRE(!ibv_post_recv(to, &recv, &bad_recv));
	usleep(2000); /* most likely the engine sleeps by then */
	REQUIRE(!ibv_post_send(from, &send, &bad));
	end(from);
	do {
		while (!ibv_poll_cq(s->cq, 1, &wc))
			;
	} while (wc.qp_num != receiver);
	CHECK(wc.status == IBV_WC_SUCCESS);
	RETURNS(0, ibv_destroy_qp(to));
}

int main(void)
{
	struct setup s;
	setup_open(&s);
	for (int i = 0; i < ROUNDS; i++)
		send_and_end(&s, i % 2 ? end_error : end_destroy);
	setup_close(&s);
	return failures != 0;
}
