// SPDX-License-Identifier: Apache-2.0
/* Transparent huge pages of memory that is shared with the daemon. */
#include "shared_memory.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum {
	HUGE = 2 << 20,
	LENGTH = 2 * HUGE
};

/* Returns what smaps says of the mapping that contains p: a size in KiB, or the flags as text. */
static long of_smaps(const char *p, const char *name, char text[512])
{
	char line[512];
	bool here = false, found = false;
	FILE *f = fopen("/proc/self/smaps", "r");
	REQUIRE(f);
	while (!found && fgets(line, sizeof line, f)) {
		unsigned long start, end;
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			here = start <= (uintptr_t)p && (uintptr_t)p < end;
		else
			found = here && !strncmp(line, name, strlen(name));
	}
	fclose(f);
	REQUIRE(found);
	strcpy(text, line + strlen(name));
	return strtol(text, NULL, 10);
}

/* Reports whether the kernel's setting, the word in brackets, is one of these. */
static bool setting_is(const char *name, const char *one, const char *other)
{
	char path[100], line[100] = "";
	snprintf(path, sizeof path, "/sys/kernel/mm/transparent_hugepage/%s", name);
	FILE *f = fopen(path, "r");
	REQUIRE(f && fgets(line, sizeof line, f));
	fclose(f);
	return strstr(line, one) || strstr(line, other);
}

static char *aligned(void)
{
	char *p = isolated(LENGTH + HUGE);
	return (char *)(((uintptr_t)p + HUGE - 1) & -(uintptr_t)HUGE);
}

/*
 * Makes huge pages, if the kernel has free ones. It asks to try again while it has pages in use for
 * a moment.
 */
static bool collapse(char *p)
{
	for (int i = 0; i < 100; i++)
		if (!madvise(p, LENGTH, MADV_COLLAPSE))
			return true;
		else if (errno != EAGAIN)
			break;
	CHECK(errno == EAGAIN || errno == ENOMEM);
	return false;
}

/* It loses its huge pages, keeps the advice, and can have huge pages again. */
static void exchanged_memory_keeps_the_advice(int advice, const char *flag)
{
	char *p = aligned(), flags[512];
	REQUIRE(!madvise(p, LENGTH, advice));
	fill(p, LENGTH, 1);
	if (advice == MADV_NOHUGEPAGE)
		CHECK(of_smaps(p, "AnonHugePages:", flags) == 0);
	struct ibv_mr *mr = reg(p, LENGTH);
	EXPECT(mr, "mapped");
	of_smaps(p, "VmFlags:", flags);
	CHECK(strstr(flags, flag));
	if (setting_is("shmem_enabled", "[never]", "[deny]"))
		CHECK(of_smaps(p, "ShmemPmdMapped:", flags) == 0);
	if (advice == MADV_HUGEPAGE && !setting_is("shmem_enabled", "[deny]", "[deny]")) {
		if (collapse(p))
			CHECK(of_smaps(p, "ShmemPmdMapped:", flags) == LENGTH >> 10);
		else
			LEFT_OUT("huge pages: the kernel has none free");
	}
	CHECK(filled(p, LENGTH, 1));
	transfer(mr);
	RETURNS(0, ibv_dereg_mr(mr));
	munmap(p, LENGTH);
}

int main(void)
{
	begin();
	exchanged_memory_keeps_the_advice(MADV_HUGEPAGE, " hg ");
	exchanged_memory_keeps_the_advice(MADV_NOHUGEPAGE, " nh ");
	return end();
}
