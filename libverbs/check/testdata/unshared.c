// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that could be shared but for the environment of the program, or that has huge pages:
 *
 *     unshared HOW [huge]
 */
#include "shared_memory.h"

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	size_t size = argc > 2 ? 2 << 20 : SIZE;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (argc > 2 ? MAP_HUGETLB : 0);
	begin();
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
	REQUIRE(p != MAP_FAILED);
	USE(p, size, argv[1]);
	munmap(p, size);
	return end();
}
