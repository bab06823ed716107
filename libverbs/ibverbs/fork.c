// SPDX-License-Identifier: Apache-2.0
/*
 * Fork support. Programs use these calls because copy-on-write replaces pages that a NIC has
 * pinned. The daemon pins no pages: it accesses memory by its virtual address in the process that
 * registered it. What a child gets of memory that the daemon maps: memory/fork.c.
 */
#include "ibverbs/context.h"

SR_PUBLIC int ibv_fork_init(void)
{
	return 0;
}

SR_PUBLIC enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return IBV_FORK_UNNEEDED;
}

SR_PUBLIC int ibv_dontfork_range(void *base, size_t size)
{
	(void)base, (void)size;
	return 0;
}

SR_PUBLIC int ibv_dofork_range(void *base, size_t size)
{
	(void)base, (void)size;
	return 0;
}
