// SPDX-License-Identifier: Apache-2.0
/*
 * Events: fetched from the daemon, and what this side does before a program sees them.
 */
#include "rdmacm/rdmacm.h"

#include "core/ah.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A wait for events that may be cancelled. */
struct wait {
	struct cm_channel *channel;
	struct cm_event *event;
	int error;
};

static void end_wait(void *arg)
{
	struct wait *w = arg;
	free(w->event);
	cm_put_channel(w->channel);
}

/*
 * Waits for a byte in the channel's pipe: as the program set the descriptor. 0 or an errno. Where
 * the channel is destroyed meanwhile the wait does not end: programs leave threads behind that
 * must not take it for a failure.
 */
static int await(struct cm_channel *ch)
{
	char byte;
	ssize_t n = read(ch->channel.fd, &byte, 1);
	if (n == 1)
		return 0;
	int error = n == 0 ? EIO : errno; /* at the end of the file the daemon is gone */
	while (atomic_load(&ch->destroyed))
		pause();
	return error;
}

static void count_completed(struct cm_id *id)
{
	pthread_mutex_lock(&id->lock);
	id->completed++;
	pthread_cond_signal(&id->cond);
	pthread_mutex_unlock(&id->lock);
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

/* Makes the identifier of a connection request. 0 or an errno. */
static int accept_request(struct cm_event *e, const struct softroce_cm_event *in,
			  struct cm_id *listener)
{
	struct cm_id *id = cm_new_id(listener->id.channel, listener->id.context, listener->id.ps,
				     in->info.qp_type);
	if (!id)
		return ENOMEM;
	cm_enlist(id, in->id, listener->generation);
	e->event.listen_id = &listener->id;
	e->event.id = &id->id;
	int error = cm_learn(id, &in->info);
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

/* The peer agrees: the queue pair goes to RTS, then the peer hears that it may begin. */
static int complete_response(struct cm_id *id)
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

/* Does what an event of an identifier asks of this side. False: the program is not to see it. */
static bool handle(struct cm_event *e, const struct softroce_cm_event *in, struct cm_id *id)
{
	struct rdma_cm_event *event = &e->event;
	int error;
	copy_param(e, in);
	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		error = cm_learn(id, &in->info);
		if (error) {
			event->event = RDMA_CM_EVENT_ADDR_ERROR;
			event->status = -error;
		}
		return true;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		error = cm_learn(id, &in->info);
		if (error) {
			event->event = RDMA_CM_EVENT_ROUTE_ERROR;
			event->status = -error;
		}
		return true;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		id->remote_ece.vendor_id = in->param.ece_vendor;
		id->remote_ece.options = in->param.ece_options;
		if (!id->id.qp)
			return true; /* the program establishes */
		error = complete_response(id);
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
		cm_joined(id, event, in->cookie);
		return true;
	default:
		return true;
	}
}

/* Fetches one event. EAGAIN: there was none after all. */
static int fetch(struct cm_channel *ch, struct cm_event *e)
{
	struct softroce_handle_request ask = {.handle = ch->handle};
	struct softroce_cm_event in;
	int error = cm_command(ch->generation, SOFTROCE_OP_CM_GET_EVENT, &ask, sizeof ask, &in,
			       sizeof in);
	if (error)
		return error;
	memset(e, 0, sizeof *e);
	e->event.event = in.type;
	e->event.status = in.status == INT32_MIN ? -EPROTO : in.status; /* it can be negated */
	bool request = in.type == RDMA_CM_EVENT_CONNECT_REQUEST;
	struct cm_id *id = cm_find(request ? in.listen : in.id, ch->generation);
	if (!id) {
		/* It was destroyed meanwhile. Nobody will know what was asked for. */
		if (request)
			cm_command_handle(ch->generation, SOFTROCE_OP_CM_DESTROY_ID, in.id);
		return EAGAIN;
	}
	e->counted = id;
	if (request) {
		if (accept_request(e, &in, id)) {
			count_completed(id);
			return EAGAIN;
		}
		return 0;
	}
	e->event.id = &id->id;
	if (!handle(e, &in, id)) {
		count_completed(id);
		return EAGAIN;
	}
	return 0;
}

/* When the daemon goes, each identifier that had a device has one event more; then it is ENODEV. */
static int last_event(struct cm_channel *ch, struct cm_event *e)
{
	struct cm_id *id = cm_find_orphan(&ch->channel);
	if (!id)
		return ENODEV;
	memset(e, 0, sizeof *e);
	e->event.event = RDMA_CM_EVENT_DEVICE_REMOVAL;
	e->event.id = &id->id;
	e->counted = id;
	return 0;
}

/* The next event. With EIO from the one or the other the daemon is gone. */
static int next_event(struct cm_channel *ch, struct cm_event *e)
{
	int error;
	while (!(error = await(ch)) && (error = fetch(ch, e)) == EAGAIN)
		;
	return error == EIO ? last_event(ch, e) : error;
}

SR_PUBLIC int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	struct cm_channel *ch = (struct cm_channel *)channel;
	if (!channel || !event)
		return cm_result(EINVAL);
	struct wait w = {ch, malloc(sizeof *w.event), 0};
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

SR_PUBLIC int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	if (!event)
		return cm_result(EINVAL);
	struct cm_event *e = (struct cm_event *)event;
	struct cm_id *id = e->counted;
	free(e);
	count_completed(id);
	return 0;
}

void cm_forget_event(struct cm_id *id)
{
	rdma_ack_cm_event(id->id.event);
	id->id.event = NULL;
}

/* Of an identifier that has its channel to itself, waits for the outcome of what was asked. */
int cm_complete(struct cm_id *id)
{
	if (!id->sync)
		return 0;
	if (id->id.event)
		cm_forget_event(id);
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
		cm_forget_event(l);
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
