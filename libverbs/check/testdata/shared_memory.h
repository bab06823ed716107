// SPDX-License-Identifier: Apache-2.0
/*
 * Programs that register memory and say how the daemon accesses it: they write lines for the test,
 * which compares them with what the daemon says about a region.
 */
#ifndef SHARED_MEMORY_H
#define SHARED_MEMORY_H

#include "setup.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	PAGE = 4096,
	SIZE = 64 * PAGE
};

static struct setup s;
static struct ibv_qp *qp;

/* Its allocator puts memory elsewhere, and it ignores mlock. */
#ifdef __SANITIZE_ADDRESS__
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

static inline void expect_as(struct ibv_mr *mr, const char *how, int line)
{
	char reply[100];
	REQUIRE(mr);
	printf("%#lx %s (line %d)\n", (unsigned long)(uintptr_t)mr->addr, how, line);
	fflush(stdout);
	REQUIRE(fgets(reply, sizeof reply, stdin));
}

#define EXPECT(mr, how) expect_as(mr, how, __LINE__)

/* Tells the test what this machine cannot do. */
#define LEFT_OUT(what)                                                                             \
	do {                                                                                       \
		char reply_[100];                                                                  \
		printf("left out: %s: %s\n", what, strerror(errno));                               \
		fflush(stdout);                                                                    \
		REQUIRE(fgets(reply_, sizeof reply_, stdin));                                      \
	} while (0)

static inline struct ibv_mr *reg(void *p, size_t size)
{
	return ibv_reg_mr(s.pd, p, size, ALL_ACCESS);
}

static inline char *anonymous(size_t size)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(p != MAP_FAILED);
	return p;
}

/* Memory that no other mapping is merged with. */
static inline char *isolated(size_t size)
{
	char *p = mmap(NULL, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(p != MAP_FAILED && !mprotect(p + PAGE, size, PROT_READ | PROT_WRITE));
	return p + PAGE;
}

static inline void fill(char *p, size_t size, char seed)
{
	for (size_t i = 0; i < size; i++)
		p[i] = (char)(i / 64 * 7 + i + (size_t)seed);
}

static inline bool filled(const char *p, size_t size, char seed)
{
	for (size_t i = 0; i < size; i++)
		if (p[i] != (char)(i / 64 * 7 + i + (size_t)seed))
			return false;
	return true;
}

static inline bool all(const char *p, size_t size, char value)
{
	for (size_t i = 0; i < size; i++)
		if (p[i] != value)
			return false;
	return true;
}

/* RDMA WRITE between two regions of this process. */
static inline void write_to(struct ibv_mr *to, void *dest, struct ibv_mr *from, void *src,
			    size_t size)
{
	struct ibv_sge sge = {(uintptr_t)src, (uint32_t)size, from->lkey};
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1}, *bad;
	struct ibv_wc wc;
	int n;
	wr.wr.rdma.remote_addr = (uintptr_t)dest;
	wr.wr.rdma.rkey = to->rkey;
	RETURNS(0, ibv_post_send(qp, &wr, &bad));
	while (!(n = ibv_poll_cq(s.cq, 1, &wc)))
		;
	REQUIRE(n == 1);
	CHECK(wc.status == IBV_WC_SUCCESS);
}

/* Writes from the first to the second half of a region and compares. */
static inline void transfer(struct ibv_mr *mr)
{
	static char seed;
	char *p = mr->addr;
	size_t half = mr->length / 2;
	fill(p, half, ++seed);
	memset(p + half, 0, half);
	write_to(mr, p + half, mr, p, half);
	CHECK(filled(p, half, seed));
	CHECK(filled(p + half, half, seed));
}

/* The region is registered, behaves as the daemon's access is expected, and is deregistered. */
static inline void use_as(void *p, size_t size, const char *how, int line)
{
	struct ibv_mr *mr = reg(p, size);
	expect_as(mr, how, line);
	transfer(mr);
	RETURNS(0, ibv_dereg_mr(mr));
}

#define USE(p, size, how) use_as(p, size, how, __LINE__)

/* Returns a line of /proc/self/status. */
static inline long status_kib(const char *name)
{
	char line[256];
	long value = -1;
	FILE *f = fopen("/proc/self/status", "r");
	REQUIRE(f);
	while (value < 0 && fgets(line, sizeof line, f))
		if (!strncmp(line, name, strlen(name)))
			value = strtol(line + strlen(name), NULL, 10);
	fclose(f);
	return value;
}

/* A second thread, which ends when the other end of the pipe is closed. */
static inline void *sleep_long(void *fd)
{
	char c;
	(void)!read(*(int *)fd, &c, 1);
	return NULL;
}

static inline void begin(void)
{
	limit_time(150);
	setup_open(&s);
	qp = loopback_qp(&s);
}

/* Returns the status of the program. */
static inline int end(void)
{
	RETURNS(0, ibv_destroy_qp(qp));
	setup_close(&s);
	return failures != 0;
}

#endif
