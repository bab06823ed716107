// SPDX-License-Identifier: Apache-2.0
/*
 * A program overwrites the producer index of a completion queue. Destroying a queue pair leaves the
 * completions of the others alone then.
 */
#include "setup.h"

#include <poll.h>

/* The ring of the only completion queue. Its producer index is the first word. */
static volatile uint32_t *ring(void)
{
	char line[512];
	uintptr_t at = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	REQUIRE(maps);
	while (!at && fgets(line, sizeof line, maps))
		if (strstr(line, "softroce-cq"))
			REQUIRE(sscanf(line, "%lx", &at) == 1);
	fclose(maps);
	REQUIRE(at);
	return (volatile uint32_t *)at;
}

int main(void)
{
	struct setup s;
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	setup_open(&s);
	struct ibv_qp *kept = loopback_qp(&s), *other = loopback_qp(&s);
	for (uint64_t i = 0; i < 4; i++) {
		struct ibv_sge sge = {(uintptr_t)s.buf, 8, s.mr->lkey};
		struct ibv_send_wr wr = {.wr_id = i,
					 .sg_list = &sge,
					 .num_sge = 1,
					 .opcode = IBV_WR_RDMA_WRITE,
					 .wr.rdma = {(uintptr_t)s.buf + 64, s.mr->rkey}};
		volatile uint32_t *producer = ring(), before = *producer;
		REQUIRE(!ibv_post_send(kept, &wr, &bad));
		while (*producer == before)
			poll(NULL, 0, 1);
	}
	*ring() += 1 << 20;
	RETURNS(0, ibv_destroy_qp(other));
	*ring() -= 1 << 20;
	for (uint64_t i = 0; i < 4; i++)
		CHECK(ibv_poll_cq(s.cq, 1, &wc) == 1 && wc.wr_id == i);
	CHECK(ibv_poll_cq(s.cq, 1, &wc) == 0);
	RETURNS(0, ibv_destroy_qp(kept));
	setup_close(&s);
	return failures != 0;
}
