// SPDX-License-Identifier: Apache-2.0
/*
 * What a program can register if its user wants all of it to be shared.
 */
#include "setup.h"

enum {
	SIZE = 1 << 16
};

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	REQUIRE(pd);
	void *shared;
	char stack[SIZE];
	REQUIRE(!posix_memalign(&shared, 4096, SIZE));

	FAILS(EOPNOTSUPP, !ibv_reg_mr(pd, stack, sizeof stack, ALL_ACCESS));
	FAILS(EOPNOTSUPP, !ibv_reg_mr(pd, shared, SIZE, ALL_ACCESS | IBV_ACCESS_ON_DEMAND));
	struct ibv_mr *empty = ibv_reg_mr(pd, stack, 0, ALL_ACCESS);
	REQUIRE(empty);
	RETURNS(0, ibv_dereg_mr(empty));
	struct ibv_mr *mr = ibv_reg_mr(pd, shared, SIZE, ALL_ACCESS);
	REQUIRE(mr);
	FAILS(EOPNOTSUPP, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, stack,
				       sizeof stack, 0) == IBV_REREG_MR_ERR_CMD);
	CHECK(mr->addr == shared);
	struct ibv_context *other = open_first();
	struct ibv_pd *other_pd = ibv_alloc_pd(other);
	REQUIRE(other_pd);
	FAILS(EINVAL, !ibv_reg_mr(other_pd, shared, SIZE, ALL_ACCESS));
	RETURNS(0, ibv_dealloc_pd(other_pd));
	RETURNS(0, ibv_close_device(other));
	RETURNS(0, ibv_dereg_mr(mr));

	free(shared);
	RETURNS(0, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_close_device(context));
	return failures != 0;
}
