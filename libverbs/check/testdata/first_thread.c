// SPDX-License-Identifier: Apache-2.0
/*
 * A process with one thread holds a queue from ibv_wr_start to ibv_wr_complete, or a completion
 * queue from ibv_start_poll to ibv_end_poll, when it creates its first thread. That one waits.
 */
#include "setup.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define HELD_TIME 20000 /* microseconds in which the thread would finish if it did not wait */

static struct setup s;
static struct ibv_qp *qp;
static atomic_bool done;

static void build_write(struct ibv_qp_ex *ex, uint64_t id)
{
	ex->wr_id = id;
	ex->wr_flags = 0;
	ibv_wr_rdma_write(ex, s.mr->rkey, (uintptr_t)s.buf + 64);
	ibv_wr_set_sge(ex, s.mr->lkey, (uintptr_t)s.buf, 8);
}

static void *post(void *id)
{
	struct ibv_sge sge = {(uintptr_t)s.buf, 8, s.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = (uintptr_t)id,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_RDMA_WRITE,
				 .wr.rdma = {(uintptr_t)s.buf + 64, s.mr->rkey}},
			   *bad;
	REQUIRE(!ibv_post_send(qp, &wr, &bad));
	done = true;
	return NULL;
}

static void *poll_one(void *id)
{
	struct ibv_wc wc = {0};
	while (!ibv_poll_cq(s.cq, 1, &wc))
		;
	CHECK(wc.wr_id == (uintptr_t)id && wc.status == IBV_WC_SUCCESS);
	done = true;
	return NULL;
}

static pthread_t start(void *(*f)(void *), uintptr_t id)
{
	pthread_t thread;
	done = false;
	REQUIRE(!pthread_create(&thread, NULL, f, (void *)id));
	usleep(HELD_TIME);
	CHECK(!done);
	return thread;
}

static void hold_send_queue(void)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(ex);
	build_write(ex, 1);
	pthread_t thread = start(post, 2);
	RETURNS(0, ibv_wr_complete(ex));
	REQUIRE(!pthread_join(thread, NULL));
	poll_one((void *)1);
	poll_one((void *)2);
}

static void hold_completion_queue(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = {0};
	post((void *)1);
	post((void *)2);
	while (ibv_start_poll(cq, &attr))
		;
	CHECK(cq->wr_id == 1);
	pthread_t thread = start(poll_one, 2);
	ibv_end_poll(cq);
	REQUIRE(!pthread_join(thread, NULL));
}

int main(int argc, char **argv)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = 16};
	limit_time(30);
	setup_open(&s);
	struct ibv_cq *cq = s.cq;
	struct ibv_cq_ex *ex = ibv_create_cq_ex(s.context, &attr);
	REQUIRE(ex);
	s.cq = ibv_cq_ex_to_cq(ex);
	qp = create_qp_ex(&s, IBV_QP_EX_WITH_RDMA_WRITE);
	connect_qp(&s, qp, qp->qp_num);
	if (argc > 1 && !strcmp(argv[1], "poll"))
		hold_completion_queue(ex);
	else
		hold_send_queue();
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_cq(s.cq));
	s.cq = cq;
	setup_close(&s);
	return failures != 0;
}
