/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory regions, device memory and memory windows.
 */
#ifndef SOFTROCE_MR_H
#define SOFTROCE_MR_H

#include "ibverbs/context.h"
#include "memory/shared.h"

struct sr_mr {
	struct ibv_mr ibv;
	uint64_t iova;
	unsigned int access;
	bool external;		  /* the memory is not in this process's address space */
	struct sr_shared *shared; /* has the memory; NULL: the daemon accesses the process's */
	struct sr_in_process in_process;
	struct ibv_dm *dm; /* device memory, or NULL */
};

struct sr_dm {
	struct ibv_dm ibv;
	uint64_t length;
	atomic_int users; /* memory regions */
};

static inline void sr_dm_count_users(struct ibv_dm *dm, int n)
{
	sr_count_users(dm, &((struct sr_dm *)dm)->users, n);
}

/*
 * sr_reg_external_mr registers memory that has no address in this process, as req describes it;
 * fd, unless NULL, is the descriptor of the memory.
 */
struct ibv_mr *sr_reg_external_mr(struct ibv_pd *pd, struct softroce_reg_mr_request *req,
				  const int *fd);

struct ibv_dm *sr_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr);
int sr_free_dm(struct ibv_dm *dm);
struct ibv_mr *sr_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
			    unsigned int access);

struct ibv_mw *sr_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int sr_dealloc_mw(struct ibv_mw *mw);
int sr_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);

#endif
