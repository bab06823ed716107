// SPDX-License-Identifier: Apache-2.0
/*
 * Data that rdma_create_ep is given are for the first connection. There is no listener, so that is
 * refused; an identifier cannot be connected twice.
 */
#include "net.h"

int main(void)
{
	static char given[] = "given ";
	struct rdma_conn_param p = {.private_data = "later", .private_data_len = 6};
	struct rdma_cm_id *id = endpoint_with_data("7183", given);
	FAILS(ECONNREFUSED, rdma_connect(id, &p) == -1);
	FAILS(EINVAL, rdma_connect(id, &p) == -1);
	rdma_destroy_ep(id);
	return failures != 0;
}
