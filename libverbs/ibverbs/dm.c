// SPDX-License-Identifier: Apache-2.0
/*
 * Device memory. It is memory of the daemon, and a program copies to and from it through the
 * control socket, at most SOFTROCE_DM_COPY_MAX bytes per request.
 */
#include "ibverbs/mr.h"

#include <stdlib.h>

/* A range outside the memory, or not a multiple of 4, is rejected before any byte is copied. */
static int check_range(const struct sr_dm *dm, uint64_t offset, size_t length)
{
	if (offset > dm->length || length > dm->length - offset || offset % 4 || length % 4)
		return sr_error(EINVAL);
	return 0;
}

static uint32_t chunk(size_t left)
{
	return left < SOFTROCE_DM_COPY_MAX ? (uint32_t)left : SOFTROCE_DM_COPY_MAX;
}

static int memcpy_to_dm(struct ibv_dm *ibv, uint64_t offset, const void *host, size_t length)
{
	struct sr_dm *dm = (struct sr_dm *)ibv;
	const uint8_t *from = host;
	int error = check_range(dm, offset, length);
	while (!error && length) {
		struct softroce_copy_dm_request req = {
			.handle = ibv->handle,
			.length = chunk(length),
			.offset = offset,
		};
		struct sr_request r = {
			.op = SOFTROCE_OP_COPY_TO_DM,
			.body = &req,
			.len = sizeof req,
			.tail = from,
			.tail_len = req.length,
		};
		error = sr_call(&sr_ctx(ibv->context)->conn, &r);
		from += req.length;
		offset += req.length;
		length -= req.length;
	}
	return error;
}

static int memcpy_from_dm(void *host, struct ibv_dm *ibv, uint64_t offset, size_t length)
{
	struct sr_dm *dm = (struct sr_dm *)ibv;
	uint8_t *to = host;
	int error = check_range(dm, offset, length);
	while (!error && length) {
		struct softroce_copy_dm_request req = {
			.handle = ibv->handle,
			.length = chunk(length),
			.offset = offset,
		};
		error = sr_command(&sr_ctx(ibv->context)->conn, SOFTROCE_OP_COPY_FROM_DM, &req,
				   sizeof req, to, req.length);
		to += req.length;
		offset += req.length;
		length -= req.length;
	}
	return error;
}

static struct ibv_dm *new_dm(struct ibv_context *context)
{
	struct sr_dm *dm = calloc(1, sizeof *dm);
	if (!dm)
		return NULL;
	dm->ibv.context = context;
	dm->ibv.memcpy_to_dm = memcpy_to_dm;
	dm->ibv.memcpy_from_dm = memcpy_from_dm;
	return &dm->ibv;
}

struct ibv_dm *sr_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr)
{
	if (attr->comp_mask)
		return sr_null(EINVAL);
	struct ibv_dm *dm = new_dm(context);
	if (!dm)
		return sr_null(ENOMEM);
	struct softroce_alloc_dm_request req = {
		.length = attr->length,
		.log_align = attr->log_align_req,
	};
	struct softroce_handle_reply reply;
	int error = sr_command(&sr_ctx(context)->conn, SOFTROCE_OP_ALLOC_DM, &req, sizeof req,
			       &reply, sizeof reply);
	if (error) {
		free(dm);
		return sr_null(error);
	}
	dm->handle = reply.handle;
	((struct sr_dm *)dm)->length = attr->length;
	return dm;
}

int sr_free_dm(struct ibv_dm *dm)
{
	int error = sr_destroy_unused(dm->context, &((struct sr_dm *)dm)->users,
				      SOFTROCE_OP_FREE_DM, dm->handle);
	if (error)
		return error;
	free(dm);
	return 0;
}

struct ibv_mr *sr_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
			    unsigned int access)
{
	if (dm->context != pd->context)
		return sr_null(ENOENT);
	struct softroce_reg_mr_request req = {
		.memory = SOFTROCE_MEMORY_DEVICE,
		.access = access,
		.length = length,
		.address = dm->handle,
		.offset = offset,
	};
	struct ibv_mr *mr = sr_reg_external_mr(pd, &req, NULL);
	if (mr) {
		((struct sr_mr *)mr)->dm = dm;
		sr_dm_count_users(dm, 1);
	}
	return mr;
}

SR_PUBLIC struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t handle)
{
	struct ibv_dm *dm = new_dm(context);
	if (!dm)
		return sr_null(ENOMEM);
	struct softroce_handle_request req = {.handle = handle};
	struct softroce_query_dm_reply reply;
	int error = sr_command(&sr_ctx(context)->conn, SOFTROCE_OP_QUERY_DM, &req, sizeof req,
			       &reply, sizeof reply);
	if (error) {
		free(dm);
		return sr_null(error);
	}
	dm->handle = handle;
	((struct sr_dm *)dm)->length = reply.length;
	return dm;
}

SR_PUBLIC void ibv_unimport_dm(struct ibv_dm *dm)
{
	sr_dm_count_users(dm, -1);
}
