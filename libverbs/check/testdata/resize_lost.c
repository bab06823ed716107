// SPDX-License-Identifier: Apache-2.0
/*
 * A process has no room for the descriptor of the memory to which the daemon has moved a queue. The
 * queue has lost its ring: the daemon may give the old memory to another one. Its functions fail,
 * and other queues go on.
 */
#include "setup.h"

static struct ibv_cq_ex *create_extended(struct setup *s)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = 16, .channel = s->channel};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(s->context, &attr);
	REQUIRE(cq);
	return cq;
}

int main(void)
{
	struct setup s;
	struct ibv_wc wc;
	struct ibv_poll_cq_attr poll_attr = {0};
	struct ibv_sge sge;
	setup_open(&s);
	struct ibv_cq *lost = ibv_create_cq(s.context, 16, NULL, s.channel, 0);
	struct ibv_cq_ex *extended = create_extended(&s);
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(s.pd, &attr);
	REQUIRE(lost && srq);
	struct ibv_qp_init_attr init = rc_attr(&s);
	init.send_cq = init.recv_cq = lost;
	struct ibv_qp *qp = ibv_create_qp(s.pd, &init), *other = loopback_qp(&s);
	REQUIRE(qp);

	/* The proxy keeps the descriptors of replies; these rings need chunks of their own. */
	struct ibv_srq_attr large = {.max_wr = 1 << 13};
	RETURNS(EMFILE, ibv_resize_cq(lost, 1 << 13));
	RETURNS(EMFILE, ibv_resize_cq(ibv_cq_ex_to_cq(extended), 1 << 13));
	RETURNS(EMFILE, ibv_modify_srq(srq, &large, IBV_SRQ_MAX_WR));

	struct ibv_recv_wr recv = {0}, *bad_recv;
	FAILS(EIO, ibv_poll_cq(lost, 1, &wc) == -1);
	FAILS(EIO, ibv_start_poll(extended, &poll_attr) == EIO);
	RETURNS(EIO, ibv_req_notify_cq(lost, 0));
	RETURNS(EIO, ibv_post_srq_recv(srq, &recv, &bad_recv));
	RETURNS(0, ibv_destroy_qp(qp)); /* removes its completions */

	/* A queue gets the old memory. Its events are not those of the queues that had it. */
	struct ibv_cq *later[4], *got;
	void *context;
	for (int i = 0; i < 4; i++)
		REQUIRE((later[i] = ibv_create_cq(s.context, 16, NULL, NULL, 0)));
	sge = (struct ibv_sge){(uintptr_t)s.buf, 8, s.mr->lkey};
	struct ibv_send_wr send = {.sg_list = &sge,
				   .num_sge = 1,
				   .opcode = IBV_WR_RDMA_WRITE,
				   .wr.rdma = {(uintptr_t)s.buf + 64, s.mr->rkey}},
			   *bad;
	for (int i = 0; i < 5; i++) {
		REQUIRE(!ibv_req_notify_cq(s.cq, 0));
		REQUIRE(!ibv_post_send(other, &send, &bad));
		REQUIRE(!ibv_get_cq_event(s.channel, &got, &context));
		CHECK(got == s.cq);
		ibv_ack_cq_events(got, 1);
		CHECK(ibv_poll_cq(s.cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	}
	for (int i = 0; i < 4; i++)
		RETURNS(0, ibv_destroy_cq(later[i]));
	RETURNS(0, ibv_destroy_qp(other));
	RETURNS(0, ibv_destroy_srq(srq));
	RETURNS(0, ibv_destroy_cq(ibv_cq_ex_to_cq(extended)));
	RETURNS(0, ibv_destroy_cq(lost));
	setup_close(&s);
	return failures != 0;
}
