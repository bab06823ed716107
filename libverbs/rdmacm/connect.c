// SPDX-License-Identifier: Apache-2.0
/*
 * Connecting, accepting and disconnecting.
 */
#include "rdmacm/rdmacm.h"

#include <stdlib.h>
#include <string.h>

static bool exceeds_device_limits(const struct cm_id *id, const struct rdma_conn_param *p)
{
	if (!p || id->id.ps != RDMA_PS_TCP || !id->device)
		return false;
	return (p->responder_resources != RDMA_MAX_RESP_RES &&
		p->responder_resources > id->device->max_responder_resources) ||
	       (p->initiator_depth != RDMA_MAX_INIT_DEPTH &&
		p->initiator_depth > id->device->max_initiator_depth);
}

/* Fills in the parameters of a request or reply. 0 or an errno. */
static int fill_param(const struct cm_id *id, const struct rdma_conn_param *p,
		      struct softroce_cm_conn_param *out)
{
	const struct rdma_cm_id *ibv = &id->id;
	memset(out, 0, sizeof *out);
	out->responder_resources = id->responder_resources;
	out->initiator_depth = id->initiator_depth;
	out->retry_count = p ? p->retry_count : 7;
	out->rnr_retry_count = p ? p->rnr_retry_count : 7;
	out->flow_control = p ? p->flow_control != 0 : 0;
	if (ibv->qp) {
		out->qp_num = ibv->qp->qp_num;
		out->srq = ibv->qp->srq != NULL;
	} else if (p) {
		out->qp_num = p->qp_num;
		out->srq = p->srq != 0;
	}
	out->ece_vendor = id->local_ece.vendor_id;
	out->ece_options = id->local_ece.options;
	size_t n = id->connect_len, more = p && p->private_data ? p->private_data_len : 0;
	if (n + more > sizeof out->private_data)
		return EINVAL;
	if (n)
		memcpy(out->private_data, id->connect_data, n);
	if (more)
		memcpy(out->private_data + n, p->private_data, more);
	out->private_len = (uint16_t)(n + more);
	return 0;
}

static int send_param(struct cm_id *id, uint16_t op, const struct rdma_conn_param *p)
{
	struct softroce_cm_connect_request req = {.id = id->handle};
	int error = fill_param(id, p, &req.param);
	return error ? error : cm_command(id->generation, op, &req, sizeof req, NULL, 0);
}

SR_PUBLIC int rdma_connect(struct rdma_cm_id *ibv, struct rdma_conn_param *p)
{
	struct cm_id *id = cm_id(ibv);
	if (!id->device || (!ibv->qp && !p) || exceeds_device_limits(id, p))
		return cm_result(EINVAL);
	id->initiator_depth = p && p->initiator_depth != RDMA_MAX_INIT_DEPTH
				      ? p->initiator_depth
				      : id->device->max_initiator_depth;
	id->responder_resources = p && p->responder_resources != RDMA_MAX_RESP_RES
					  ? p->responder_resources
					  : id->device->max_responder_resources;
	int error = send_param(id, SOFTROCE_OP_CM_CONNECT, p);
	if (error)
		return cm_result(error);
	/* The data that rdma_create_ep was given are for one connection. */
	free(id->connect_data);
	id->connect_data = NULL;
	id->connect_len = 0;
	return cm_complete(id);
}

static uint8_t min_u8(uint8_t a, uint8_t b)
{
	return a < b ? a : b;
}

SR_PUBLIC int rdma_accept(struct rdma_cm_id *ibv, struct rdma_conn_param *p)
{
	struct cm_id *id = cm_id(ibv);
	if (!id->device || exceeds_device_limits(id, p))
		return cm_result(EINVAL);
	if (!p || p->initiator_depth == RDMA_MAX_INIT_DEPTH)
		id->initiator_depth = min_u8(id->initiator_depth, id->device->max_initiator_depth);
	else
		id->initiator_depth = p->initiator_depth;
	if (!p || p->responder_resources == RDMA_MAX_RESP_RES)
		id->responder_resources =
			min_u8(id->responder_resources, id->device->max_responder_resources);
	else
		id->responder_resources = p->responder_resources;
	int error = 0;
	if (ibv->qp && !cm_is_ud(ibv)) {
		error = cm_modify_rtr(ibv, id->responder_resources);
		if (!error)
			error = cm_modify_rts(ibv, id->initiator_depth);
	}
	if (!error)
		error = send_param(id, SOFTROCE_OP_CM_ACCEPT, p);
	if (error) {
		cm_modify_err(ibv);
		return cm_result(error);
	}
	if (!cm_is_ud(ibv))
		return cm_complete(id);
	if (id->sync && ibv->event) /* no event follows: the request was the last one */
		cm_ack_held_event(id);
	return 0;
}

SR_PUBLIC int rdma_establish(struct rdma_cm_id *ibv)
{
	struct cm_id *id = cm_id(ibv);
	/*
	 * If the identifier has a queue pair, the library has sent the RTU when it received the
	 * reply.
	 */
	if (ibv->qp)
		return cm_result(EINVAL);
	return cm_result(cm_command_handle(id->generation, SOFTROCE_OP_CM_ESTABLISH, id->handle));
}

SR_PUBLIC int rdma_notify(struct rdma_cm_id *ibv, enum ibv_event_type event)
{
	struct cm_id *id = cm_id(ibv);
	if (event != IBV_EVENT_COMM_EST) /* path migration is not supported */
		return cm_result(EINVAL);
	return cm_result(cm_command_handle(id->generation, SOFTROCE_OP_CM_NOTIFY, id->handle));
}

SR_PUBLIC int rdma_disconnect(struct rdma_cm_id *ibv)
{
	struct cm_id *id = cm_id(ibv);
	cm_modify_err(ibv);
	int error = cm_command_handle(id->generation, SOFTROCE_OP_CM_DISCONNECT, id->handle);
	return error ? cm_result(error) : cm_complete(id);
}

SR_PUBLIC int rdma_set_local_ece(struct rdma_cm_id *ibv, struct ibv_ece *ece)
{
	struct cm_id *id = cm_id(ibv);
	if (!ece || !ece->vendor_id || ece->comp_mask)
		return cm_result(EINVAL);
	id->local_ece = *ece;
	return 0;
}

SR_PUBLIC int rdma_get_remote_ece(struct rdma_cm_id *ibv, struct ibv_ece *ece)
{
	if (ibv->qp || !ece)
		return cm_result(EINVAL);
	*ece = cm_id(ibv)->remote_ece;
	ece->comp_mask = 0;
	return 0;
}
