// SPDX-License-Identifier: Apache-2.0
/*
 * Binding, address and route resolution, listening, options.
 */
#include "rdmacm/rdmacm.h"

#include <string.h>

SR_PUBLIC int rdma_bind_addr(struct rdma_cm_id *ibv, struct sockaddr *addr)
{
	struct cm_id *id = cm_id(ibv);
	struct softroce_cm_bind_request req = {.id = id->handle};
	struct softroce_cm_identifier info;
	int error = addr ? cm_addr_to_abi(addr, &req.addr) : EINVAL;
	if (!error)
		error = cm_command(id->generation, SOFTROCE_OP_CM_BIND, &req, sizeof req, &info,
				   sizeof info);
	if (!error)
		error = cm_update_id(id, &info);
	return cm_result(error);
}

SR_PUBLIC int rdma_resolve_addr(struct rdma_cm_id *ibv, struct sockaddr *src, struct sockaddr *dst,
				int timeout_ms)
{
	struct cm_id *id = cm_id(ibv);
	struct softroce_cm_resolve_addr_request req = {.id = id->handle,
						       .timeout = timeout_ms > 0 ? timeout_ms : 0};
	int error = dst ? cm_addr_to_abi(dst, &req.dst) : EINVAL;
	if (!error)
		error = cm_addr_to_abi(src, &req.src);
	if (!error) {
		memset(&ibv->route.addr.dst_storage, 0, sizeof ibv->route.addr.dst_storage);
		memcpy(&ibv->route.addr.dst_storage, dst, cm_addr_len(dst));
		error = cm_command(id->generation, SOFTROCE_OP_CM_RESOLVE_ADDR, &req, sizeof req,
				   NULL, 0);
	}
	return error ? cm_result(error) : cm_complete(id);
}

SR_PUBLIC int rdma_resolve_route(struct rdma_cm_id *ibv, int timeout_ms)
{
	struct cm_id *id = cm_id(ibv);
	(void)timeout_ms; /* on Ethernet, no lookup is needed */
	int error = cm_command_handle(id->generation, SOFTROCE_OP_CM_RESOLVE_ROUTE, id->handle);
	return error ? cm_result(error) : cm_complete(id);
}

SR_PUBLIC int rdma_listen(struct rdma_cm_id *ibv, int backlog)
{
	struct cm_id *id = cm_id(ibv);
	struct softroce_cm_listen_request req = {.id = id->handle,
						 .backlog = backlog > 0 ? backlog : 0};
	struct softroce_cm_identifier info;
	int error = cm_command(id->generation, SOFTROCE_OP_CM_LISTEN, &req, sizeof req, &info,
			       sizeof info);
	if (!error)
		error = cm_update_id(id, &info);
	return cm_result(error);
}

SR_PUBLIC int rdma_set_option(struct rdma_cm_id *ibv, int level, int option, void *value,
			      size_t len)
{
	struct cm_id *id = cm_id(ibv);
	struct softroce_cm_set_option_request req = {.id = id->handle, .option = option};
	if (level != RDMA_OPTION_ID)
		return cm_result(ENOSYS);
	if (!value)
		return cm_result(EINVAL);
	switch (option) {
	case RDMA_OPTION_ID_TOS:
	case RDMA_OPTION_ID_ACK_TIMEOUT:
		if (len != sizeof(uint8_t))
			return cm_result(EINVAL);
		req.value = *(uint8_t *)value;
		break;
	case RDMA_OPTION_ID_REUSEADDR:
	case RDMA_OPTION_ID_AFONLY: {
		int on;
		if (len != sizeof on)
			return cm_result(EINVAL);
		memcpy(&on, value, sizeof on);
		req.value = on != 0;
		break;
	}
	default:
		return cm_result(ENOSYS);
	}
	return cm_result(
		cm_command(id->generation, SOFTROCE_OP_CM_SET_OPTION, &req, sizeof req, NULL, 0));
}
