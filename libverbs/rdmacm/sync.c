// SPDX-License-Identifier: Apache-2.0
/*
 * Synchronous identifiers: those created without an event channel. Their calls wait for the event
 * that completes them, which stays in id->event until the next call.
 */
#include "rdmacm/rdmacm.h"

int cm_complete(struct cm_id *id)
{
	if (!id->sync)
		return 0;
	if (id->id.event)
		cm_ack_held_event(id);
	if (rdma_get_cm_event(id->id.channel, &id->id.event))
		return -1;
	int status = id->id.event->status;
	if (id->id.event->event == RDMA_CM_EVENT_DEVICE_REMOVAL)
		status = ENODEV;
	if (!status)
		return 0;
	if (id->id.event->event == RDMA_CM_EVENT_REJECTED)
		return cm_result(ECONNREFUSED);
	return cm_result(status < 0 ? -status : status);
}

SR_PUBLIC int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id)
{
	struct cm_id *l = cm_id(listen);
	struct rdma_cm_event *event;
	if (!l->sync)
		return cm_result(EINVAL);
	if (listen->event)
		cm_ack_held_event(l);
	if (rdma_get_cm_event(listen->channel, &event))
		return -1;
	int error = 0;
	if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL)
		error = ENODEV;
	else if (event->status)
		error = event->status < 0 ? -event->status : event->status;
	else if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		error = EINVAL;
	if (!error && l->listen_attr) {
		struct ibv_qp_init_attr attr = *l->listen_attr;
		if (rdma_create_qp(event->id, listen->pd, &attr))
			error = errno;
	}
	if (error) {
		listen->event = event;
		return cm_result(error);
	}
	*id = event->id;
	(*id)->event = event;
	return 0;
}
