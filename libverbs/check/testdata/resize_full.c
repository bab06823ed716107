// SPDX-License-Identifier: Apache-2.0
/*
 * Queues are resized while the process has no room for another descriptor. They are then in their
 * new rings, whose chunk is mapped.
 */
#include "setup.h"

#include <sys/resource.h>
#include <unistd.h>

enum {
	ROUNDS = 20
};

/* Leaves room for no descriptor. */
static void fill(struct rlimit l)
{
	int next = dup(0);
	REQUIRE(next >= 0);
	close(next);
	l.rlim_cur = (rlim_t)next;
	REQUIRE(!setrlimit(RLIMIT_NOFILE, &l));
}

int main(void)
{
	struct setup s;
	struct rlimit unlimited;
	struct ibv_wc wc[2];
	REQUIRE(!getrlimit(RLIMIT_NOFILE, &unlimited));
	setup_open(&s);
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(s.pd, &attr);
	REQUIRE(srq);
	struct ibv_qp_init_attr init = rc_attr(&s);
	init.srq = srq;
	struct ibv_qp *qp = ibv_create_qp(s.pd, &init);
	REQUIRE(qp);
	connect_qp(&s, qp, qp->qp_num);
	struct ibv_sge sge = {(uintptr_t)s.buf, 8, s.mr->lkey};
	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_srq_attr size = {.max_wr = 16 + (i & 1) * 16};
		fill(unlimited);
		RETURNS(0, ibv_resize_cq(s.cq, 64 + (i & 1) * 64));
		RETURNS(0, ibv_modify_srq(srq, &size, IBV_SRQ_MAX_WR));
		REQUIRE(!setrlimit(RLIMIT_NOFILE, &unlimited));
		struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad_recv;
		struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
		struct ibv_send_wr *bad;
		REQUIRE(!ibv_post_srq_recv(srq, &recv, &bad_recv));
		REQUIRE(!ibv_post_send(qp, &send, &bad));
		for (int done = 0; done < 2;) {
			int n = ibv_poll_cq(s.cq, 2, wc);
			REQUIRE(n >= 0);
			done += n;
		}
	}
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_srq(srq));
	setup_close(&s);
	return failures != 0;
}
