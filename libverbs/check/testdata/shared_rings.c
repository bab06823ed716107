// SPDX-License-Identifier: Apache-2.0
/*
 * The rings of a context are in few mappings, which go with the rings. A forked child can use its
 * copies of them without an effect on the parent's.
 */
#include "setup.h"

#include <sys/wait.h>
#include <unistd.h>

enum {
	PAIRS = 1000
};

static int ring_mappings(void)
{
	char line[512];
	int n = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	REQUIRE(maps);
	while (fgets(line, sizeof line, maps))
		n += strstr(line, "memfd:softroce-rings") != NULL;
	fclose(maps);
	return n;
}

static void send_to_itself(struct setup *s, struct ibv_qp *qp)
{
	struct ibv_sge sge = {(uintptr_t)s->buf, 8, s->mr->lkey};
	struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad_recv;
	struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	struct ibv_wc wc;
	REQUIRE(!ibv_post_recv(qp, &recv, &bad_recv));
	REQUIRE(!ibv_post_send(qp, &send, &bad));
	for (int done = 0; done < 2;) {
		int n = ibv_poll_cq(s->cq, 1, &wc);
		REQUIRE(n >= 0);
		CHECK(!n || wc.status == IBV_WC_SUCCESS);
		done += n;
	}
}

/* Posts to the rings that it has inherited, and polls them. */
static int child(struct setup *s, struct ibv_qp **pairs)
{
	struct ibv_recv_wr recv = {.wr_id = 1}, *bad_recv;
	struct ibv_send_wr send = {.wr_id = 1, .opcode = IBV_WR_SEND}, *bad;
	struct ibv_wc wc;
	for (int i = 0; i < PAIRS; i++) {
		ibv_post_recv(pairs[i], &recv, &bad_recv);
		ibv_post_send(pairs[i], &send, &bad);
	}
	ibv_poll_cq(s->cq, 1, &wc);
	CHECK(ring_mappings() == 0);
	return failures != 0;
}

int main(void)
{
	static struct ibv_qp *pairs[PAIRS];
	struct setup s;
	int status;
	setup_open(&s);
	int before = ring_mappings();
	CHECK(before > 0);
	for (int i = 0; i < PAIRS; i++)
		pairs[i] = create_qp(&s);
	CHECK(ring_mappings() > before);
	CHECK(ring_mappings() < before + 16);
	struct ibv_qp *used = loopback_qp(&s);
	send_to_itself(&s, used);
	pid_t pid = fork();
	REQUIRE(pid >= 0);
	if (!pid)
		_exit(child(&s, pairs));
	REQUIRE(waitpid(pid, &status, 0) == pid);
	CHECK(!status);
	send_to_itself(&s, used);
	for (int i = 0; i < PAIRS; i++)
		RETURNS(0, ibv_destroy_qp(pairs[i]));
	CHECK(ring_mappings() <= before + 1); /* that of used, which was created last */
	send_to_itself(&s, used);
	struct ibv_qp *again = loopback_qp(&s); /* in memory that others had */
	send_to_itself(&s, again);
	RETURNS(0, ibv_destroy_qp(again));
	RETURNS(0, ibv_destroy_qp(used));
	CHECK(ring_mappings() == before);
	setup_close(&s);
	CHECK(ring_mappings() == 0);
	return failures != 0;
}
