// SPDX-License-Identifier: Apache-2.0
/*
 * How programs share processors with the engine. A post tells the engine on which one the program
 * runs, and yields it if the engine has lent it to the program, which has waited. Polling yields it
 * now and then, and moves to another one if the engine asks for that.
 */
#include "setup.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

enum {
	LENT = 8, /* offsets in the doorbell page */
	PROCESSOR = 12,
	ENGINE = 16,
	MOVE = 20,

	WAITED = 0x10000u, /* one unit of time in PROCESSOR */
};

static int yields;
static long yield_time; /* nanoseconds */
static bool others;	/* yields let another thread run */
static long switches = 1, asked;

static int64_t time_of(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int64_t nanoseconds(void)
{
	return time_of(CLOCK_MONOTONIC);
}

/* Takes the place of libc's. */
int sched_yield(void)
{
	yields++;
	if (others && switches)
		switches++;
	if (!yield_time)
		return 0;
	for (int64_t end = nanoseconds() + yield_time; nanoseconds() < end;)
		;
	return 0;
}

/* A kernel that does not count the switches says 0. */
int getrusage(__rusage_who_t who, struct rusage *usage)
{
	REQUIRE(who == RUSAGE_THREAD);
	asked++;
	*usage = (struct rusage){.ru_nivcsw = switches};
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

/* Polls until that yields, and returns the number of polls before. */
static int polls_to_yield(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n = 0;
	for (yields = 0; !yields; n++)
		RETURNS(0, ibv_poll_cq(cq, 1, &wc));
	return n - 1;
}

/*
 * Reports whether polling yields after want empty polls. The library does not find out at once that
 * yields let no other thread run any more, and on a busy machine some take long.
 */
static bool yields_after(struct ibv_cq *cq, int want)
{
	for (int i = 0; i < 1000; i++)
		if (polls_to_yield(cq) == want)
			return true;
	return false;
}

/* The same for the polls that follow a post, which comes after a yield. */
static bool yields_after_post(struct setup *s, struct ibv_qp *qp, int want)
{
	for (int i = 0; i < 100; i++) {
		polls_to_yield(s->cq);
		RETURNS(0, post(s, qp, false));
		if (polls_to_yield(s->cq) == want)
			return true;
	}
	return false;
}

static void poll_and_yield(struct setup *s, struct ibv_qp *qp, volatile uint32_t *doorbells)
{
	int processor = sched_getcpu() + 1;
	doorbells[ENGINE / 4] = 0;
	doorbells[LENT / 4] = 0;
	others = false;
	CHECK(yields_after(s->cq, 256));
	others = true;
	CHECK(yields_after(s->cq, 2)); /* it is not known where the engine is */
	doorbells[ENGINE / 4] = processor + 1;
	CHECK(yields_after(s->cq, 64));
	doorbells[ENGINE / 4] = processor;
	CHECK(yields_after(s->cq, 2));

	/* The first empty poll after a post yields, if the last yields let another thread run. */
	doorbells[ENGINE / 4] = processor + 1;
	CHECK(yields_after(s->cq, 64));
	CHECK(yields_after_post(s, qp, 0));
	CHECK(yields_after(s->cq, 64)); /* after one post, one yield */
	others = false;
	CHECK(yields_after(s->cq, 256));
	CHECK(yields_after_post(s, qp, 256));
}

/* Whether a yield let another thread run is what the kernel counts, and how long it took if the
 * kernel does not count that. */
static void know_switches(struct setup *s, volatile uint32_t *doorbells)
{
	const long switched = 20000; /* two switches of threads, and what the other one does */
	doorbells[ENGINE / 4] = 0;
	others = false;
	yield_time = switched; /* such as when the host stops a virtual machine */
	polls_to_yield(s->cq);
	CHECK(yields_after(s->cq, 256));
	others = true;
	yield_time = 0;
	CHECK(yields_after(s->cq, 2));
	asked = 0;
	for (int i = 0; i < 160; i++)
		polls_to_yield(s->cq);
	CHECK(asked < 160 / 2); /* less often on a quiet machine: 10 times */
	yield_time = 1000000;
	CHECK(yields_after(s->cq, 256)); /* to a thread that does not yield itself */

	/* One that had the processor between two yields does not count, nor does a long yield
	 * later. */
	bool apart = false;
	for (int i = 0; i < 100 && !apart; i++) {
		yield_time = 0;
		CHECK(yields_after(s->cq, 2));
		yield_time = 1000000;
		polls_to_yield(s->cq);
		others = false;
		yield_time = 0;
		polls_to_yield(s->cq);
		apart = polls_to_yield(s->cq) == 8;
		switches++;
		polls_to_yield(s->cq);
		apart = apart && polls_to_yield(s->cq) == 32;
		others = true;
	}
	CHECK(apart);
	long counted = switches;
	switches = 0;
	yield_time = switched;
	CHECK(yields_after(s->cq, 2));
	yield_time = 0;
	CHECK(yields_after(s->cq, 256));
	switches = counted;
	others = false;
	yield_time = 0;
}

/* The program publishes its processor and for how long it waited, which does not include other
 * work. */
static void publish(struct setup *s, volatile uint32_t *doorbells)
{
	const long time = 10000000; /* ns */
	uint32_t processor = sched_getcpu() + 1, units = time / 1024;
	bool waited = false, published = false;
	/* A busy machine may delay a yield. */
	for (int i = 0; i < 100 && !waited; i++) {
		yield_time = time;
		polls_to_yield(s->cq);
		doorbells[PROCESSOR / 4] = 0xffffu * WAITED + 1000; /* overflows */
		polls_to_yield(s->cq);
		CHECK(doorbells[PROCESSOR / 4] % WAITED == processor);
		uint32_t more = doorbells[PROCESSOR / 4] / WAITED + 1;
		waited = more >= units && more < 2 * units;
	}
	CHECK(waited);
	yield_time = 0;
	waited = false;
	/* The polls count, too, but not all the time in which something else runs. */
	for (int i = 0; i < 100 && !waited; i++) {
		polls_to_yield(s->cq);
		doorbells[PROCESSOR / 4] = 0;
		int64_t start = time_of(CLOCK_THREAD_CPUTIME_ID);
		for (int n = 0; n < 1000; n++)
			polls_to_yield(s->cq);
		int64_t took = time_of(CLOCK_THREAD_CPUTIME_ID) - start;
		waited = doorbells[PROCESSOR / 4] / WAITED * INT64_C(1024) > took / 2;
	}
	CHECK(waited);
	for (int i = 0; i < 100 && !published; i++) {
		doorbells[PROCESSOR / 4] = 0;
		for (int64_t end = nanoseconds() + time; nanoseconds() < end;)
			;
		polls_to_yield(s->cq);
		published = doorbells[PROCESSOR / 4] / WAITED < units / 4;
	}
	CHECK(published);
}

/* Sets the word and polls. The program must still be allowed to run where it was. */
static void ask_to_move(struct setup *s, volatile uint32_t *doorbells, uint32_t word)
{
	cpu_set_t before, after;
	REQUIRE(!sched_getaffinity(0, sizeof before, &before));
	doorbells[MOVE / 4] = word;
	polls_to_yield(s->cq);
	CHECK(doorbells[MOVE / 4] == 0);
	REQUIRE(!sched_getaffinity(0, sizeof after, &after));
	CHECK(CPU_EQUAL(&before, &after));
}

/*
 * Whether the program is on another of the allowed processors each time after the engine, which is
 * on its own one or not, has asked for that. The kernel may move the thread, too, so that a single
 * move says little, and neither does a single one that does not happen.
 */
static bool moves(struct setup *s, volatile uint32_t *doorbells, const cpu_set_t *allowed,
		  bool here)
{
	int moved = 0, stayed = 0;
	for (int i = 0; i < 1000 && moved < 10 && stayed < 10; i++) {
		int to = 0, from = sched_getcpu();
		while (!CPU_ISSET(to, allowed) || to == from)
			to++;
		doorbells[ENGINE / 4] = (here ? from : to) + 1;
		ask_to_move(s, doorbells, to + 1);
		if (doorbells[PROCESSOR / 4] % WAITED == (uint32_t)to + 1) {
			moved++;
			stayed = 0;
		} else {
			stayed++;
			moved = 0;
		}
	}
	return moved == 10;
}

static void move(struct setup *s, volatile uint32_t *doorbells, const cpu_set_t *allowed)
{
	yield_time = 0;
	/* Those to which it may not move. */
	int here = sched_getcpu();
	uint32_t impossible[] = {here + 2, 5000, UINT32_MAX};
	doorbells[ENGINE / 4] = here + 1;
	for (int i = 0; i < 3; i++) {
		ask_to_move(s, doorbells, impossible[i]);
		CHECK(sched_getcpu() == here);
	}
	if (CPU_COUNT(allowed) < 2)
		return;
	REQUIRE(!sched_setaffinity(0, sizeof *allowed, allowed));
	CHECK(moves(s, doorbells, allowed, true));
	CHECK(!moves(s, doorbells, allowed, false));
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
		struct ibv_wc wc;
		RETURNS(0, ibv_poll_cq(s.cq, 1, &wc));
		CHECK(post(&s, qp, extended) == 1);
		CHECK(post(&s, qp, extended) == 0); /* it has not waited since */
	}
	poll_and_yield(&s, qp, doorbells);
	know_switches(&s, doorbells);
	publish(&s, doorbells);
	move(&s, doorbells, &allowed);
	RETURNS(0, ibv_destroy_qp(qp));
	setup_close(&s);
	return failures != 0;
}
