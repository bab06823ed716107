// SPDX-License-Identifier: Apache-2.0
/* Memory that is shared with the daemon from its allocation on. */
#include "shared_memory.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/*
 * Allocations of whole pages are shared from the start, also in a program with threads, unless a
 * sanitizer allocates.
 */
static void shares_aligned_allocations(void)
{
	int fds[2];
	pthread_t t;
	void *p[7], *small, *large;
	REQUIRE(!pipe(fds) && !pthread_create(&t, NULL, sleep_long, &fds[0]));
	REQUIRE(!posix_memalign(&p[0], PAGE, PAGE));
	REQUIRE((p[1] = aligned_alloc(4 * PAGE, 4 * PAGE)) && (p[2] = memalign(2 << 20, SIZE)));
	REQUIRE((p[3] = valloc(3 * PAGE + 1)) && (p[4] = pvalloc(1 + PAGE)));
	REQUIRE((p[5] = memalign(PAGE, 16 << 20)) && (p[6] = memalign(PAGE, 64 << 20)));
	const size_t size[] = {PAGE, 4 * PAGE, SIZE, 3 * PAGE + 1, 2 * PAGE, 16 << 20, 64 << 20};
	CHECK((uintptr_t)p[1] % (4 * PAGE) == 0 && (uintptr_t)p[2] % (2 << 20) == 0);
	for (int i = 0; i < 7; i++) {
		CHECK((uintptr_t)p[i] % PAGE == 0 && malloc_usable_size(p[i]) >= size[i]);
		fill(p[i], size[i], (unsigned int)i);
		for (int j = 0; j < i; j++)
			CHECK((char *)p[i] + size[i] <= (char *)p[j] ||
			      (char *)p[j] + size[j] <= (char *)p[i]);
	}
	for (int i = 0; i < 7; i++) {
		CHECK(filled(p[i], size[i], (unsigned int)i));
		USE(p[i], size[i], "mapped");
	}
	/* What was registered does not serve another allocation: its region would show that. */
	void *q = memalign(PAGE, 2 * PAGE), *r;
	REQUIRE(q);
	struct ibv_mr *mr = reg(q, 2 * PAGE);
	EXPECT(mr, "mapped");
	free(q);
	REQUIRE((r = memalign(PAGE, 2 * PAGE)));
	USE(r, 2 * PAGE, "mapped");
	RETURNS(0, ibv_dereg_mr(mr));
	free(r);
	/* Resizing keeps the contents. */
	fill(p[2], SIZE, 7);
	REQUIRE((p[2] = realloc(p[2], 2 * SIZE)));
	CHECK(filled(p[2], SIZE, 7));
	REQUIRE((p[2] = realloc(p[2], PAGE)));
	CHECK(filled(p[2], PAGE, 7));
	fill(p[3], 3 * PAGE, 8);
	REQUIRE((p[3] = realloc(p[3], PAGE)));
	CHECK(filled(p[3], PAGE, 8));
	for (int i = 0; i < 7; i++)
		free(p[i]);
	/* What the C library allocates. */
	REQUIRE(!posix_memalign(&small, PAGE, 100) && (large = memalign(PAGE, 65 << 20)));
	USE(small, 100, "process kind");
	USE(large, 65 << 20, "process threads");
	free(small);
	free(large);
	FAILS(EINVAL, (errno = posix_memalign(&small, 3, PAGE)) != 0);
	volatile size_t too_large = SIZE_MAX - PAGE;
	CHECK(!memalign(PAGE, too_large));
	/* More of them than there are descriptors for. */
	void *many[100];
	for (int i = 0; i < 100; i++) {
		REQUIRE((many[i] = valloc(PAGE)));
		memset(many[i], i, PAGE);
	}
	for (int i = 0; i < 100; i++) {
		CHECK(all(many[i], PAGE, (char)i));
		errno = EBADMSG;
		free(many[i]);
		int kept = errno;
		CHECK(kept == EBADMSG);
	}
	close(fds[1]);
	REQUIRE(!pthread_join(t, NULL));
	close(fds[0]);
}

/* Replaces the C library's, as UCX does, which deregisters what is unmapped. */
static void *volatile unmapped; /* free is known to the compiler */
static int (*next_munmap)(void *, size_t);

int munmap(void *address, size_t length)
{
	if (!next_munmap)
		next_munmap = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "munmap");
	unmapped = address;
	return next_munmap(address, length);
}

/* What replaces munmap sees that the memory of an allocation is unmapped. */
static void unmaps_allocations_with_munmap(void)
{
	char *p = memalign(PAGE, SIZE);
	REQUIRE(p);
	struct ibv_mr *mr = reg(p, SIZE);
	EXPECT(mr, "mapped");
	RETURNS(0, ibv_dereg_mr(mr));
	unmapped = NULL;
	free(p);
	CHECK(unmapped == p);
	p = memalign(PAGE, 17 << 20);
	REQUIRE(p);
	free(p);
	CHECK(unmapped == p);
}

static int open_memfds(void)
{
	char path[40], name[64];
	int n = 0;
	for (int fd = 0; fd < 1024; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t length = readlink(path, name, sizeof name - 1);
		name[length > 0 ? length : 0] = 0;
		n += !strncmp(name, "/memfd:softroce-memory", 22);
	}
	return n;
}

/* Large allocations are shared after the NIC was opened, up to 1 GiB. */
static void shares_no_large_allocation(void)
{
	int before = open_memfds();
	char *p = memalign(PAGE, 16 << 20), *q = memalign(PAGE, 17 << 20);
	REQUIRE(p && q);
	CHECK(open_memfds() == before + 1);
	free(p);
	free(q);
}

static void shares_limited_allocations(void)
{
	char *p[18];
	int before = open_memfds();
	for (int i = 0; i < 18; i++)
		REQUIRE((p[i] = memalign(PAGE, 64 << 20)));
	int shared = open_memfds() - before;
	CHECK(shared == 15 || shared == 16); /* freed memory may be kept */
	for (int i = 0; i < 18; i++)
		free(p[i]);
	CHECK(open_memfds() == before);
}

/* So is what is mapped after the NIC was opened, by mmap and of a usual kind. */
static void shares_anonymous_mappings(void)
{
	enum {
		LENGTH = 256 << 10
	};
	int fds[2], before = open_memfds();
	pthread_t t;
	REQUIRE(!pipe(fds) && !pthread_create(&t, NULL, sleep_long, &fds[0]));
	char *p = anonymous(LENGTH), *q = anonymous(LENGTH);
	CHECK(open_memfds() == before + 2);
	CHECK(all(p, LENGTH, 0));
	fill(p, LENGTH, 1);
	fill(q, LENGTH, 2);
	CHECK(filled(p, LENGTH, 1) && filled(q, LENGTH, 2));
	USE(p + PAGE, LENGTH - 2 * PAGE, "mapped");
	/* Advice, protection, moves, and a part that is unmapped. */
	fill(q, LENGTH, 3);
	CHECK(!madvise(q, PAGE, MADV_DONTNEED) && all(q, PAGE, 0));
	CHECK(!mprotect(q, PAGE, PROT_READ) && !mprotect(q, PAGE, PROT_READ | PROT_WRITE));
	CHECK(!munmap(q, PAGE));
	CHECK(open_memfds() >= before + 1);
	char *moved = mremap(q + PAGE, LENGTH - PAGE, 2 * LENGTH, MREMAP_MAYMOVE);
	REQUIRE(moved != MAP_FAILED);
	memset(moved + LENGTH, 5, LENGTH);
	/* What is added is zero, also of a file that the daemon has not sealed. */
	REQUIRE(mremap(moved, 2 * LENGTH, LENGTH, 0) == moved);
	moved = mremap(moved, LENGTH, 2 * LENGTH, MREMAP_MAYMOVE);
	REQUIRE(moved != MAP_FAILED);
	CHECK(!all(moved, LENGTH, 0) && all(moved + LENGTH, LENGTH, 0));
	USE(moved, 2 * LENGTH, "mapped");
	CHECK(!munmap(moved, 2 * LENGTH) && !munmap(p, LENGTH));
	/* The munmap closes the descriptor. */
	p = anonymous(LENGTH);
	CHECK(open_memfds() == before + 1);
	errno = EBADMSG;
	int failed = munmap(p, LENGTH), kept = errno;
	CHECK(!failed && kept == EBADMSG);
	CHECK(open_memfds() == before);
	p = anonymous(LENGTH);
	/* It stays registered when it is unmapped. */
	struct ibv_mr *mr = reg(p, LENGTH);
	EXPECT(mr, "mapped");
	CHECK(!munmap(p, LENGTH) && open_memfds() == before);
	RETURNS(0, ibv_dereg_mr(mr));
	/* Other mappings are what the program has asked for. */
	const struct {
		int protection, flags;
		size_t length;
	} other[] = {
		{PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, 32 << 10},
		{PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, 65 << 20},
		{PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, LENGTH},
		{PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, LENGTH},
		{PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, LENGTH},
		{PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, LENGTH},
		{PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, LENGTH},
	};
	for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
		p = mmap(NULL, other[i].length, other[i].protection, other[i].flags, -1, 0);
		CHECK(p != MAP_FAILED && open_memfds() == before);
		CHECK(!munmap(p, other[i].length));
	}
	CHECK(mmap(NULL, 0, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
		      MAP_FAILED &&
	      errno == EINVAL);
	/* More of them than there are descriptors for. */
	char *many[50];
	for (int i = 0; i < 50; i++)
		memset(many[i] = anonymous(LENGTH), i, LENGTH);
	CHECK(open_memfds() == before + 32);
	for (int i = 0; i < 50; i++) {
		CHECK(all(many[i], LENGTH, (char)i));
		munmap(many[i], LENGTH);
	}
	CHECK(open_memfds() == before);
	close(fds[1]);
	REQUIRE(!pthread_join(t, NULL));
	close(fds[0]);
}

/* So is what is mapped by the function for system calls, as UCX does for all of the program. */
static void shares_mappings_by_system_calls(void)
{
	enum {
		LENGTH = 256 << 10
	};
	int fds[2], before = open_memfds();
	pthread_t t;
	REQUIRE(!pipe(fds) && !pthread_create(&t, NULL, sleep_long, &fds[0]));
	errno = EBADMSG;
	char *p = (char *)syscall(SYS_mmap, NULL, LENGTH, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
	int kept = errno;
	REQUIRE(p != MAP_FAILED && kept == EBADMSG);
	CHECK(open_memfds() == before + 1 && all(p, LENGTH, 0));
	fill(p, LENGTH, 1);
	USE(p + PAGE, LENGTH - 2 * PAGE, "mapped");
	fill(p, LENGTH, 2);
	errno = EBADMSG;
	int failed = syscall(SYS_madvise, p, PAGE, MADV_DONTNEED) != 0;
	kept = errno;
	CHECK(!failed && kept == EBADMSG && all(p, PAGE, 0));
	FAILS(EINVAL, syscall(SYS_madvise, p + 1, PAGE, MADV_DONTNEED));
	CHECK(!syscall(SYS_munmap, p, LENGTH) && open_memfds() == before);
	FAILS(EINVAL, syscall(SYS_munmap, p + 1, LENGTH));
	/* All arguments of other calls arrive, and so does what they return. */
	FAILS(ENODEV, syscall(SYS_mmap, NULL, LENGTH, PROT_READ, MAP_PRIVATE, fds[0], 0L));
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	char *first = (char *)syscall(SYS_mmap, NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE, file, 0L);
	char *second =
		(char *)syscall(SYS_mmap, NULL, PAGE, PROT_READ, MAP_PRIVATE, file, (long)PAGE);
	REQUIRE(first != MAP_FAILED && second != MAP_FAILED);
	CHECK(!memcmp(first + PAGE, second, PAGE));
	CHECK(!syscall(SYS_munmap, first, 2 * PAGE) && !syscall(SYS_munmap, second, PAGE));
	close(file);
	FAILS(ENOSYS, syscall(-1, 1L, 2L, 3L, 4L, 5L, 6L));
	CHECK(syscall(SYS_getpid) == getpid());
	close(fds[1]);
	REQUIRE(!pthread_join(t, NULL));
	close(fds[0]);
}

#ifdef __x86_64__
/*
 * With fewer arguments than six, the function for system calls writes nothing above its return
 * address: there are variables of the caller, here in a page that cannot be written.
 */
static void writes_nothing_of_its_caller(void)
{
	enum {
		STACK = 16 * PAGE
	};
	char *stack = anonymous(STACK + PAGE);
	REQUIRE(!mprotect(stack + STACK, PAGE, PROT_READ));
	const long numbers[] = {SYS_getpid, SYS_munmap, SYS_madvise};
	for (int i = 0; i < 3; i++) {
		long result = numbers[i];
		long (*call)(long, ...) = syscall;
		__asm__ volatile("mov %%rsp, %%rbx\n\t"
				 "mov %[top], %%rsp\n\t"
				 "xor %%edi, %%edi\n\t"
				 "xchg %%rax, %%rdi\n\t"
				 "mov $1, %%esi\n\t" /* an invalid address */
				 "mov $1, %%edx\n\t"
				 "mov $4, %%ecx\n\t"
				 "call *%[call]\n\t"
				 "mov %%rbx, %%rsp"
				 : "+a"(result)
				 : [top] "r"(stack + STACK), [call] "r"(call)
				 : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11",
				   "cc", "memory");
		CHECK(result == (i ? -1 : getpid()));
	}
	CHECK(!munmap(stack, STACK + PAGE));
}
#else
static void writes_nothing_of_its_caller(void)
{
} /* all arguments are in registers */
#endif

/* A child has copies of all of it, registered or not, and allocates on its own. */
static void gives_children_copies_of_allocations(void)
{
	char *p = memalign(PAGE, 2 * PAGE), *q = memalign(PAGE, SIZE), *m = anonymous(1 << 20);
	REQUIRE(p && q);
	fill(m, 1 << 20, 5);
	fill(p, 2 * PAGE, 1);
	fill(q, SIZE, 2);
	struct ibv_mr *mr = reg(p, 2 * PAGE);
	int status;
	pid_t pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		CHECK(filled(p, 2 * PAGE, 1) && filled(q, SIZE, 2));
		CHECK(filled(m, 1 << 20, 5));
		memset(m, 6, 1 << 20);
		memset(p, 3, 2 * PAGE);
		free(p);
		free(q);
		CHECK(!munmap(m, 1 << 20));
		char *r = memalign(PAGE, SIZE);
		REQUIRE(r);
		memset(r, 4, SIZE);
		_exit(failures != 0);
	}
	REQUIRE(waitpid(pid, &status, 0) == pid);
	CHECK(!status);
	CHECK(filled(p, 2 * PAGE, 1) && filled(q, SIZE, 2) && filled(m, 1 << 20, 5));
	transfer(mr);
	RETURNS(0, ibv_dereg_mr(mr));
	free(p);
	free(q);
	munmap(m, 1 << 20);
}

int main(void)
{
	if (!sanitized)
		shares_no_large_allocation();
	begin();
	if (!sanitized) {
		shares_limited_allocations();
		shares_aligned_allocations();
		unmaps_allocations_with_munmap();
		shares_anonymous_mappings();
		shares_mappings_by_system_calls();
		writes_nothing_of_its_caller();
	}
	gives_children_copies_of_allocations();
	return end();
}
