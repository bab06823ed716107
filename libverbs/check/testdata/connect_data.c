// SPDX-License-Identifier: Apache-2.0
/*
 * Data that rdma_create_ep is given are for the first connection. There is no listener, so that is
 * refused; an identifier cannot be connected twice.
 */
#include "check.h"

#include <rdma/rdma_cma.h>

int main(void)
{
	static char given[] = "given ";
	struct rdma_addrinfo hints = {.ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP};
	struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}};
	struct rdma_conn_param p = {.private_data = "later", .private_data_len = 6};
	struct rdma_addrinfo *ai;
	struct rdma_cm_id *id;
	REQUIRE(!rdma_getaddrinfo("192.0.2.2", "7183", &hints, &ai));
	ai->ai_connect = given;
	ai->ai_connect_len = sizeof given - 1;
	REQUIRE(!rdma_create_ep(&id, ai, NULL, &init));
	ai->ai_connect = NULL;
	ai->ai_connect_len = 0;
	rdma_freeaddrinfo(ai);
	FAILS(ECONNREFUSED, rdma_connect(id, &p) == -1);
	FAILS(EINVAL, rdma_connect(id, &p) == -1);
	rdma_destroy_ep(id);
	return failures != 0;
}
