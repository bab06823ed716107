// SPDX-License-Identifier: Apache-2.0
/*
 * Threads that post to one queue pair, poll one completion queue, and create and destroy objects
 * of one context at the same time; then forked children, which must not affect the parent's
 * objects.
 */
#include "setup.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define EACH	500

static struct setup s;
static struct ibv_qp *qp;
static atomic_int completed;
static atomic_uchar seen[THREADS * EACH];

static void *post(void *number)
{
	int first = (int)(intptr_t)number * EACH;
	struct ibv_sge sge = {(uintptr_t)s.buf, 8, s.mr->lkey};
	for (int i = 0; i < EACH; i++) {
		struct ibv_send_wr wr = {.wr_id = first + i,
					 .sg_list = &sge,
					 .num_sge = 1,
					 .opcode = IBV_WR_RDMA_WRITE,
					 .wr.rdma = {(uintptr_t)s.buf + 64, s.mr->rkey}},
				   *bad;
		int error;
		while ((error = ibv_post_send(qp, &wr, &bad)) == ENOMEM)
			sched_yield();
		REQUIRE(!error);
	}
	return NULL;
}

static void *poll_queue(void *arg)
{
	struct ibv_wc wc[3];
	(void)arg;
	while (completed < THREADS * EACH) {
		int n = ibv_poll_cq(s.cq, 3, wc);
		REQUIRE(n >= 0);
		for (int i = 0; i < n; i++) {
			REQUIRE(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id < THREADS * EACH);
			seen[wc[i].wr_id]++;
			completed++;
		}
	}
	return NULL;
}

static void *create_and_destroy(void *arg)
{
	(void)arg;
	for (int i = 0; i < 20; i++) {
		struct ibv_pd *pd = ibv_alloc_pd(s.context);
		struct ibv_cq *cq = ibv_create_cq(s.context, 4, NULL, s.channel, 0);
		struct ibv_mr *mr = ibv_reg_mr(pd, s.buf, 64, 0);
		REQUIRE(pd && cq && mr);
		REQUIRE(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
	}
	return NULL;
}

static void concurrent_use(void)
{
	pthread_t t[THREADS + 4];
	int n = 0;
	for (int i = 0; i < THREADS; i++)
		REQUIRE(!pthread_create(&t[n++], NULL, post, (void *)(intptr_t)i));
	for (int i = 0; i < 2; i++)
		REQUIRE(!pthread_create(&t[n++], NULL, poll_queue, NULL));
	for (int i = 0; i < 2; i++)
		REQUIRE(!pthread_create(&t[n++], NULL, create_and_destroy, NULL));
	while (n)
		REQUIRE(!pthread_join(t[--n], NULL));
	for (int i = 0; i < THREADS * EACH; i++)
		CHECK(seen[i] == 1);
}

/* Uses inherited objects, of which no queue works, and a context of its own. */
static int child(void)
{
	struct ibv_port_attr port;
	struct ibv_wc wc;
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad;
	struct ibv_recv_wr recv = {0}, *bad_recv;
	RETURNS(0, ibv_query_port(s.context, 1, &port));
	RETURNS(EIO, ibv_post_send(qp, &wr, &bad));
	RETURNS(EIO, ibv_post_recv(qp, &recv, &bad_recv));
	CHECK(ibv_poll_cq(s.cq, 1, &wc) <= 0);
	struct ibv_context *own = open_first();
	RETURNS(0, ibv_query_port(own, 1, &port));
	RETURNS(0, ibv_close_device(own));
	return failures != 0;
}

static void run_child(bool uses, bool closes)
{
	int status = -1;
	pid_t pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		int rc = uses ? child() : 0;
		if (closes) {
			RETURNS(0, ibv_destroy_qp(qp));
			setup_close(&s);
			rc = failures != 0;
		}
		_exit(rc);
	}
	REQUIRE(waitpid(pid, &status, 0) == pid);
	CHECK(status == 0);
	completed = THREADS * EACH - 1;
	struct ibv_sge sge = {(uintptr_t)s.buf, 8, s.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_RDMA_WRITE,
				 .wr.rdma = {(uintptr_t)s.buf + 64, s.mr->rkey}},
			   *bad;
	REQUIRE(!ibv_post_send(qp, &wr, &bad));
	poll_queue(NULL);
}

int main(void)
{
	setup_open(&s);
	REQUIRE(!ibv_resize_cq(s.cq, THREADS * EACH)); /* the pollers may be slow */
	qp = loopback_qp(&s);
	concurrent_use();
	RETURNS(0, ibv_fork_init());
	run_child(false, false);
	run_child(true, false);
	run_child(false, true);
	RETURNS(0, ibv_destroy_qp(qp));
	setup_close(&s);
	return failures != 0;
}
