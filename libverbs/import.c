// SPDX-License-Identifier: Apache-2.0
/*
 * Objects of a context that another process, or another part of this one, has made.
 */
#include "softroce.h"

#include <stdlib.h>

SR_PUBLIC struct ibv_context *ibv_import_device(int cmd_fd)
{
	(void)cmd_fd;
	return sr_null(EOPNOTSUPP);
}

SR_PUBLIC struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle)
{
	(void)context, (void)handle;
	return sr_null(EOPNOTSUPP);
}

SR_PUBLIC void ibv_unimport_pd(struct ibv_pd *pd)
{
	free(pd);
}

SR_PUBLIC struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
	(void)pd, (void)handle;
	return sr_null(EOPNOTSUPP);
}

SR_PUBLIC void ibv_unimport_mr(struct ibv_mr *mr)
{
	free(mr);
}
