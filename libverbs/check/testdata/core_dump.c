// SPDX-License-Identifier: Apache-2.0
/* Aborts, and leaves a core dump that has the registered memory. */
#include "shared_memory.h"

#include <sys/resource.h>

int main(void)
{
	begin();
	/* Shared when it is mapped, registered, or allocated. */
	char *p[] = {anonymous(SIZE), isolated(SIZE), aligned_alloc(PAGE, SIZE)};
	REQUIRE(!setrlimit(RLIMIT_CORE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}));
	struct ibv_mr *mr[3];
	for (int i = 0; i < 3; i++) {
		REQUIRE((mr[i] = reg(p[i], SIZE)));
		fill(p[i], SIZE, (char)i);
	}
	for (int i = 0; i < 3; i++)
		EXPECT(mr[i], "mapped");
	abort();
}
