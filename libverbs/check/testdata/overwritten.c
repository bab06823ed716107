// SPDX-License-Identifier: Apache-2.0
/*
 * A program overwrites the producer index of a completion queue. Destroying a queue pair leaves the
 * completions of the others alone then.
 */
#include "setup.h"

#include <poll.h>

enum {
	ARMED = 128, /* offset of the word */
	ARM_NEXT = 2,
};

/*
 * The ring of the only completion queue, which is armed. Its producer index is the first word.
 * Rings begin at cache lines of the memory that is shared with the daemon.
 */
static volatile uint32_t *find_ring(void)
{
	volatile uint32_t *ring = NULL;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	REQUIRE(maps);
	while (!ring && fgets(line, sizeof line, maps)) {
		uintptr_t at, end;
		if (!strstr(line, "softroce-rings"))
			continue;
		REQUIRE(sscanf(line, "%lx-%lx", &at, &end) == 2);
		for (; !ring && at + ARMED < end; at += 64)
			if (((uint32_t *)at)[ARMED / 4] == ARM_NEXT)
				ring = (uint32_t *)at;
	}
	fclose(maps);
	REQUIRE(ring);
	return ring;
}

/* Writes, and waits until the completion is in the ring. */
static void write_once(struct setup *s, struct ibv_qp *qp, uint64_t id, volatile uint32_t *producer)
{
	struct ibv_sge sge = {(uintptr_t)s->buf, 8, s->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = id,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_RDMA_WRITE,
				 .wr.rdma = {(uintptr_t)s->buf + 64, s->mr->rkey}};
	struct ibv_send_wr *bad;
	uint32_t before = *producer;
	REQUIRE(!ibv_post_send(qp, &wr, &bad));
	while (*producer == before)
		poll(NULL, 0, 1);
}

int main(void)
{
	struct setup s;
	struct ibv_wc wc;
	setup_open(&s);
	REQUIRE(!ibv_req_notify_cq(s.cq, 0));
	volatile uint32_t *producer = find_ring();
	struct ibv_qp *kept = loopback_qp(&s), *other = loopback_qp(&s);
	write_once(&s, other, 0, producer);
	for (uint64_t i = 1; i < 5; i++)
		write_once(&s, kept, i, producer);
	*producer += 1 << 20;
	RETURNS(0, ibv_destroy_qp(other));
	*producer -= 1 << 20;
	for (uint64_t i = 0; i < 5; i++) /* that of the destroyed one, too */
		CHECK(ibv_poll_cq(s.cq, 1, &wc) == 1 && wc.wr_id == i);
	CHECK(ibv_poll_cq(s.cq, 1, &wc) == 0);
	RETURNS(0, ibv_destroy_qp(kept));
	setup_close(&s);
	return failures != 0;
}
