// SPDX-License-Identifier: Apache-2.0
/* Memory that is shared with the daemon, and that mremap extends. */
#include "shared_memory.h"

#include <stdarg.h>
#include <sys/syscall.h>

static void *remap_by_system_call(void *from, size_t old, size_t length, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	void *to = va_arg(args, void *);
	va_end(args);
	return (void *)syscall(SYS_mremap, from, old, length, flags, to);
}

typedef void *(*remap_t)(void *, size_t, size_t, int, ...);

/* Memory that was exchanged, and is registered or was before. */
static char *exchanged(size_t size, struct ibv_mr **mr)
{
	char *p = isolated(size);
	struct ibv_mr *own = reg(p, size);
	EXPECT(own, "mapped");
	if (mr)
		*mr = own;
	else
		RETURNS(0, ibv_dereg_mr(own));
	return p;
}

/* What mremap adds is zero, and not what a part had that was cut off. */
static void extends_with_zeros(remap_t remap, bool registered)
{
	enum {
		HALF = SIZE / 2
	};
	void *odd = (void *)1; /* an argument that only MREMAP_FIXED has */
	struct ibv_mr *mr = NULL;
	char *p = exchanged(SIZE, registered ? &mr : NULL);
	fill(p, SIZE, 3);
	REQUIRE(remap(p, SIZE, HALF, 0, odd) == p);
	errno = EBADMSG;
	char *q = remap(p, HALF - 1, SIZE - 1, MREMAP_MAYMOVE, odd);
	int kept = errno;
	REQUIRE(q != MAP_FAILED && kept == EBADMSG);
	CHECK(filled(q, HALF, 3) && all(q + HALF, HALF, 0));
	USE(q, SIZE, "mapped");
	/* Of memory that cannot be written, or is locked. */
	fill(q, SIZE, 4);
	REQUIRE(!mlock(q, SIZE) && !mprotect(q, SIZE, PROT_NONE));
	REQUIRE(remap(q, SIZE, HALF, 0) == q);
	REQUIRE((q = remap(q, HALF, SIZE, MREMAP_MAYMOVE, odd)) != MAP_FAILED);
	REQUIRE(!mprotect(q, SIZE, PROT_READ | PROT_WRITE) && !munlock(q, SIZE));
	CHECK(filled(q, HALF, 4) && all(q + HALF, HALF, 0));
	/* By more than is cleared. */
	REQUIRE((q = remap(q, SIZE, 1 << 30, MREMAP_MAYMOVE, odd)) != MAP_FAILED);
	CHECK(filled(q, HALF, 4) && all(q + HALF, SIZE, 0));
	if (registered)
		RETURNS(0, ibv_dereg_mr(mr));
	munmap(q, 1 << 30);
}

/* Nor is it a part that is elsewhere now: a part of the memory is extended. */
static void extends_parts(remap_t remap, bool registered)
{
	enum {
		HALF = SIZE / 2
	};
	struct ibv_mr *mr = NULL;
	char *p = exchanged(SIZE, registered ? &mr : NULL), *to = isolated(SIZE);
	fill(p, HALF, 1);
	fill(p + HALF, HALF, 2);
	FAILS(ENOMEM, remap(p, HALF, SIZE, 0) == MAP_FAILED);
	FAILS(EINVAL, remap(p, HALF, SIZE, MREMAP_FIXED, to) == MAP_FAILED);
	FAILS(EINVAL, remap(p, HALF, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, p + PAGE) == MAP_FAILED);
	FAILS(EINVAL, remap(p, HALF, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to + 1) == MAP_FAILED);
	char *front = remap(p, HALF, SIZE, MREMAP_MAYMOVE);
	REQUIRE(front != MAP_FAILED && front != p);
	CHECK(filled(front, HALF, 1) && all(front + HALF, HALF, 0));
	memset(front + HALF, 3, HALF);
	CHECK(filled(p + HALF, HALF, 2));
	USE(front, HALF, "mapped");
	USE(front, SIZE, "process kind"); /* two mappings */
	munmap(front + HALF, HALF);
	fill(front, HALF, 1);
	/* Without a move, since there is room now. */
	REQUIRE(remap(front, HALF, SIZE, 0) == front);
	CHECK(filled(front, HALF, 1) && all(front + HALF, HALF, 0));
	munmap(front + HALF, HALF);
	/* At an address that the program chooses. */
	REQUIRE(remap(front, HALF, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	CHECK(filled(to, HALF, 1) && all(to + HALF, HALF, 0) && filled(p + HALF, HALF, 2));
	if (registered)
		RETURNS(0, ibv_dereg_mr(mr));
	munmap(p + HALF, HALF);
	munmap(to, SIZE);
}

int main(void)
{
	begin();
	for (int i = 0; i < 4; i++) {
		remap_t remap = i & 1 ? remap_by_system_call : mremap;
		extends_with_zeros(remap, i & 2);
		extends_parts(remap, i & 2);
	}
	return end();
}
