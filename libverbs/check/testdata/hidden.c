// SPDX-License-Identifier: Apache-2.0
/*
 * What a NIC fails, and does not report, that lacks optional features.
 */
#include "setup.h"

static void test_timestamps(struct setup *s)
{
	struct ibv_device_attr_ex d;
	RETURNS(0, ibv_query_device_ex(s->context, NULL, &d));
	CHECK(!d.completion_timestamp_mask && !d.hca_core_clock);
	for (uint32_t wanted = 0; wanted <= IBV_VALUES_MASK_RAW_CLOCK; wanted++) {
		struct ibv_values_ex now = {.comp_mask = wanted};
		RETURNS(EOPNOTSUPP, ibv_query_rt_values_ex(s->context, &now));
	}
	struct ibv_cq_init_attr_ex a = {.cqe = 16};
	for (int wallclock = 0; wallclock <= 1; wallclock++) {
		a.wc_flags = wallclock ? IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
				       : IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
		FAILS(EOPNOTSUPP, !ibv_create_cq_ex(s->context, &a));
	}
	a.wc_flags = IBV_WC_STANDARD_FLAGS;
	struct ibv_cq_ex *q = ibv_create_cq_ex(s->context, &a);
	REQUIRE(q);
	RETURNS(0, ibv_destroy_cq(ibv_cq_ex_to_cq(q)));
}

int main(void)
{
	struct setup s;
	setup_open(&s);
	test_timestamps(&s);
	setup_close(&s);
	return failures != 0;
}
