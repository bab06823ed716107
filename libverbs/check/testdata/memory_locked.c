// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that is shared with the daemon, of a program without CAP_IPC_LOCK: it may lock as much as
 * RLIMIT_MEMLOCK says, and all calls succeed that would with private memory.
 */
#include "shared_memory.h"

#include <linux/capability.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

enum {
	MIB = 1 << 20,
	LARGE = 32 * MIB
};

static void drop_capability(void)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2];
	REQUIRE(!syscall(SYS_capget, &header, data));
	data[0].effective &= ~(1U << CAP_IPC_LOCK);
	data[0].permitted &= ~(1U << CAP_IPC_LOCK);
	REQUIRE(!syscall(SYS_capset, &header, data));
}

static void limit_locked(size_t size)
{
	struct rlimit limit;
	REQUIRE(!getrlimit(RLIMIT_MEMLOCK, &limit));
	limit.rlim_cur = size;
	REQUIRE(!setrlimit(RLIMIT_MEMLOCK, &limit));
}

/* As locked memory is counted, what a region needs does not matter. */
static void locks_up_to_the_limit(void)
{
	char *p[] = {memalign(PAGE, SIZE), anonymous(SIZE), isolated(SIZE)};
	limit_locked(SIZE / 4);
	for (int i = 0; i < 3; i++) {
		struct ibv_mr *mr = reg(p[i], SIZE);
		EXPECT(mr, "mapped");
		FAILS(ENOMEM, mlock(p[i], SIZE) == -1);
		CHECK(!mlock(p[i], SIZE / 4) && status_kib("VmLck:") == SIZE / 4 >> 10);
		FAILS(ENOMEM, mlock(p[i] + SIZE / 2, PAGE) == -1);
		transfer(mr);
		FAILS(EINVAL, madvise(p[i], PAGE, MADV_DONTNEED) == -1);
		fill(p[i], 2 * PAGE, 1);
		CHECK(!madvise(p[i], PAGE, MADV_DONTNEED_LOCKED) && all(p[i], PAGE, 0));
		CHECK(!all(p[i] + PAGE, PAGE, 0));
		CHECK(!munlock(p[i], SIZE / 4));
		RETURNS(0, ibv_dereg_mr(mr));
		/* It stays locked when it is registered again. */
		CHECK(!mlock(p[i], SIZE / 4));
		USE(p[i], SIZE / 4, "process flags");
		CHECK(status_kib("VmLck:") == SIZE / 4 >> 10 && !munlock(p[i], SIZE / 4));
	}
	free(p[0]);
	munmap(p[1], SIZE);
	munmap(p[2], SIZE);
	/* Freed memory does not count. */
	limit_locked(MIB);
	for (size_t i = 1; i < 20; i++) {
		char *q = memalign(PAGE, MIB - i * PAGE);
		REQUIRE(q);
		CHECK(!mlock(q + (i % 2 ? PAGE : 0), MIB - (i + 1) * PAGE));
		free(q);
	}
	CHECK(!status_kib("VmLck:"));
}

/* A child does not see what its parent writes after the fork, and the other way round. */
static void forks_with(char *p, size_t size)
{
	int status;
	fill(p, size, 1);
	pid_t pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		CHECK(filled(p, size, 1));
		memset(p, 2, size);
		_exit(failures != 0);
	}
	memset(p + size / 2, 3, size / 2);
	REQUIRE(waitpid(pid, &status, 0) == pid);
	CHECK(!status && filled(p, size / 2, 1) && all(p + size / 2, size / 2, 3));
}

/* As programs do for low latency. What they allocate then is locked, too. */
static void locks_all(int flags, const char *of_3_mib)
{
	char *before = memalign(PAGE, LARGE), *other = isolated(MIB);
	REQUIRE(before);
	struct ibv_mr *mr = reg(before, LARGE);
	EXPECT(mr, "mapped");
	REQUIRE(!mlockall(flags));
	long locked = status_kib("VmLck:");
	USE(other, MIB, flags & MCL_CURRENT ? "process flags" : "mapped");
	CHECK(status_kib("VmLck:") == locked);
	char *p[] = {memalign(PAGE, MIB), anonymous(MIB), anonymous(3 * MIB)};
	REQUIRE(p[0]);
	USE(p[0], MIB, "mapped");
	USE(p[1], MIB, "mapped");
	USE(p[2], 3 * MIB, of_3_mib);
	forks_with(before, LARGE);
	forks_with(p[0], MIB);
	forks_with(p[1], MIB);
	transfer(mr);
	RETURNS(0, ibv_dereg_mr(mr));
	free(before);
	free(p[0]);
	munmap(other, MIB);
	munmap(p[1], MIB);
	munmap(p[2], 3 * MIB);
	REQUIRE(!munlockall());
}

int main(void)
{
	begin();
	locks_all(MCL_CURRENT | MCL_FUTURE, "mapped");
	drop_capability();
	locks_up_to_the_limit();
	/* To map a memfd in place of other memory, the kernel wants room for both. */
	limit_locked(6 * MIB);
	locks_all(MCL_FUTURE, "process flags");
	return end();
}
