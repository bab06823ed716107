// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that is shared with the daemon, under threads that transfer, madvise, allocate, register,
 * unmap, remap and protect, and children that are forked meanwhile: argument 1 is the time in
 * seconds, argument 2 a seed. It asks the test how the daemon accesses regions.
 */
#include "shared_memory.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

enum {
	THREADS = 3,
	MOST_PAGES = 96
};

/* Memory whose mapping changes. All bytes of a page have one value. */
struct buffer {
	char *mem;
	size_t pages;
	char value[MOST_PAGES];
	struct ibv_mr *mr; /* of the memory as it was, or NULL */
};

/* What a thread has for itself. Only it changes the first half of mem; the second is constant. */
struct worker {
	struct setup s;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *mem;
	struct buffer changing;
	unsigned int seed;
	pthread_t thread;
	long transfers, advices, registrations, allocations, changes, asked;
};

static struct worker workers[THREADS];
static char *forks; /* counts them; the shared memory at the highest address */
static atomic_bool stop;

static char *anonymous_by_system_call(size_t size)
{
	char *p = (char *)syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
	REQUIRE(p != MAP_FAILED);
	return p;
}

/* Now and then asks how a region is accessed. The threads have one conversation with the test. */
static void expect_mapped(struct worker *w, struct ibv_mr *mr, int line)
{
	static pthread_mutex_t conversation = PTHREAD_MUTEX_INITIALIZER;
	if (rand_r(&w->seed) % 8)
		return;
	pthread_mutex_lock(&conversation);
	expect_as(mr, "mapped", line);
	pthread_mutex_unlock(&conversation);
	w->asked++;
}

#define EXPECT_MAPPED(w, mr) expect_mapped(w, mr, __LINE__)

static void copy_in(struct worker *w, struct ibv_mr *mr, size_t dest, size_t src, size_t size)
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
static void transfer_any(struct worker *w)
{
	size_t length = 1 + (size_t)rand_r(&w->seed) % (SIZE / 8);
	size_t src = (size_t)rand_r(&w->seed) % (SIZE / 8);
	size_t dest = SIZE / 4 + (size_t)rand_r(&w->seed) % (SIZE / 8);
	char value = (char)rand_r(&w->seed);
	memset(w->mem + src, value, length);
	w->mem[dest + length] = (char)(value + 1);
	copy_in(w, w->mr, dest, src, length);
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
	EXPECT_MAPPED(w, mr);
	copy_in(w, mr, size[0] / 2, 0, size[0] / 2);
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
	bool by_call = rand_r(&w->seed) % 2;
	char *p = by_call ? anonymous_by_system_call(size) : anonymous(size);
	struct ibv_mr *new = ibv_reg_mr(w->s.pd, p, size, ALL_ACCESS);
	struct ibv_mr *part = ibv_reg_mr(w->s.pd, w->mem + PAGE, 4 * PAGE, ALL_ACCESS);
	struct ibv_mr *both[] = {new, part};
	REQUIRE(new &&part);
	EXPECT_MAPPED(w, part);
	if (size == 32 * PAGE && !by_call) /* a system call does not wait for the library's lock */
		EXPECT_MAPPED(w, new);
	for (int i = 0; i < 2; i++) {
		char *at = both[i]->addr;
		memset(at, 3, PAGE);
		memset(at + 2 * PAGE, 4, PAGE);
		copy_in(w, both[i], 2 * PAGE, 0, PAGE);
		CHECK(all(at + 2 * PAGE, PAGE, 3));
		RETURNS(0, ibv_dereg_mr(both[i]));
	}
	REQUIRE(!(rand_r(&w->seed) % 2 ? munmap(p, size) : syscall(SYS_munmap, p, size)));
	w->registrations++;
}

static void begin_buffer(struct buffer *b)
{
	b->pages = 32;
	b->mem = anonymous(b->pages * PAGE);
	b->mr = NULL;
	memset(b->value, 0, sizeof b->value);
}

/* A region lasts longer than the memory, or not. */
static void end_buffer(struct buffer *b, bool late)
{
	if (b->mr && !late)
		RETURNS(0, ibv_dereg_mr(b->mr));
	CHECK(!munmap(b->mem, b->pages * PAGE));
	if (b->mr && late)
		RETURNS(0, ibv_dereg_mr(b->mr));
}

static bool as_written(const struct buffer *b)
{
	for (size_t i = 0; i < b->pages; i++)
		if (!all(b->mem + i * PAGE, PAGE, b->value[i]))
			return false;
	return true;
}

/* Writes a page, and clears another one. */
static void change_pages(struct buffer *b, unsigned int *seed)
{
	size_t page = (size_t)rand_r(seed) % b->pages;
	b->value[page] = (char)rand_r(seed);
	memset(b->mem + page * PAGE, b->value[page], PAGE);
	page = (size_t)rand_r(seed) % b->pages;
	b->value[page] = 0;
	CHECK(!madvise(b->mem + page * PAGE, PAGE, MADV_DONTNEED));
}

/*
 * Grows or shrinks, and moves, to an address that is chosen here or not; often enough that it
 * happens while a fork copies the memory.
 */
static void remap(struct buffer *b, unsigned int *seed)
{
	do {
		size_t pages = 1 + (size_t)rand_r(seed) % MOST_PAGES;
		int flags = MREMAP_MAYMOVE | (rand_r(seed) % 2 ? MREMAP_FIXED : 0);
		char *to = NULL;
		if (flags & MREMAP_FIXED)
			to = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
				  0);
		REQUIRE(to != MAP_FAILED);
		to = mremap(b->mem, b->pages * PAGE, pages * PAGE, flags, to);
		REQUIRE(to != MAP_FAILED);
		if (pages > b->pages)
			memset(b->value + b->pages, 0, pages - b->pages);
		b->mem = to;
		b->pages = pages;
	} while (rand_r(seed) % 8);
}

/* Unmaps a part. The rest is what is before it, or else behind it. */
static void unmap_part(struct buffer *b, unsigned int *seed)
{
	size_t first = (size_t)rand_r(seed) % b->pages;
	size_t end = first + 1 + (size_t)rand_r(seed) % (b->pages - first);
	if (end - first == b->pages)
		return;
	CHECK(!munmap(b->mem + first * PAGE, (end - first) * PAGE));
	struct buffer behind = {b->mem + end * PAGE, b->pages - end, {0}, NULL};
	memcpy(behind.value, b->value + end, behind.pages);
	CHECK(as_written(&behind));
	if (first) {
		b->pages = first;
		CHECK(!behind.pages || !munmap(behind.mem, behind.pages * PAGE));
	} else {
		b->mem = behind.mem;
		b->pages = behind.pages;
		memcpy(b->value, behind.value, behind.pages);
	}
}

static void change(struct buffer *b, unsigned int *seed)
{
	void (*const changes[])(struct buffer *, unsigned int *) = {change_pages, remap,
								    unmap_part};
	changes[rand_r(seed) % 3](b, seed);
	CHECK(as_written(b));
}

static void protect(struct buffer *b, int protection)
{
	CHECK(!mprotect(b->mem + b->pages / 3 * PAGE, (b->pages + 2) / 3 * PAGE, protection));
}

/* A part of the buffer cannot be accessed while the thread does something else. */
static void change_buffer(struct worker *w)
{
	struct buffer *b = &w->changing;
	change(b, &w->seed);
	protect(b, PROT_NONE);
	transfer_any(w);
	protect(b, PROT_READ | PROT_WRITE);
	CHECK(as_written(b));
	w->changes++;
}

/* The buffer as it is now. One that was registered is replaced. */
static void register_buffer(struct worker *w)
{
	struct buffer *b = &w->changing;
	if (b->mr) {
		end_buffer(b, rand_r(&w->seed) % 2);
		begin_buffer(b);
		return;
	}
	size_t from = (size_t)rand_r(&w->seed) % b->pages, to = (size_t)rand_r(&w->seed) % b->pages;
	REQUIRE((b->mr = ibv_reg_mr(w->s.pd, b->mem, b->pages * PAGE, ALL_ACCESS)));
	EXPECT_MAPPED(w, b->mr);
	copy_in(w, b->mr, to * PAGE, from * PAGE, PAGE);
	b->value[to] = b->value[from];
	CHECK(as_written(b));
}

static void *work(void *arg)
{
	struct worker *w = arg;
	void (*const actions[])(struct worker *) = {transfer_any,  transfer_any,   advise,
						    allocate,	   register_more,  change_buffer,
						    change_buffer, register_buffer};
	while (!stop && !failures)
		actions[rand_r(&w->seed) % 8](w);
	return NULL;
}

/* The constant halves, and the memory of the thread that forks, are as they were. */
static int child(char n, struct buffer *b, unsigned int *seed)
{
	limit_time(30);
	CHECK(all(forks, PAGE, n));
	protect(b, PROT_READ | PROT_WRITE);
	CHECK(as_written(b));
	change_pages(b, seed);
	unmap_part(b, seed);
	CHECK(as_written(b));
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

static long fork_children(double seconds, unsigned int seed)
{
	struct timespec begin, now;
	struct buffer b;
	long n = 0;
	begin_buffer(&b);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		change(&b, &seed);
		protect(&b, PROT_NONE);
		memset(forks, (char)n, PAGE);
		int status = -1;
		pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (!pid)
			_exit(child((char)n, &b, &seed));
		memset(forks, (char)(n + 1), PAGE);
		protect(&b, PROT_READ | PROT_WRITE);
		CHECK(as_written(&b));
		change(&b, &seed);
		REQUIRE(waitpid(pid, &status, 0) == pid);
		CHECK(!status);
		CHECK(as_written(&b));
		for (int i = 0; i < THREADS; i++)
			CHECK(all(workers[i].mem + SIZE / 2, SIZE / 2, (char)(i + 1)));
		clock_gettime(CLOCK_MONOTONIC, &now);
		n++;
	} while (!failures && (double)(now.tv_sec - begin.tv_sec) < seconds);
	end_buffer(&b, false);
	return n;
}

int main(int argc, char **argv)
{
	REQUIRE(argc == 3 && (forks = aligned_alloc(PAGE, PAGE)));
	for (int i = 0; i < THREADS; i++) {
		struct worker *w = &workers[i];
		setup_open(&w->s);
		w->qp = loopback_qp(&w->s);
		w->seed = (unsigned int)atol(argv[2]) + (unsigned int)i;
		w->mem = i ? aligned_alloc(PAGE, SIZE) : anonymous(SIZE);
		REQUIRE(w->mem);
		memset(w->mem + SIZE / 2, i + 1, SIZE / 2);
		REQUIRE((w->mr = ibv_reg_mr(w->s.pd, w->mem, SIZE, ALL_ACCESS)));
		EXPECT(w->mr, "mapped");
		begin_buffer(&w->changing);
	}
	for (int i = 0; i < THREADS; i++)
		REQUIRE(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
	long forked = fork_children(atof(argv[1]), (unsigned int)atol(argv[2]) + THREADS);
	stop = true;
	for (int i = 0; i < THREADS; i++) {
		struct worker *w = &workers[i];
		REQUIRE(!pthread_join(w->thread, NULL));
		printf("%ld transfers, %ld advices, %ld allocations, %ld registrations, "
		       "%ld changes, %ld asked; ",
		       w->transfers, w->advices, w->allocations, w->registrations, w->changes,
		       w->asked);
		CHECK(w->transfers && w->advices && w->allocations && w->registrations &&
		      w->changes && w->asked);
		end_buffer(&w->changing, true);
		RETURNS(0, ibv_dereg_mr(w->mr));
		RETURNS(0, ibv_destroy_qp(w->qp));
		setup_close(&w->s);
		if (i)
			free(w->mem);
		else
			munmap(w->mem, SIZE);
	}
	printf("%ld forks\n", forked);
	return failures != 0;
}
