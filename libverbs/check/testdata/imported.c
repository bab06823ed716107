// SPDX-License-Identifier: Apache-2.0
/*
 * A context that joined another one has rings of its own and rings of objects, which the daemon
 * numbers apart.
 */
#include "setup.h"

#include <fcntl.h>

static void send_to_itself(struct setup *s, struct ibv_qp *qp)
{
	struct ibv_sge sge = {(uintptr_t)s->buf, 8, s->mr->lkey};
	struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad_recv;
	struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	struct ibv_wc wc;
	struct ibv_cq *cq;
	void *context;
	REQUIRE(!ibv_req_notify_cq(s->cq, 0));
	REQUIRE(!ibv_post_recv(qp, &recv, &bad_recv));
	REQUIRE(!ibv_post_send(qp, &send, &bad));
	REQUIRE(!ibv_get_cq_event(s->channel, &cq, &context));
	CHECK(cq == s->cq);
	ibv_ack_cq_events(cq, 1);
	for (int done = 0; done < 2;) {
		int n = ibv_poll_cq(s->cq, 1, &wc);
		REQUIRE(n >= 0);
		CHECK(!n || wc.status == IBV_WC_SUCCESS);
		done += n;
	}
}

static void use(struct setup *s, struct ibv_context *context)
{
	s->context = context;
	REQUIRE(s->context);
	REQUIRE((s->pd = ibv_alloc_pd(s->context)));
	REQUIRE((s->channel = ibv_create_comp_channel(s->context)));
	REQUIRE((s->cq = ibv_create_cq(s->context, 64, s, s->channel, 0)));
	REQUIRE((s->mr = ibv_reg_mr(s->pd, s->buf, sizeof s->buf, ALL_ACCESS)));
}

int main(void)
{
	static struct setup owner, joined, other;
	setup_open(&owner);
	use(&joined, ibv_import_device(fcntl(owner.context->cmd_fd, F_DUPFD_CLOEXEC, 0)));
	use(&other, ibv_import_device(fcntl(owner.context->cmd_fd, F_DUPFD_CLOEXEC, 0)));
	struct setup *all[] = {&owner, &joined, &other};
	struct ibv_qp *qp[3];
	for (int i = 0; i < 3; i++)
		qp[i] = loopback_qp(all[i]);
	for (int i = 0; i < 30; i++)
		send_to_itself(all[i % 3], qp[i % 3]);
	for (int i = 2; i >= 0; i--) {
		RETURNS(0, ibv_destroy_qp(qp[i]));
		setup_close(all[i]);
	}
	return failures != 0;
}
