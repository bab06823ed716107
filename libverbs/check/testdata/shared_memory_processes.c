// SPDX-License-Identifier: Apache-2.0
/* Registered memory that is shared with the daemon, and the processes that its program starts. */
#include "shared_memory.h"

#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

static void wait_for(int fd)
{
	char c;
	REQUIRE(read(fd, &c, 1) == 1);
}

/* What a child sees, while its parent goes on. */
static int child_of_fork(char *p, char *moved, int from_parent, int to_parent)
{
	CHECK(filled(p, SIZE / 2, 4));
	CHECK(all(p + SIZE / 2 + PAGE, PAGE, 6));
	CHECK(all(moved, PAGE, 8));
	wait_for(from_parent);
	CHECK(filled(p, SIZE / 2, 4));
	memset(p, 1, SIZE / 2);
	memset(moved, 1, PAGE);
	REQUIRE(write(to_parent, "", 1) == 1);
	return failures != 0;
}

static void forks(void)
{
	char *p = isolated(SIZE), *q = isolated(2 * PAGE);
	struct ibv_mr *mr = reg(p, SIZE), *other = reg(q, 2 * PAGE);
	int to_child[2], to_parent[2], status;
	EXPECT(mr, "mapped");
	EXPECT(other, "mapped");
	char *moved = mremap(q, 2 * PAGE, 3 * PAGE, MREMAP_MAYMOVE);
	REQUIRE(moved != MAP_FAILED);
	memset(moved, 8, 3 * PAGE);
	fill(p, SIZE / 2, 4);
	memset(p + SIZE / 2, 6, SIZE / 2);
	REQUIRE(!munmap(p + SIZE / 2, PAGE));
	REQUIRE(!mprotect(p + SIZE - PAGE, PAGE, PROT_NONE));
	REQUIRE(!mprotect(p + SIZE / 2 + PAGE, PAGE, PROT_READ));
	REQUIRE(!pipe(to_child) && !pipe(to_parent));
	pid_t pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		REQUIRE(mprotect(p + SIZE / 2, PAGE, PROT_READ) && errno == ENOMEM);
		REQUIRE(!mprotect(p + SIZE - PAGE, PAGE, PROT_READ));
		CHECK(all(p + SIZE - PAGE, PAGE, 6));
		_exit(child_of_fork(p, moved, to_child[0], to_parent[1]));
	}
	write_to(mr, p, mr, p + PAGE, PAGE); /* RDMA, and the processor */
	memset(p + PAGE, 2, PAGE);
	REQUIRE(write(to_child[1], "", 1) == 1);
	wait_for(to_parent[0]);
	REQUIRE(waitpid(pid, &status, 0) == pid);
	CHECK(!status);
	CHECK(all(p + PAGE, PAGE, 2));
	CHECK(all(moved, PAGE, 8));
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_dereg_mr(other));
	for (int i = 0; i < 2; i++)
		close(to_child[i]), close(to_parent[i]);
	munmap(p, SIZE);
	munmap(moved, 3 * PAGE);
}

static void vforks_and_spawns(void)
{
	char *p = anonymous(SIZE), *args[] = {"true", NULL};
	struct ibv_mr *mr = reg(p, SIZE);
	pid_t pid;
	int status;
	EXPECT(mr, "mapped");
	REQUIRE(!posix_spawnp(&pid, "true", NULL, NULL, args, environ));
	REQUIRE(waitpid(pid, &status, 0) == pid && !status);
	CHECK(!system("true"));
	FILE *output = popen("echo done", "r");
	char line[8];
	CHECK(output && fgets(line, sizeof line, output) && !pclose(output));
	transfer(mr);
	RETURNS(0, ibv_dereg_mr(mr));
	munmap(p, SIZE);
}

/* Without the handlers of pthread_atfork a child shares the memory. */
static void shares_without_handlers(void)
{
	int status;
	char *p = isolated(SIZE);
	struct ibv_mr *mr = reg(p, SIZE);
	EXPECT(mr, "mapped");
	memset(p, 1, SIZE);
	pid_t pid = _Fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		*(volatile char *)p = 2;
		_exit(0);
	}
	REQUIRE(waitpid(pid, &status, 0) == pid);
	CHECK(!status && p[0] == 2 && p[1] == 1);
	RETURNS(0, ibv_dereg_mr(mr));
	munmap(p, SIZE);
}

/* A child opens the device and registers memory of its own. */
static void child_registers(void)
{
	int status;
	char *p = anonymous(SIZE);
	struct ibv_mr *mr = reg(p, SIZE);
	EXPECT(mr, "mapped");
	fill(p, SIZE, 1);
	pid_t pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		memset(&s, 0, sizeof s);
		setup_open(&s);
		qp = loopback_qp(&s);
		char *copy = isolated(SIZE);
		struct ibv_mr *own = reg(p, SIZE), *new = reg(copy, SIZE);
		EXPECT(own, "mapped");
		transfer(own);
		transfer(new);
		_exit(failures != 0);
	}
	REQUIRE(waitpid(pid, &status, 0) == pid);
	CHECK(!status);
	CHECK(filled(p, SIZE, 1));
	RETURNS(0, ibv_dereg_mr(mr));
	munmap(p, SIZE);
}

/*
 * An allocator whose lock a fork takes after the library's handler has run, as it takes the lock of
 * the C library's. A library that overwrites the code of mmap makes that one call syscall.
 */
static pthread_mutex_t allocator = PTHREAD_MUTEX_INITIALIZER;

static void lock_allocator(void)
{
	pthread_mutex_lock(&allocator);
}

static void unlock_allocator(void)
{
	pthread_mutex_unlock(&allocator);
}

/* Before the library's handlers are registered. */
static void watch_forks(void)
{
	pthread_atfork(lock_allocator, unlock_allocator, unlock_allocator);
}

__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = watch_forks;

static atomic_bool stop;

static void *allocate(void *arg)
{
	const long length = 256 << 10;
	(void)arg;
	for (char n = 1; !stop; n++) {
		lock_allocator();
		char *p = (char *)syscall(SYS_mmap, NULL, length, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
		REQUIRE(p != MAP_FAILED);
		memset(p, n, PAGE);
		CHECK(all(p, PAGE, n) && all(p + PAGE, PAGE, 0));
		CHECK(!syscall(SYS_madvise, p, PAGE, MADV_DONTNEED) && all(p, PAGE, 0));
		CHECK(!syscall(SYS_munmap, p, length));
		unlock_allocator();
	}
	return NULL;
}

static void forks_beside_an_allocator(void)
{
	pthread_t t;
	REQUIRE(!pthread_create(&t, NULL, allocate, NULL));
	for (int i = 0; i < 200; i++) {
		int status;
		pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (!pid)
			_exit(0);
		REQUIRE(waitpid(pid, &status, 0) == pid);
		CHECK(!status);
	}
	stop = true;
	REQUIRE(!pthread_join(t, NULL));
}

int main(void)
{
	begin();
	forks();
	vforks_and_spawns();
	shares_without_handlers();
	child_registers();
	forks_beside_an_allocator();
	return end();
}
