// SPDX-License-Identifier: Apache-2.0
/*
 * Memory regions.
 */
#include "ibverbs/mr.h"
#include "ibverbs/pd.h"

#include "core/cancel.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/*
 * Sends a registration, whose body contains req, of the memory by its address, or else with a
 * descriptor of this process's memory.
 */
static int cmd_reg_process(struct sr_conn *c, struct sr_request *r,
			   struct softroce_reg_mr_request *req)
{
	req->memory = SOFTROCE_MEMORY_PROCESS;
	req->offset = 0;
	r->nfds = 0;
	int error = sr_call(c, r);
	if (error != EPERM && error != ESRCH)
		return error;
	/* The daemon runs as another user, or does not see this process. */
	int state = sr_defer_cancel();
	int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	if (fd >= 0) {
		req->memory = SOFTROCE_MEMORY_SELF;
		r->fds = &fd;
		r->nfds = 1;
		error = sr_call(c, r);
		close(fd);
	}
	sr_restore_cancel(state);
	return error;
}

/* Sends a registration, whose body contains req, of memory that is not shared, if it may be. */
static int cmd_reg_unshared(const struct sr_mr *mr, struct sr_request *r,
			    struct softroce_reg_mr_request *req)
{
	static const char *const reasons[] = {
		[SOFTROCE_UNSHARED_THREADS] = "threads", [SOFTROCE_UNSHARED_KIND] = "kind",
		[SOFTROCE_UNSHARED_FLAGS] = "flags",	 [SOFTROCE_UNSHARED_KERNEL] = "kernel",
		[SOFTROCE_UNSHARED_LIMIT] = "limit",
	};
	if (!sr_shared_required() || !mr->ibv.length)
		return cmd_reg_process(&sr_ctx(mr->ibv.context)->conn, r, req);
	sr_warn("memory at %p of %zu bytes cannot be shared: %s", mr->ibv.addr, mr->ibv.length,
		reasons[req->unshared]);
	return EOPNOTSUPP;
}

/*
 * Sends a registration, whose body contains req. If the memory can be shared, mr refers to it then;
 * otherwise, or if the daemon cannot map it, the daemon accesses this process.
 */
static int cmd_reg_mr(struct sr_mr *mr, struct sr_request *r, struct softroce_reg_mr_request *req)
{
	struct sr_conn *c = &sr_ctx(mr->ibv.context)->conn;
	bool required = sr_shared_required();
	if (mr->access & IBV_ACCESS_ON_DEMAND)
		req->unshared = SOFTROCE_UNSHARED_KIND;
	else
		mr->shared =
			sr_shared_get(mr->ibv.addr, mr->ibv.length, &req->offset, &req->unshared);
	if (!mr->shared)
		return cmd_reg_unshared(mr, r, req);
	req->memory = SOFTROCE_MEMORY_MAPPED;
	r->fds = &mr->shared->fd;
	r->nfds = 1;
	if (required)
		req->address = 0; /* the daemon must not access the process instead */
	int error = sr_call(c, r);
	const struct softroce_reg_mr_reply *reply = r->reply;
	if (!error && reply->memory == SOFTROCE_MEMORY_MAPPED)
		return 0;
	sr_shared_put(mr->shared);
	mr->shared = NULL;
	if (!error || required)
		return error;
	req->unshared = SOFTROCE_UNSHARED_REFUSED;
	return cmd_reg_process(c, r, req);
}

/* Flags that are optional by definition, and one that concerns the pinning of pages. */
#define IGNORED_ACCESS (IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB)

static struct softroce_reg_mr_request reg_mr_request(const struct sr_mr *mr)
{
	return (struct softroce_reg_mr_request){
		.pd = sr_base_pd(mr->ibv.pd)->ibv.handle,
		.access = mr->access & ~IGNORED_ACCESS,
		.iova = mr->access & IBV_ACCESS_ZERO_BASED ? 0 : mr->iova,
		.length = mr->ibv.length,
		.address = (uintptr_t)mr->ibv.addr,
	};
}

static void registered(struct sr_mr *mr, const struct softroce_reg_mr_reply *r)
{
	mr->ibv.handle = r->handle;
	mr->ibv.lkey = r->lkey;
	mr->ibv.rkey = r->rkey;
	if (!mr->shared && !mr->external)
		sr_in_process_add(&mr->in_process, mr->ibv.addr, mr->ibv.length);
	sr_pd_count_users(mr->ibv.pd, 1);
}

static int cmd_reg_process_mr(struct sr_mr *mr)
{
	struct softroce_reg_mr_request req = reg_mr_request(mr);
	struct softroce_reg_mr_reply reply;
	struct sr_request r = {
		.op = SOFTROCE_OP_REG_MR,
		.body = &req,
		.len = sizeof req,
		.reply = &reply,
		.reply_len = sizeof reply,
	};
	int error = cmd_reg_mr(mr, &r, &req);
	if (error)
		return error;
	registered(mr, &reply);
	return 0;
}

SR_PUBLIC struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
					  uint64_t iova, unsigned int access)
{
	struct sr_mr *mr = calloc(1, sizeof *mr);
	if (!mr)
		return sr_null(ENOMEM);
	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	mr->ibv.addr = addr;
	mr->ibv.length = length;
	mr->iova = iova;
	mr->access = access;
	int error = cmd_reg_process_mr(mr);
	if (error) {
		free(mr);
		return sr_null(error);
	}
	return &mr->ibv;
}

#undef ibv_reg_mr
SR_PUBLIC struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
}

#undef ibv_reg_mr_iova
SR_PUBLIC struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length,
					 uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, access);
}

struct ibv_mr *sr_reg_external_mr(struct ibv_pd *pd, struct softroce_reg_mr_request *req,
				  const int *fd)
{
	struct sr_mr *mr = calloc(1, sizeof *mr);
	if (!mr)
		return sr_null(ENOMEM);
	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	mr->ibv.length = req->length;
	mr->iova = req->iova;
	mr->access = req->access;
	mr->external = true;
	req->pd = sr_base_pd(pd)->ibv.handle;
	struct softroce_reg_mr_reply reply;
	struct sr_request r = {
		.op = SOFTROCE_OP_REG_MR,
		.body = req,
		.len = sizeof *req,
		.fds = fd,
		.nfds = fd ? 1 : 0,
		.reply = &reply,
		.reply_len = sizeof reply,
	};
	int error = sr_call(&sr_ctx(pd->context)->conn, &r);
	if (error) {
		free(mr);
		return sr_null(error);
	}
	registered(mr, &reply);
	return &mr->ibv;
}

/* As in rdma-core, addr is the offset. */
SR_PUBLIC struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
					   uint64_t iova, int fd, int access)
{
	struct softroce_reg_mr_request req = {
		.memory = SOFTROCE_MEMORY_DMA_BUF,
		.access = (uint32_t)access,
		.iova = iova,
		.length = length,
		.offset = offset,
	};
	struct ibv_mr *mr = sr_reg_external_mr(pd, &req, &fd);
	if (mr)
		mr->addr = (void *)(uintptr_t)offset;
	return mr;
}

SR_PUBLIC int ibv_dereg_mr(struct ibv_mr *ibv)
{
	struct sr_mr *mr = (struct sr_mr *)ibv;
	int error = sr_destroy(&sr_ctx(ibv->context)->conn, SOFTROCE_OP_DEREG_MR, ibv->handle);
	if (error)
		return error;
	sr_pd_count_users(ibv->pd, -1);
	if (mr->dm)
		sr_dm_count_users(mr->dm, -1);
	sr_in_process_remove(&mr->in_process);
	sr_shared_put(mr->shared);
	free(mr);
	return 0;
}

#define REREG_FLAGS                                                                                \
	(IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS)

static int cmd_rereg_mr(struct sr_mr *mr)
{
	struct softroce_rereg_mr_request req = {.handle = mr->ibv.handle, .mr = reg_mr_request(mr)};
	struct softroce_reg_mr_reply reply;
	struct sr_request r = {
		.op = SOFTROCE_OP_REREG_MR,
		.body = &req,
		.len = sizeof req,
		.reply = &reply,
		.reply_len = sizeof reply,
	};
	return cmd_reg_mr(mr, &r, &req.mr);
}

/* The keys do not change. If it fails, the region does not change either. */
SR_PUBLIC int ibv_rereg_mr(struct ibv_mr *ibv, int flags, struct ibv_pd *pd, void *addr,
			   size_t length, int access)
{
	struct sr_mr *mr = (struct sr_mr *)ibv;
	struct sr_mr changed = {.ibv = mr->ibv, .iova = mr->iova, .access = mr->access};
	bool move = flags & IBV_REREG_MR_CHANGE_TRANSLATION;
	bool leave = flags & IBV_REREG_MR_CHANGE_PD;
	if (!flags || flags & ~REREG_FLAGS || (move && (!addr || !length)) || (leave && !pd)) {
		errno = EINVAL;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (leave && pd->context != ibv->context) {
		errno = ENOENT;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (mr->external) {
		errno = EOPNOTSUPP;
		return IBV_REREG_MR_ERR_CMD;
	}
	if (leave)
		changed.ibv.pd = pd;
	if (flags & IBV_REREG_MR_CHANGE_ACCESS)
		changed.access = (unsigned int)access;
	if (move) {
		changed.ibv.addr = addr;
		changed.ibv.length = length;
		changed.iova = (uintptr_t)addr;
	}
	int error = cmd_rereg_mr(&changed);
	if (error) {
		errno = error;
		return IBV_REREG_MR_ERR_CMD;
	}
	sr_pd_count_users(changed.ibv.pd, 1);
	sr_pd_count_users(ibv->pd, -1);
	sr_in_process_remove(&mr->in_process);
	sr_shared_put(mr->shared);
	*mr = changed;
	if (!mr->shared)
		sr_in_process_add(&mr->in_process, mr->ibv.addr, mr->ibv.length);
	return 0;
}
