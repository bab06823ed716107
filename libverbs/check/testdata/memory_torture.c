// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that is shared with the daemon, under threads that transfer, madvise, allocate, and
 * register, and children that are forked meanwhile: argument 1 is the time in seconds, argument 2 a
 * seed.
 */
#include "setup.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

enum {
	PAGE = 4096,
	THREADS = 3,
	SIZE = 32 * PAGE
};

/* What a thread has for itself. Only it changes the first half; the second is constant. */
struct worker {
	struct setup s;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *mem;
	unsigned int seed;
	pthread_t thread;
	long transfers, advices, registrations, allocations;
};

static struct worker workers[THREADS];
static atomic_bool stop;

static char *anonymous(size_t size)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(p != MAP_FAILED);
	return p;
}

static char *anonymous_by_system_call(size_t size)
{
	char *p = (char *)syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
	REQUIRE(p != MAP_FAILED);
	return p;
}

static bool all(const char *p, size_t size, char value)
{
	for (size_t i = 0; i < size; i++)
		if (p[i] != value)
			return false;
	return true;
}

static void write_to(struct worker *w, struct ibv_mr *mr, size_t dest, size_t src, size_t size)
{
	uintptr_t base = (uintptr_t)mr->addr;
	struct ibv_sge sge = {base + src, (uint32_t)size, mr->lkey};
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1}, *bad;
	struct ibv_wc wc;
	int n;
	wr.wr.rdma.remote_addr = base + dest;
	wr.wr.rdma.rkey = mr->rkey;
	RETURNS(0, ibv_post_send(w->qp, &wr, &bad));
	while (!(n = ibv_poll_cq(w->s.cq, 1, &wc)))
		;
	REQUIRE(n == 1);
	CHECK(wc.status == IBV_WC_SUCCESS);
}

/* From any part of the first half to any other. */
static void transfer(struct worker *w)
{
	size_t length = 1 + (size_t)rand_r(&w->seed) % (SIZE / 8);
	size_t src = (size_t)rand_r(&w->seed) % (SIZE / 8);
	size_t dest = SIZE / 4 + (size_t)rand_r(&w->seed) % (SIZE / 8);
	char value = (char)rand_r(&w->seed);
	memset(w->mem + src, value, length);
	w->mem[dest + length] = (char)(value + 1);
	write_to(w, w->mr, dest, src, length);
	CHECK(all(w->mem + dest, length, value));
	CHECK(w->mem[dest + length] == (char)(value + 1));
	w->transfers++;
}

static void advise(struct worker *w)
{
	size_t page = (size_t)rand_r(&w->seed) % (SIZE / 2 / PAGE) * PAGE;
	memset(w->mem + page, 1, PAGE);
	CHECK(!madvise(w->mem + page, PAGE, MADV_DONTNEED));
	CHECK(all(w->mem + page, PAGE, 0));
	w->advices++;
}

/* Allocations of a few sizes, of which some are registered. */
static void allocate(struct worker *w)
{
	char *p[4];
	size_t size[4];
	for (int i = 0; i < 4; i++) {
		size[i] = (size_t)(1 + rand_r(&w->seed) % 8) * PAGE;
		REQUIRE(!posix_memalign((void **)&p[i], PAGE, size[i]));
		memset(p[i], i + 1, size[i]);
	}
	struct ibv_mr *mr = ibv_reg_mr(w->s.pd, p[0], size[0], ALL_ACCESS);
	REQUIRE(mr);
	write_to(w, mr, size[0] / 2, 0, size[0] / 2);
	for (int i = 0; i < 4; i++)
		CHECK(all(p[i], size[i], (char)(i + 1)));
	bool late = rand_r(&w->seed) % 2;
	if (!late)
		RETURNS(0, ibv_dereg_mr(mr));
	for (int i = 0; i < 4; i++)
		free(p[i]);
	if (late)
		RETURNS(0, ibv_dereg_mr(mr));
	w->allocations++;
}

/* New memory, and a part of what is shared. */
static void register_more(struct worker *w)
{
	size_t size = (size_t)(rand_r(&w->seed) % 2 ? 4 : 32) * PAGE;
	char *p = rand_r(&w->seed) % 2 ? anonymous(size) : anonymous_by_system_call(size);
	struct ibv_mr *new = ibv_reg_mr(w->s.pd, p, size, ALL_ACCESS);
	struct ibv_mr *part = ibv_reg_mr(w->s.pd, w->mem + PAGE, 4 * PAGE, ALL_ACCESS);
	struct ibv_mr *both[] = {new, part};
	REQUIRE(new &&part);
	for (int i = 0; i < 2; i++) {
		char *at = both[i]->addr;
		memset(at, 3, PAGE);
		memset(at + 2 * PAGE, 4, PAGE);
		write_to(w, both[i], 2 * PAGE, 0, PAGE);
		CHECK(all(at + 2 * PAGE, PAGE, 3));
		RETURNS(0, ibv_dereg_mr(both[i]));
	}
	REQUIRE(!(rand_r(&w->seed) % 2 ? munmap(p, size) : syscall(SYS_munmap, p, size)));
	w->registrations++;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	void (*const actions[])(struct worker *) = {transfer, transfer, advise, allocate,
						    register_more};
	while (!stop && !failures)
		actions[rand_r(&w->seed) % 5](w);
	return NULL;
}

/* The constant halves are as they were, and may be changed. */
static int child(void)
{
	limit_time(30);
	for (int i = 0; i < THREADS; i++) {
		char *half = workers[i].mem + SIZE / 2;
		CHECK(all(half, SIZE / 2, (char)(i + 1)));
		memset(workers[i].mem, 0x55, SIZE);
		char *p = memalign(PAGE, SIZE);
		REQUIRE(p);
		memset(p, 0x55, SIZE);
		free(p);
	}
	return failures != 0;
}

static long fork_children(double seconds)
{
	struct timespec begin, now;
	long n = 0;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		int status = -1;
		pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (!pid)
			_exit(child());
		REQUIRE(waitpid(pid, &status, 0) == pid);
		CHECK(!status);
		for (int i = 0; i < THREADS; i++)
			CHECK(all(workers[i].mem + SIZE / 2, SIZE / 2, (char)(i + 1)));
		clock_gettime(CLOCK_MONOTONIC, &now);
		n++;
	} while (!failures && (double)(now.tv_sec - begin.tv_sec) < seconds);
	return n;
}

int main(int argc, char **argv)
{
	REQUIRE(argc == 3);
	for (int i = 0; i < THREADS; i++) {
		struct worker *w = &workers[i];
		setup_open(&w->s);
		w->qp = loopback_qp(&w->s);
		w->seed = (unsigned int)atol(argv[2]) + (unsigned int)i;
		w->mem = i ? aligned_alloc(PAGE, SIZE) : anonymous(SIZE);
		REQUIRE(w->mem);
		memset(w->mem + SIZE / 2, i + 1, SIZE / 2);
		REQUIRE((w->mr = ibv_reg_mr(w->s.pd, w->mem, SIZE, ALL_ACCESS)));
	}
	for (int i = 0; i < THREADS; i++)
		REQUIRE(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
	long forks = fork_children(atof(argv[1]));
	stop = true;
	for (int i = 0; i < THREADS; i++) {
		struct worker *w = &workers[i];
		REQUIRE(!pthread_join(w->thread, NULL));
		printf("%ld transfers, %ld advices, %ld allocations, %ld registrations; ",
		       w->transfers, w->advices, w->allocations, w->registrations);
		CHECK(w->transfers && w->advices && w->allocations && w->registrations);
		RETURNS(0, ibv_dereg_mr(w->mr));
		RETURNS(0, ibv_destroy_qp(w->qp));
		setup_close(&w->s);
		if (i)
			free(w->mem);
		else
			munmap(w->mem, SIZE);
	}
	printf("%ld forks\n", forks);
	return failures != 0;
}
