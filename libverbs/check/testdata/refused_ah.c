// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon refuses to destroy its address handles. The program's are given up all the same, once.
 */
#include "setup.h"

enum {
	HANDLES = 300 /* more than the library keeps for later */
};

int main(void)
{
	struct setup s;
	struct ibv_ah *ah[HANDLES];
	struct ibv_ah_attr to = {
		.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}};
	setup_open(&s);
	REQUIRE(!ibv_query_gid(s.context, 1, 1, &to.grh.dgid));
	for (int i = 0; i < HANDLES; i++) {
		to.grh.flow_label = (uint32_t)i; /* none is shared */
		REQUIRE((ah[i] = ibv_create_ah(s.pd, &to)));
	}
	for (int i = 0; i < HANDLES; i++)
		RETURNS(0, ibv_destroy_ah(ah[i]));
	RETURNS(0, ibv_dereg_mr(s.mr));
	RETURNS(0, ibv_destroy_cq(s.cq));
	RETURNS(0, ibv_destroy_comp_channel(s.channel));
	RETURNS(EBUSY, ibv_dealloc_pd(s.pd)); /* those of the daemon are left */
	RETURNS(0, ibv_close_device(s.context));
	free(s.pd);
	return failures != 0;
}
