// SPDX-License-Identifier: Apache-2.0
/*
 * Registered memory that is shared with the daemon: what the program sees of it, and which memory
 * is not shared.
 */
#include "shared_memory.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

static void shares_private_memory(void)
{
	char *p = aligned_alloc(PAGE, SIZE), *q = anonymous(SIZE), *m = malloc(1 << 20);
	REQUIRE(p && m);
	fill(p, SIZE, 1);
	struct ibv_mr *mr = reg(p, SIZE), *part = reg(p + 100, SIZE / 2);
	EXPECT(mr, "mapped");
	EXPECT(part, "mapped");
	CHECK(filled(p, SIZE, 1));
	transfer(mr);
	transfer(part);
	RETURNS(0, ibv_dereg_mr(part));
	RETURNS(0, ibv_dereg_mr(mr));
	USE(p, SIZE, "mapped"); /* again */
	USE(q, SIZE, "mapped");
	USE(m, 1 << 20, sanitized ? "process kind" : "mapped");
	m = realloc(m, 9 << 20);
	REQUIRE(m);
	memset(m, 7, 9 << 20);
	USE(m, 9 << 20, sanitized ? "process kind" : "mapped");
	free(p);
	free(m);
	munmap(q, SIZE);
}

static void reregisters(void)
{
	char *p = anonymous(SIZE), *q = anonymous(SIZE);
	struct ibv_mr *mr = reg(p, SIZE);
	EXPECT(mr, "mapped");
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, q, SIZE, 0));
	EXPECT(mr, "mapped");
	transfer(mr);
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
			    ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC));
	EXPECT(mr, "mapped");
	transfer(mr);
	RETURNS(0, ibv_dereg_mr(mr));
	munmap(p, SIZE);
	munmap(q, SIZE);
}

/* Memory that was exchanged, is unmapped, and belongs to something else now. */
static void follows_mappings(void)
{
	char *p = isolated(SIZE);
	struct ibv_mr *mr = reg(p, SIZE);
	EXPECT(mr, "mapped");
	RETURNS(0, ibv_dereg_mr(mr));
	REQUIRE(!munmap(p + SIZE / 4, SIZE / 4));
	REQUIRE(mmap(p + SIZE / 4, SIZE / 4, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + SIZE / 4);
	USE(p + SIZE / 4, SIZE / 4, "mapped");
	USE(p, SIZE / 4, "mapped");
	USE(p, SIZE, "process kind"); /* three mappings */
	char *q = mremap(p + SIZE / 2, SIZE / 2, 4 * SIZE, MREMAP_MAYMOVE);
	REQUIRE(q != MAP_FAILED);
	CHECK(all(q + SIZE / 2, 3 * SIZE + SIZE / 2, 0));
	memset(q, 5, 4 * SIZE);
	USE(q, 4 * SIZE, "mapped");
	REQUIRE(!mprotect(q, SIZE, PROT_READ));
	struct ibv_mr *read = ibv_reg_mr(s.pd, q, SIZE, 0);
	EXPECT(read, "process kind");
	RETURNS(0, ibv_dereg_mr(read));
	REQUIRE(!mprotect(q, SIZE, PROT_READ | PROT_WRITE));
	USE(q, 4 * SIZE, "mapped");
	munmap(q, 4 * SIZE);
}

static void advises(void)
{
	char *p = isolated(SIZE);
	struct ibv_mr *mr = reg(p, SIZE);
	EXPECT(mr, "mapped");
	for (int i = 0; i < 2; i++) {
		int advice = i ? MADV_DONTNEED_LOCKED : MADV_DONTNEED;
		fill(p, SIZE, 3);
		CHECK(!madvise(p + PAGE, PAGE + 1, advice));
		CHECK(filled(p, PAGE, 3));
		CHECK(all(p + PAGE, 2 * PAGE, 0));
		transfer(mr);
	}
	CHECK(!madvise(p, SIZE, MADV_FREE) && !all(p, PAGE, 0));
	FAILS(EINVAL, madvise(p, SIZE, MADV_WIPEONFORK) == -1);
	const int others[] = {MADV_NORMAL,   MADV_WILLNEED, MADV_HUGEPAGE,
			      MADV_DONTDUMP, MADV_DODUMP,   MADV_DONTFORK,
			      MADV_DOFORK,   MADV_COLD,	    MADV_MERGEABLE};
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		CHECK(!madvise(p, SIZE, others[i]));
	FAILS(EINVAL, madvise(p + 1, PAGE, MADV_DONTNEED) == -1);
	CHECK(!madvise(p, 0, MADV_DONTNEED));
	/* The kernel compares VmLck with RLIMIT_MEMLOCK. AddressSanitizer ignores mlock. */
	long locked = status_kib("VmLck:");
	CHECK(!mlock(p, SIZE));
	CHECK(status_kib("VmLck:") == locked + (sanitized ? 0 : SIZE >> 10));
	CHECK(!munlock(p, SIZE));
	transfer(mr);
	/* Other memory before and behind it, and none at all. */
	char *q = isolated(4 * PAGE), *behind = q + 2 * PAGE;
	struct ibv_mr *page = reg(q + PAGE, PAGE);
	EXPECT(page, "mapped");
	memset(q, 9, 4 * PAGE);
	CHECK(!madvise(q, 4 * PAGE, MADV_DONTNEED));
	CHECK(all(q, 4 * PAGE, 0));
	REQUIRE(!munmap(behind, PAGE));
	memset(q, 9, 2 * PAGE);
	FAILS(ENOMEM, madvise(q, 4 * PAGE, MADV_DONTNEED) == -1);
	CHECK(all(q, 2 * PAGE, 0));
	RETURNS(0, ibv_dereg_mr(page));
	RETURNS(0, ibv_dereg_mr(mr));
	munmap(p, SIZE);
}

/* Memory counts as shared, and all of a small region is there as soon as it is registered. */
static void counts_as_shared(void)
{
	enum {
		LARGE = 40 << 20 /* the kernel's counters are not exact */
	};
	char *p = isolated(LARGE);
	long before = status_kib("RssShmem:");
	struct ibv_mr *mr = reg(p, LARGE);
	EXPECT(mr, "mapped");
	CHECK(status_kib("RssShmem:") > before + (LARGE >> 11));
	RETURNS(0, ibv_dereg_mr(mr));
	munmap(p, LARGE);
}

/* Reads the line of the mapping that contains p, and that of its flags. */
static void read_mapping(const char *p, char mapping[512], char flags[512])
{
	char line[512];
	bool here = false;
	FILE *f = fopen("/proc/self/smaps", "r");
	REQUIRE(f);
	*flags = 0;
	while (!*flags && fgets(line, sizeof line, f)) {
		unsigned long start, end;
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
			here = start <= (uintptr_t)p && (uintptr_t)p < end;
			strcpy(mapping, line);
		} else if (here && !strncmp(line, "VmFlags:", 8)) {
			strcpy(flags, line);
		}
	}
	fclose(f);
	REQUIRE(*flags);
}

/* The default of coredump_filter has shared memory without a name, as this is: core_dump.c. */
static void is_an_inherited_memfd(void)
{
	char *p = anonymous(SIZE), mapping[512], flags[512];
	USE(p, SIZE, "mapped");
	read_mapping(p, mapping, flags);
	CHECK(strstr(mapping, " rw-s ") && strstr(mapping, " /memfd:softroce-memory (deleted)"));
	CHECK(!strstr(flags, " dd ") && !strstr(flags, " dc "));
	munmap(p, SIZE);
}

static void does_not_share_with_threads(void)
{
	char *p = anonymous(SIZE), *q = isolated(SIZE);
	int fds[2];
	pthread_t t;
	struct ibv_mr *mr = reg(p, SIZE);
	EXPECT(mr, "mapped");
	REQUIRE(!pipe(fds) && !pthread_create(&t, NULL, sleep_long, &fds[0]));
	USE(q, SIZE, "process threads");
	USE(p, SIZE, "mapped"); /* it is exchanged */
	USE(p + SIZE / 2, SIZE / 2, "mapped");
	RETURNS(0, ibv_dereg_mr(mr));
	USE(p, SIZE, "process threads");
	mr = reg(q, PAGE);
	EXPECT(mr, "process threads");
	close(fds[1]);
	REQUIRE(!pthread_join(t, NULL));
	close(fds[0]);
	USE(q, SIZE, "process kernel"); /* a WRITE to the first region could be lost */
	USE(q + PAGE, SIZE - PAGE, "mapped");
	RETURNS(0, ibv_dereg_mr(mr));
	munmap(p, SIZE);
	munmap(q, SIZE);
}

static void does_not_share_other_memory(void)
{
	static char data[3 * PAGE];
	char stack[2 * PAGE], *heap = sbrk(0), name[] = "/tmp/shared-memory-XXXXXX";
	USE(stack, sizeof stack, "process kind");
	USE(data + 100, 2 * PAGE, "process kind");
	REQUIRE(sbrk(4 * PAGE) == heap);
	heap = (char *)(((uintptr_t)heap + PAGE - 1) & -(uintptr_t)PAGE);
	USE(heap, 2 * PAGE, "process kind");
	int fd = mkstemp(name);
	REQUIRE(fd >= 0 && !unlink(name) && !ftruncate(fd, SIZE));
	for (int i = 0; i < 2; i++) {
		char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, i ? MAP_PRIVATE : MAP_SHARED, fd,
			       0);
		REQUIRE(p != MAP_FAILED);
		USE(p, SIZE, "process kind");
		munmap(p, SIZE);
	}
	close(fd);
	char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	REQUIRE(p != MAP_FAILED);
	USE(p, SIZE, "process kind");
	munmap(p, SIZE);
	p = isolated(SIZE);
	USE(p + 8, SIZE - 2 * PAGE, "process kind"); /* others may use the rest of its last page */
	struct ibv_mr *odp = ibv_reg_mr(s.pd, p, SIZE, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	EXPECT(odp, "process kind");
	RETURNS(0, ibv_dereg_mr(odp));
	munmap(p, SIZE);
}

static void does_not_share_with_flags(void)
{
	char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	REQUIRE(p != MAP_FAILED);
	USE(p, SIZE, "process flags");
	munmap(p, SIZE);
	const int advice[] = {MADV_DONTFORK, MADV_WIPEONFORK, MADV_DONTDUMP};
	for (size_t i = 0; i < sizeof advice / sizeof *advice; i++) {
		p = isolated(SIZE);
		REQUIRE(!madvise(p, SIZE, advice[i]));
		USE(p, SIZE, "process flags");
		munmap(p, SIZE);
	}
	p = isolated(SIZE);
	REQUIRE(!mlock(p, SIZE));
	USE(p, SIZE, sanitized ? "mapped" : "process flags");
	munmap(p, SIZE);
	p = isolated(2 * SIZE);
	REQUIRE(!madvise(p, 2 * SIZE, MADV_HUGEPAGE));
	USE(p, 2 * SIZE, "mapped");
	munmap(p, 2 * SIZE);
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	REQUIRE(fd >= 0 && !ioctl(fd, UFFDIO_API, &(struct uffdio_api){.api = UFFD_API}));
	p = isolated(SIZE);
	memset(p, 1, SIZE); /* no page fault remains */
	struct uffdio_register missing = {{(uintptr_t)p, SIZE}, UFFDIO_REGISTER_MODE_MISSING, 0};
	REQUIRE(!ioctl(fd, UFFDIO_REGISTER, &missing));
	USE(p, SIZE, "process flags");
	close(fd);
	munmap(p, SIZE);
}

/* Not every processor has protection keys. */
static void does_not_share_with_protection_key(void)
{
	int key = pkey_alloc(0, 0);
	if (key < 0) {
		LEFT_OUT("protection keys");
		return;
	}
	char *p = isolated(SIZE);
	REQUIRE(!pkey_mprotect(p, SIZE, PROT_READ | PROT_WRITE, key));
	USE(p, SIZE, "process flags");
	munmap(p, SIZE);
	REQUIRE(!pkey_free(key));
}

/* The daemon has sealed it for the first context. */
static void does_not_share_with_other_context(void)
{
	char *p = isolated(SIZE);
	struct setup other;
	struct ibv_mr *mr = reg(p, SIZE), *second;
	EXPECT(mr, "mapped");
	setup_open(&other);
	REQUIRE((second = ibv_reg_mr(other.pd, p + PAGE, PAGE, ALL_ACCESS)));
	EXPECT(second, "process refused");
	transfer(mr);
	RETURNS(0, ibv_dereg_mr(second));
	setup_close(&other);
	RETURNS(0, ibv_dereg_mr(mr));
	munmap(p, SIZE);
}

static void does_not_share_what_the_kernel_uses(void)
{
	aio_context_t aio = 0;
	char *p = isolated(SIZE);
	REQUIRE(!syscall(SYS_io_setup, 1, &aio));
	USE(p, SIZE, "process kernel");
	REQUIRE(!syscall(SYS_io_destroy, aio));
	USE(p, SIZE, "mapped");
	munmap(p, SIZE);

	struct io_uring_params params = {0};
	int fd = (int)syscall(SYS_io_uring_setup, 1, &params);
	if (fd < 0) {
		LEFT_OUT("io_uring");
		return;
	}
	void *ring = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, IORING_OFF_SQ_RING);
	REQUIRE(ring != MAP_FAILED);
	p = isolated(SIZE);
	USE(p, SIZE, "process kernel");
	munmap(ring, PAGE);
	close(fd);
	USE(p, SIZE, "mapped");
	munmap(p, SIZE);
}

static void does_not_exceed_limits(void)
{
	struct rlimit old, none;
	char *p = isolated(SIZE);
	REQUIRE(!getrlimit(RLIMIT_FSIZE, &old));
	none = old;
	none.rlim_cur = 1 << 20;
	REQUIRE(!setrlimit(RLIMIT_FSIZE, &none));
	USE(p, SIZE, "process limit");
	REQUIRE(!setrlimit(RLIMIT_FSIZE, &old));
	USE(p, SIZE, "mapped");
	munmap(p, SIZE);

	enum {
		MANY = 150,
		UNUSED = 8, /* allocations that were freed */
		MOST = 128
	};
	struct ibv_mr *mr[MANY];
	char *q = isolated((size_t)MANY * PAGE);
	for (int i = 0; i < MANY; i++) {
		mr[i] = reg(q + (size_t)i * PAGE, PAGE);
		REQUIRE(mr[i]);
	}
	EXPECT(mr[MOST - UNUSED - 1], "mapped");
	EXPECT(mr[MOST], "process limit");
	transfer(mr[MOST - UNUSED - 1]);
	transfer(mr[MOST]);
	for (int i = 0; i < MANY; i++)
		RETURNS(0, ibv_dereg_mr(mr[i]));
	munmap(q, (size_t)MANY * PAGE);
}

static int count_descriptors(void)
{
	int n = 0;
	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* How many pages of 1 GiB the process or another one has. */
static size_t pages_of(char *p)
{
	static unsigned char in_core[(1 << 30) / PAGE];
	size_t n = 0;
	REQUIRE(!mincore(p, (size_t)1 << 30, in_core));
	for (size_t i = 0; i < sizeof in_core; i++)
		n += in_core[i] & 1;
	return n;
}

/* Memory that is not registered any more is not kept. */
static void releases_memory(void)
{
	enum {
		LARGE = 40 << 20
	};
	int before = 0;
	for (int i = 0; i < 4; i++) {
		char *p = isolated(LARGE);
		memset(p, i, LARGE);
		USE(p, LARGE, "mapped");
		munmap(p, LARGE);
		if (i == 1)
			before = count_descriptors();
	}
	CHECK(count_descriptors() <= before);
	char *sparse = isolated((size_t)1 << 30);
	sparse[12345678] = 5;
	struct ibv_mr *mr = reg(sparse, (size_t)1 << 30);
	EXPECT(mr, "mapped");
	CHECK(sparse[12345678] == 5 && !sparse[0]);
	write_to(mr, sparse + 500000000, mr, sparse + 12345000, 1000);
	CHECK(sparse[500000678] == 5);
	CHECK(!madvise(sparse, (size_t)1 << 30, MADV_DONTNEED));
	CHECK(!sparse[12345678] && !sparse[500000678]);
	CHECK(pages_of(sparse) < 1000);
	RETURNS(0, ibv_dereg_mr(mr));
	munmap(sparse, (size_t)1 << 30);
}

/* The program closes descriptors that it does not know, and opens files under their numbers. */
static void survives_closed_descriptors(void)
{
	char *p = isolated(SIZE), path[64], name[64];
	struct ibv_mr *mr = reg(p, SIZE);
	EXPECT(mr, "mapped");
	int null = open("/dev/null", O_RDONLY);
	REQUIRE(null >= 0);
	for (int fd = 3; fd < 1024; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(path, name, sizeof name - 1);
		if (n > 0 && (name[n] = 0, strstr(name, "softroce-memory")))
			REQUIRE(dup2(null, fd) == fd);
	}
	int open_before = count_descriptors();
	fill(p, SIZE, 5);
	struct ibv_mr *again = reg(p, SIZE);
	EXPECT(again, "mapped"); /* exchanged once more */
	CHECK(count_descriptors() == open_before + 1);
	CHECK(filled(p, SIZE, 5));
	transfer(again);
	RETURNS(0, ibv_dereg_mr(again));
	RETURNS(0, ibv_dereg_mr(mr));
	CHECK(count_descriptors() == open_before);
	munmap(p, SIZE);
}

/* Without a descriptor: memory is not shared, and a child copies for itself. */
static void survives_exhausted_descriptors(void)
{
	struct rlimit old, few;
	int fds[1024], n = 0, status;
	char *p = isolated(SIZE), *q = isolated(SIZE);
	struct ibv_mr *mr = reg(p, SIZE);
	EXPECT(mr, "mapped");
	fill(p, SIZE, 2);
	REQUIRE(!getrlimit(RLIMIT_NOFILE, &old));
	few = old;
	few.rlim_cur = 200;
	REQUIRE(!setrlimit(RLIMIT_NOFILE, &few));
	while (n < 1024 && (fds[n] = dup(0)) >= 0)
		n++;
	USE(q, SIZE, "process limit");
	FAILS(EAGAIN, madvise(p, PAGE, MADV_DONTNEED) == -1);
	pid_t pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		bool same = filled(p, SIZE, 2);
		memset(p, 1, SIZE);
		_exit(!same);
	}
	REQUIRE(waitpid(pid, &status, 0) == pid);
	CHECK(!status && filled(p, SIZE, 2));
	while (n)
		close(fds[--n]);
	REQUIRE(!setrlimit(RLIMIT_NOFILE, &old));
	RETURNS(0, ibv_dereg_mr(mr));
	munmap(p, SIZE);
	munmap(q, SIZE);
}

int main(void)
{
	begin();
	shares_private_memory();
	reregisters();
	follows_mappings();
	advises();
	counts_as_shared();
	is_an_inherited_memfd();
	does_not_share_with_threads();
	does_not_share_other_memory();
	does_not_share_with_flags();
	does_not_share_with_protection_key();
	does_not_share_with_other_context();
	does_not_share_what_the_kernel_uses();
	does_not_exceed_limits();
	releases_memory();
	survives_closed_descriptors();
	survives_exhausted_descriptors();
	return end();
}
