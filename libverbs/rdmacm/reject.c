// SPDX-License-Identifier: Apache-2.0
/*
 * Rejecting connection requests.
 */
#include "rdmacm/rdmacm.h"

#include <string.h>

/* Reason codes of a REJ (IBTA 12.6.7.2). */
enum {
	REASON_CONSUMER = 28,
	REASON_ECE = 35, /* vendor option not supported */
};

static int reject(struct rdma_cm_id *ibv, const void *data, uint8_t len, uint32_t reason)
{
	struct cm_id *id = cm_id(ibv);
	struct softroce_cm_reject_request req = {.id = id->handle, .reason = reason};
	if (data && len) {
		memcpy(req.private_data, data, len);
		req.private_len = len;
	}
	return cm_result(
		cm_command(id->generation, SOFTROCE_OP_CM_REJECT, &req, sizeof req, NULL, 0));
}

SR_PUBLIC int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t len)
{
	return reject(id, data, len, REASON_CONSUMER);
}

SR_PUBLIC int rdma_reject_ece(struct rdma_cm_id *id, const void *data, uint8_t len)
{
	return reject(id, data, len, REASON_ECE);
}
