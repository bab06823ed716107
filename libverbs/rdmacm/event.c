// SPDX-License-Identifier: Apache-2.0
/*
 * Events are fetched from the daemon. Some of them require an action before the program sees
 * them.
 */
#include "rdmacm/rdmacm.h"

#include "core/ah.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a thread that is cancelled while it waits for an event has to release. */
struct event_wait {
	struct cm_channel *channel;
	struct cm_event *event;
	int error;
};

static void end_wait(void *arg)
{
	struct event_wait *w = arg;
	free(w->event);
	cm_put_channel(w->channel);
}

/*
 * Reads a byte from the channel's socket, blocking or not as the program has set the descriptor. 0
 * or an errno. If the channel is destroyed during the read, the call never returns: programs
 * leave threads behind that would treat an error as a failure.
 */
static int read_byte(struct cm_channel *ch)
{
	char byte;
	ssize_t n = read(ch->channel.fd, &byte, 1);
	if (n == 1)
		return 0;
	int error = n == 0 ? EIO : errno; /* end of file: the daemon is gone */
	while (atomic_load(&ch->destroyed))
		pause();
	return error;
}

static void copy_param(struct cm_event *e, const struct softroce_cm_event *in)
{
	const struct softroce_cm_conn_param *p = &in->param;
	uint16_t n = p->private_len;
	if (n > sizeof e->private_data)
		n = sizeof e->private_data;
	memcpy(e->private_data, p->private_data, n);
	uint8_t len = n > UINT8_MAX ? UINT8_MAX : (uint8_t)n;
	if (in->is_datagram || cm_is_ud(e->event.id)) {
		struct rdma_ud_param *ud = &e->event.param.ud;
		ud->private_data = len ? e->private_data : NULL;
		ud->private_data_len = len;
		ud->ah_attr = sr_ah_from_abi(&in->ah);
		ud->qp_num = in->remote_qp_num;
		ud->qkey = in->remote_qkey;
		return;
	}
	struct rdma_conn_param *c = &e->event.param.conn;
	c->private_data = len ? e->private_data : NULL;
	c->private_data_len = len;
	c->responder_resources = p->responder_resources;
	c->initiator_depth = p->initiator_depth;
	c->flow_control = p->flow_control;
	c->retry_count = p->retry_count;
	c->rnr_retry_count = p->rnr_retry_count;
	c->srq = p->srq;
	c->qp_num = p->qp_num;
}

/* Creates the identifier of a connection request. 0 or an errno. */
static int new_request_id(struct cm_event *e, const struct softroce_cm_event *in,
			  struct cm_id *listener)
{
	struct cm_id *id = cm_new_id(listener->id.channel, listener->id.context, listener->id.ps,
				     in->info.qp_type);
	if (!id)
		return ENOMEM;
	cm_add_id(id, in->id, listener->generation);
	e->event.listen_id = &listener->id;
	e->event.id = &id->id;
	int error = cm_update_id(id, &in->info);
	if (!error && listener->sync && rdma_migrate_id(&id->id, NULL))
		error = errno;
	if (error) {
		rdma_reject(&id->id, NULL, 0);
		rdma_destroy_id(&id->id);
		return error;
	}
	copy_param(e, in);
	id->initiator_depth = in->param.initiator_depth;
	id->responder_resources = in->param.responder_resources;
	id->remote_ece.vendor_id = in->param.ece_vendor;
	id->remote_ece.options = in->param.ece_options;
	return 0;
}

/* Handles a REP: takes the queue pair to RTS, then has the daemon send the RTU. */
static int handle_rep(struct cm_id *id)
{
	int error = cm_modify_rtr(&id->id, RDMA_MAX_RESP_RES);
	if (!error)
		error = cm_modify_rts(&id->id, RDMA_MAX_INIT_DEPTH);
	if (!error)
		error = cm_command_handle(id->generation, SOFTROCE_OP_CM_ESTABLISH, id->handle);
	if (error) {
		cm_modify_err(&id->id);
		rdma_reject(&id->id, NULL, 0);
	}
	return error;
}

/* Performs the action that an event requires. False: the event is not reported to the program. */
static bool handle_event(struct cm_event *e, const struct softroce_cm_event *in, struct cm_id *id)
{
	struct rdma_cm_event *event = &e->event;
	int error;
	copy_param(e, in);
	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		error = cm_update_id(id, &in->info);
		if (error) {
			event->event = RDMA_CM_EVENT_ADDR_ERROR;
			event->status = -error;
		}
		return true;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		error = cm_update_id(id, &in->info);
		if (error) {
			event->event = RDMA_CM_EVENT_ROUTE_ERROR;
			event->status = -error;
		}
		return true;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		id->remote_ece.vendor_id = in->param.ece_vendor;
		id->remote_ece.options = in->param.ece_options;
		if (!id->id.qp)
			return true; /* the program calls rdma_establish */
		error = handle_rep(id);
		event->event = error ? RDMA_CM_EVENT_CONNECT_ERROR : RDMA_CM_EVENT_ESTABLISHED;
		event->status = -error;
		id->connect_error = error != 0;
		return true;
	case RDMA_CM_EVENT_REJECTED:
		cm_modify_err(&id->id);
		return true;
	case RDMA_CM_EVENT_DISCONNECTED:
		if (id->connect_error) {
			id->connect_error = false;
			return false;
		}
		return true;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		pthread_mutex_lock(&id->lock);
		id->removed = true;
		pthread_mutex_unlock(&id->lock);
		return true;
	case RDMA_CM_EVENT_MULTICAST_JOIN:
	case RDMA_CM_EVENT_MULTICAST_ERROR:
		cm_attach_group(id, event, in->cookie);
		return true;
	default:
		return true;
	}
}

/* Fetches one event. EAGAIN: there is none to report. */
static int fetch(struct cm_channel *ch, struct cm_event *e)
{
	struct softroce_handle_request req = {.handle = ch->handle};
	struct softroce_cm_event in;
	int error = cm_command(ch->generation, SOFTROCE_OP_CM_GET_EVENT, &req, sizeof req, &in,
			       sizeof in);
	if (!error || error == EAGAIN)
		cm_byte_used(ch, !error);
	if (error)
		return error;
	memset(e, 0, sizeof *e);
	e->event.event = in.type;
	e->event.status =
		in.status == INT32_MIN ? -EPROTO : in.status; /* so that it can be negated */
	bool request = in.type == RDMA_CM_EVENT_CONNECT_REQUEST;
	struct cm_id *id = cm_find(request ? in.listen : in.id, ch->generation);
	if (!id) {
		/*
		 * The identifier was destroyed meanwhile. A connection request is dropped with its
		 * listener.
		 */
		if (request)
			cm_command_handle(ch->generation, SOFTROCE_OP_CM_DESTROY_ID, in.id);
		return EAGAIN;
	}
	e->counted = id;
	if (request) {
		if (new_request_id(e, &in, id)) {
			cm_count_completed(id);
			return EAGAIN;
		}
		return 0;
	}
	e->event.id = &id->id;
	if (!handle_event(e, &in, id)) {
		cm_count_completed(id);
		return EAGAIN;
	}
	return 0;
}

/*
 * When the daemon is gone, each identifier with a device gets one more event. After that the
 * error is ENODEV.
 */
static int last_event(struct cm_channel *ch, struct cm_event *e)
{
	struct cm_id *id = cm_find_unnotified(&ch->channel);
	if (!id)
		return ENODEV;
	memset(e, 0, sizeof *e);
	e->event.event = RDMA_CM_EVENT_DEVICE_REMOVAL;
	e->event.id = &id->id;
	e->counted = id;
	return 0;
}

/* Returns the next event. EIO from either call means that the daemon is gone. */
static int next_event(struct cm_channel *ch, struct cm_event *e)
{
	int error;
	while (!(error = read_byte(ch)) && (error = fetch(ch, e)) == EAGAIN)
		;
	return error == EIO ? last_event(ch, e) : error;
}

SR_PUBLIC int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	struct cm_channel *ch = (struct cm_channel *)channel;
	if (!channel || !event)
		return cm_result(EINVAL);
	if (cm_inherited(
		    ch->generation)) /* the socket is the parent's too: its bytes are left there */
		return cm_result(ENODEV);
	struct event_wait w = {ch, malloc(sizeof *w.event), 0};
	if (!w.event)
		return cm_result(ENOMEM);
	atomic_fetch_add(&ch->users, 1);
	pthread_cleanup_push(end_wait, &w);
	w.error = next_event(ch, w.event);
	if (!w.error) {
		*event = &w.event->event;
		w.event = NULL;
	}
	pthread_cleanup_pop(1);
	return cm_result(w.error);
}

SR_PUBLIC const char *rdma_event_str(enum rdma_cm_event_type event)
{
	static const char *const names[] = {
		"RDMA_CM_EVENT_ADDR_RESOLVED",	 "RDMA_CM_EVENT_ADDR_ERROR",
		"RDMA_CM_EVENT_ROUTE_RESOLVED",	 "RDMA_CM_EVENT_ROUTE_ERROR",
		"RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
		"RDMA_CM_EVENT_CONNECT_ERROR",	 "RDMA_CM_EVENT_UNREACHABLE",
		"RDMA_CM_EVENT_REJECTED",	 "RDMA_CM_EVENT_ESTABLISHED",
		"RDMA_CM_EVENT_DISCONNECTED",	 "RDMA_CM_EVENT_DEVICE_REMOVAL",
		"RDMA_CM_EVENT_MULTICAST_JOIN",	 "RDMA_CM_EVENT_MULTICAST_ERROR",
		"RDMA_CM_EVENT_ADDR_CHANGE",	 "RDMA_CM_EVENT_TIMEWAIT_EXIT",
	};
	unsigned int n = event;
	return n < sizeof names / sizeof *names ? names[n] : "UNKNOWN EVENT";
}
