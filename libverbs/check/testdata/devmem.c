// SPDX-License-Identifier: Apache-2.0
/*
 * Device memory and DMA buffers, and what a child of a fork can do with its parent's context.
 */
#include "setup.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define DM_ACCESS (ALL_ACCESS | IBV_ACCESS_ZERO_BASED)

/* More than a single message can copy. */
enum {
	LARGE_SIZE = 200000
};

static struct ibv_dm *alloc(struct ibv_context *c, size_t length)
{
	struct ibv_alloc_dm_attr attr = {.length = length, .log_align_req = 3};
	return ibv_alloc_dm(c, &attr);
}

static void limits(struct setup *s)
{
	struct ibv_device_attr_ex dev;
	REQUIRE(!ibv_query_device_ex(s->context, NULL, &dev));
	CHECK(dev.max_dm_size >= 1 << 20);
	FAILS(EINVAL, !alloc(s->context, 0));
	FAILS(ENOMEM, !alloc(s->context, dev.max_dm_size + 1));
	struct ibv_alloc_dm_attr attr = {.length = 8, .comp_mask = 1};
	FAILS(EINVAL, !ibv_alloc_dm(s->context, &attr));
	attr = (struct ibv_alloc_dm_attr){.length = 8, .log_align_req = 13};
	FAILS(EINVAL, !ibv_alloc_dm(s->context, &attr));
	struct ibv_dm *all = alloc(s->context, dev.max_dm_size);
	CHECK(all);
	FAILS(ENOMEM, !alloc(s->context, 1));
	RETURNS(0, ibv_free_dm(all));
}

static void copies(struct setup *s)
{
	struct ibv_dm *dm = alloc(s->context, LARGE_SIZE);
	uint8_t *to = malloc(LARGE_SIZE), *from = malloc(LARGE_SIZE);
	REQUIRE(dm && to && from);
	for (int i = 0; i < LARGE_SIZE; i++)
		to[i] = (uint8_t)(i * 7 + (i >> 8));
	RETURNS(0, ibv_memcpy_to_dm(dm, 0, to, LARGE_SIZE));
	RETURNS(0, ibv_memcpy_from_dm(from, dm, 0, LARGE_SIZE));
	CHECK(!memcmp(to, from, LARGE_SIZE));
	RETURNS(0, ibv_memcpy_to_dm(dm, LARGE_SIZE, to, 0));
	RETURNS(0, ibv_memcpy_from_dm(from, dm, 100, 8));
	CHECK(!memcmp(to + 100, from, 8));
	RETURNS(EINVAL, ibv_memcpy_to_dm(dm, 2, from, 4));
	RETURNS(EINVAL, ibv_memcpy_to_dm(dm, 4, from, 2));
	RETURNS(EINVAL, ibv_memcpy_to_dm(dm, 4, from, LARGE_SIZE));
	RETURNS(EINVAL, ibv_memcpy_from_dm(from, dm, UINT64_MAX - 3, 8));
	RETURNS(EINVAL, ibv_memcpy_from_dm(from, dm, LARGE_SIZE + 4, 0));

	struct ibv_dm *again = ibv_import_dm(s->context, dm->handle);
	REQUIRE(again);
	memset(from, 0, LARGE_SIZE);
	RETURNS(0, ibv_memcpy_from_dm(from, again, 0, LARGE_SIZE));
	CHECK(!memcmp(to, from, LARGE_SIZE));
	ibv_unimport_dm(again);
	FAILS(ENOENT, !ibv_import_dm(s->context, s->pd->handle));
	RETURNS(0, ibv_free_dm(dm));
	free(to);
	free(from);
}

/* Polls for the completion of a successful work request. */
static void await_success(struct setup *s)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(s->cq, 1, &wc)))
		;
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
}

static void transfer(struct setup *s, struct ibv_mr *mr, struct ibv_qp *qp, uint64_t remote)
{
	struct ibv_sge sge = {(uintptr_t)s->buf, 64, s->mr->lkey};
	struct ibv_send_wr *bad, wr = {
					 .sg_list = &sge,
					 .num_sge = 1,
					 .opcode = IBV_WR_RDMA_WRITE,
					 .wr.rdma = {.remote_addr = remote, .rkey = mr->rkey},
				 };
	memset(s->buf, 0x5a, 64);
	RETURNS(0, ibv_post_send(qp, &wr, &bad));
	await_success(s);
}

static void registration(struct setup *s, struct setup *other, struct ibv_qp *qp)
{
	struct ibv_dm *dm = alloc(s->context, 128);
	char got[64];
	REQUIRE(dm);
	FAILS(EINVAL, !ibv_reg_dm_mr(s->pd, dm, 0, 128, ALL_ACCESS));
	FAILS(EINVAL, !ibv_reg_dm_mr(s->pd, dm, 4, 128, DM_ACCESS));
	FAILS(EINVAL, !ibv_reg_dm_mr(s->pd, dm, UINT64_MAX, 8, DM_ACCESS));
	FAILS(ENOENT, !ibv_reg_dm_mr(other->pd, dm, 0, 8, DM_ACCESS));
	FAILS(EINVAL, !ibv_reg_dm_mr(s->pd, dm, 0, 8, DM_ACCESS | IBV_ACCESS_ON_DEMAND));
	struct ibv_mr *mr = ibv_reg_dm_mr(s->pd, dm, 64, 64, DM_ACCESS);
	REQUIRE(mr);
	CHECK(mr->length == 64 && !mr->addr && mr->pd == s->pd);
	RETURNS(EBUSY, ibv_free_dm(dm));
	FAILS(EOPNOTSUPP, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) ==
				  IBV_REREG_MR_ERR_CMD);
	transfer(s, mr, qp, 0);
	RETURNS(0, ibv_memcpy_from_dm(got, dm, 64, 64));
	CHECK(!memcmp(got, s->buf, 64));
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_free_dm(dm));
}

static void dma_buffers(struct setup *s, struct ibv_qp *qp)
{
	int fd = memfd_create("buffer", MFD_CLOEXEC);
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	char got[64];
	REQUIRE(fd >= 0 && file >= 0 && !ftruncate(fd, 8192));
	FAILS(EBADF, !ibv_reg_dmabuf_mr(s->pd, 0, 8192, 0, -1, 0));
	FAILS(EINVAL, !ibv_reg_dmabuf_mr(s->pd, 0, 1, 0, file, 0));
	FAILS(EINVAL, !ibv_reg_dmabuf_mr(s->pd, 0, 8193, 0, fd, 0));
	FAILS(EINVAL, !ibv_reg_dmabuf_mr(s->pd, 0, 0, 0, fd, 0));
	FAILS(EINVAL, !ibv_reg_dmabuf_mr(s->pd, 8, 8, 16, fd, 0));
	FAILS(EINVAL, !ibv_reg_dmabuf_mr(s->pd, 0, 8192, 0, fd, IBV_ACCESS_REMOTE_WRITE));
	FAILS(EINVAL, !ibv_reg_dmabuf_mr(s->pd, 0, 8192, 0, fd, IBV_ACCESS_ON_DEMAND));
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(s->pd, 4100, 1000, (1ul << 40) + 4, fd,
					      ALL_ACCESS | IBV_ACCESS_RELAXED_ORDERING);
	REQUIRE(mr);
	CHECK(mr->length == 1000 && mr->addr == (void *)4100);
	transfer(s, mr, qp, (1ul << 40) + 4);
	CHECK(pread(fd, got, 64, 4100) == 64 && !memcmp(got, s->buf, 64));
	FAILS(EOPNOTSUPP,
	      ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, s->pd, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD);
	RETURNS(0, ibv_dereg_mr(mr));
	close(fd);
	close(file);
}

/* Runs in a forked child; inherited was allocated by the parent. */
static void child(struct setup *s, struct ibv_dm *inherited, struct ibv_mr *dm_mr,
		  struct ibv_qp *qp)
{
	struct ibv_device_attr dev;
	static char own[4096];
	uint32_t word = 0;
	RETURNS(0, ibv_query_device(s->context, &dev));
	RETURNS(0, ibv_memcpy_from_dm(&word, inherited, 0, 4));
	CHECK(word == 0x11111111);
	word = 0x22222222;
	RETURNS(0, ibv_memcpy_to_dm(inherited, 0, &word, 4));

	struct ibv_dm *dm = alloc(s->context, 64);
	struct ibv_pd *pd = ibv_alloc_pd(s->context);
	REQUIRE(dm && pd);
	struct ibv_mr *mr = ibv_reg_dm_mr(pd, dm, 0, 64, DM_ACCESS);
	struct ibv_mr *process_mr = ibv_reg_mr(s->pd, own, sizeof own, ALL_ACCESS);
	REQUIRE(mr && process_mr);
	RETURNS(EBUSY, ibv_dealloc_pd(pd));
	RETURNS(EBUSY, ibv_free_dm(dm));
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_dereg_mr(process_mr));
	RETURNS(0, ibv_free_dm(dm));
	RETURNS(0, ibv_dealloc_pd(pd));

	/* Queues cannot be used, and destroying inherited objects does not affect the parent. */
	struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_SEND};
	RETURNS(EIO, ibv_post_send(qp, &wr, &bad));
	FAILS(EIO, !ibv_create_cq(s->context, 1, NULL, NULL, 0));
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_dereg_mr(dm_mr));
	RETURNS(0, ibv_free_dm(inherited));
	setup_close(s);
}

static void forks(struct setup *s, struct ibv_qp *qp)
{
	struct ibv_dm *dm = alloc(s->context, 128);
	REQUIRE(dm);
	uint32_t word = 0x11111111;
	RETURNS(0, ibv_memcpy_to_dm(dm, 0, &word, 4));
	struct ibv_mr *mr = ibv_reg_dm_mr(s->pd, dm, 0, 128, DM_ACCESS);
	REQUIRE(mr);
	pid_t pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		failures = 0;
		child(s, dm, mr, qp);
		exit(failures ? 1 : 0);
	}
	int status = 0;
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	transfer(s, mr, qp, 8);
	RETURNS(0, ibv_memcpy_from_dm(&word, dm, 0, 4));
	CHECK(word == 0x22222222);
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_free_dm(dm));
}

int main(void)
{
	static struct setup s, other;
	setup_open(&s);
	setup_open(&other);
	struct ibv_qp *qp = loopback_qp(&s);
	limits(&s);
	copies(&s);
	registration(&s, &other, qp);
	dma_buffers(&s, qp);
	forks(&s, qp);
	RETURNS(0, ibv_destroy_qp(qp));
	setup_close(&other);
	setup_close(&s);
	return failures ? 1 : 0;
}
