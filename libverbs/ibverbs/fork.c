// SPDX-License-Identifier: Apache-2.0
/*
 * What programs req for because the pages of a NIC's memory are pinned and change hands at a
 * fork. Here no page is pinned: the daemon reaches memory by its address, in the process that
 * registered it, so that copy-on-write does no harm and there is nothing to do.
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
