// SPDX-License-Identifier: Apache-2.0
/*
 * A post tells the engine on which processor the program runs, and yields the processor if the
 * engine has lent it to the program.
 */
#include "setup.h"

#include <sched.h>
#include <sys/mman.h>

enum {
	LENT = 8, /* offsets in the doorbell page */
	PROCESSOR = 12,
};

static int yields;

/* Takes the place of libc's. */
int sched_yield(void)
{
	yields++;
	return 0;
}

/* The doorbell page of the only context, which from now on is private to the program. */
static volatile uint32_t *take_doorbells(void)
{
	uintptr_t at = 0, end;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	REQUIRE(maps);
	while (!at && fgets(line, sizeof line, maps)) {
		if (strstr(line, "softroce-doorbell"))
			REQUIRE(sscanf(line, "%lx-%lx", &at, &end) == 2);
	}
	fclose(maps);
	REQUIRE(at);
	void *page = mmap((void *)at, end - at, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	REQUIRE(page != MAP_FAILED);
	return page;
}

/* Posts with either function of verbs, and returns how often that yielded. */
static int post(struct setup *s, struct ibv_qp *qp, bool extended)
{
	struct ibv_sge sge = {(uintptr_t)s->buf, 8, s->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_RDMA_WRITE,
				 .wr.rdma = {(uintptr_t)s->buf + 64, s->mr->rkey}};
	struct ibv_send_wr *bad;
	yields = 0;
	if (extended) {
		struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
		REQUIRE(ex);
		ibv_wr_start(ex);
		ibv_wr_rdma_write(ex, s->mr->rkey, (uintptr_t)s->buf + 64);
		ibv_wr_set_sge(ex, s->mr->lkey, (uintptr_t)s->buf, 8);
		RETURNS(0, ibv_wr_complete(ex));
	} else {
		RETURNS(0, ibv_post_send(qp, &wr, &bad));
	}
	return yields;
}

int main(void)
{
	struct setup s;
	cpu_set_t allowed, one;
	setup_open(&s);
	volatile uint32_t *doorbells = take_doorbells();
	struct ibv_qp *qp = create_qp_ex(&s, IBV_QP_EX_WITH_RDMA_WRITE);
	connect_qp(&s, qp, qp->qp_num);
	REQUIRE(!sched_getaffinity(0, sizeof allowed, &allowed));
	int processor = 0;
	while (!CPU_ISSET(processor, &allowed))
		processor++;
	CPU_ZERO(&one);
	CPU_SET(processor, &one);
	REQUIRE(!sched_setaffinity(0, sizeof one, &one));
	for (int extended = 0; extended < 2; extended++) {
		doorbells[PROCESSOR / 4] = 0;
		doorbells[LENT / 4] = 0;
		CHECK(post(&s, qp, extended) == 0);
		CHECK(doorbells[PROCESSOR / 4] == (uint32_t)processor + 1);
		doorbells[LENT / 4] = 1;
		CHECK(post(&s, qp, extended) == 1);
	}
	RETURNS(0, ibv_destroy_qp(qp));
	setup_close(&s);
	return failures != 0;
}
