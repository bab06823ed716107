// SPDX-License-Identifier: Apache-2.0
/*
 * Completion channels and asynchronous events. Both arrive through sockets: one byte for each
 * event, and the end of the file when the daemon is gone.
 */
#include "ibverbs/event.h"
#include "ibverbs/cq.h"
#include "ibverbs/qp.h"
#include "ibverbs/srq.h"

#include "core/cancel.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SR_PUBLIC struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct sr_channel *ch = calloc(1, sizeof *ch);
	if (!ch)
		return sr_null(ENOMEM);
	struct softroce_handle_reply reply = {0};
	struct sr_conn *c = &sr_ctx(context)->conn;
	int error = sr_command_fd(c, SOFTROCE_OP_CREATE_CHANNEL, NULL, 0, &reply, sizeof reply,
				  &ch->ibv.fd);
	if (error) {
		if (reply.handle)
			sr_command_handle(c, SOFTROCE_OP_DESTROY_CHANNEL, reply.handle);
		free(ch);
		return sr_null(error);
	}
	sr_make_blocking(ch->ibv.fd);
	ch->ibv.context = context;
	ch->handle = reply.handle;
	pthread_mutex_init(&ch->lock, NULL);
	sr_list_init(&ch->cqs);
	ch->last = &ch->cqs;
	struct sr_context *ctx = sr_ctx(context);
	pthread_mutex_lock(&ctx->lock);
	sr_list_add(&ctx->channels, &ch->link);
	pthread_mutex_unlock(&ctx->lock);
	return &ch->ibv;
}

SR_PUBLIC int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
	struct sr_channel *ch = (struct sr_channel *)ibv;
	struct sr_context *ctx = sr_ctx(ibv->context);
	pthread_mutex_lock(&ch->lock);
	int users = ibv->refcnt;
	pthread_mutex_unlock(&ch->lock);
	if (users)
		return sr_error(EBUSY);
	int error = sr_destroy(&ctx->conn, SOFTROCE_OP_DESTROY_CHANNEL, ch->handle);
	if (error)
		return error;
	pthread_mutex_lock(&ctx->lock);
	sr_list_del(&ch->link);
	pthread_mutex_unlock(&ctx->lock);
	sr_close_fd(&ctx->conn, ibv->fd);
	pthread_mutex_destroy(&ch->lock);
	free(ch);
	return 0;
}

static bool take_comp_event(struct sr_cq *q)
{
	pthread_mutex_lock(&q->lock); /* the queue may be resized */
	bool fired = q->ring.mem && sr_cq_events(q) != q->comp_events_taken;
	q->comp_events_taken += fired;
	pthread_mutex_unlock(&q->lock);
	return fired;
}

static bool take_end_event(struct sr_cq *q)
{
	bool first = !q->end_reported;
	q->end_reported = true;
	return first;
}

static void count_reported(pthread_mutex_t *m, uint32_t *reported)
{
	pthread_mutex_lock(m);
	++*reported;
	pthread_mutex_unlock(m);
}

/* Picks a queue that has an event, in round-robin order. */
static struct sr_cq *pick_cq(struct sr_channel *ch, bool (*take)(struct sr_cq *))
{
	struct sr_cq *found = NULL;
	pthread_mutex_lock(&ch->lock);
	struct sr_link *l = ch->last;
	do {
		l = l->next;
		struct sr_cq *q = sr_container(l, struct sr_cq, channel_link);
		if (l != &ch->cqs && take(q))
			found = q;
	} while (!found && l != ch->last);
	if (found) {
		ch->last = l;
		count_reported(&found->ibv.mutex, &found->comp_events_reported);
	}
	sr_byte_used(&sr_ctx(ch->ibv.context)->conn, ch->ibv.fd, &ch->dropped_events, found);
	pthread_mutex_unlock(&ch->lock);
	return found;
}

/* A child would take its parent's events out of the socket, which both have. */
static int check_own_socket(const struct sr_context *ctx)
{
	if (!ctx->conn.forked)
		return 0;
	errno = EIO;
	return -1;
}

/*
 * When the daemon is gone, every queue of the channel gets one more event, so that the program
 * polls it and finds the flushed completions. After that the error is EIO.
 */
SR_PUBLIC int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq,
			       void **cq_context)
{
	struct sr_channel *ch = (struct sr_channel *)channel;
	struct sr_cq *q = NULL;
	if (check_own_socket(sr_ctx(channel->context)))
		return -1;
	while (!q) {
		char event;
		ssize_t n = read(channel->fd, &event, 1);
		if (n < 0)
			return -1;
		if (n > 0) {
			q = pick_cq(ch, take_comp_event);
			continue;
		}
		atomic_store(&sr_ctx(channel->context)->conn.gone, 1);
		q = pick_cq(ch, take_end_event);
		if (!q) {
			errno = EIO;
			return -1;
		}
	}
	*cq = &q->ibv;
	*cq_context = q->ibv.cq_context;
	return 0;
}

SR_PUBLIC void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += nevents;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

void sr_wait_acknowledged(pthread_mutex_t *m, pthread_cond_t *cond, const uint32_t *reported,
			  const uint32_t *completed)
{
	int state = sr_defer_cancel();
	pthread_mutex_lock(m);
	/* A forked child may acknowledge events that were reported to its parent. */
	while ((int32_t)(*reported - *completed) > 0)
		pthread_cond_wait(cond, m);
	pthread_mutex_unlock(m);
	sr_restore_cancel(state);
}

/* Finds the object of an event; false if it was destroyed since. The caller holds ctx->lock. */
static bool find_element(struct sr_context *ctx, uint32_t handle, struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_CQ_ERR:
		sr_for_each (l, &ctx->cqs) {
			struct sr_cq *q = sr_container(l, struct sr_cq, link);
			if (q->ibv.handle != handle)
				continue;
			event->element.cq = &q->ibv;
			count_reported(&q->ibv.mutex, &q->async_events_reported);
			return true;
		}
		return false;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		sr_for_each (l, &ctx->srqs) {
			struct sr_srq *s = sr_container(l, struct sr_srq, link);
			if (s->ibv.handle != handle)
				continue;
			event->element.srq = &s->ibv;
			count_reported(&s->ibv.mutex, &s->events_reported);
			return true;
		}
		return false;
	default:
		sr_for_each (l, &ctx->qps) {
			struct sr_qp *q = sr_container(l, struct sr_qp, link);
			if (q->ex.qp_base.handle != handle)
				continue;
			event->element.qp = &q->ex.qp_base;
			count_reported(&q->ex.qp_base.mutex, &q->events_reported);
			return true;
		}
		return false;
	}
}

static struct softroce_async_event *event_slot(struct sr_context *ctx, uint32_t i)
{
	return (struct softroce_async_event *)(ctx->events.mem + SOFTROCE_RING_SLOTS) +
	       i % ctx->event_slots;
}

static uint32_t load_event_index(struct sr_context *ctx, size_t which)
{
	return atomic_load(sr_shm_word(&ctx->events, which));
}

/* The daemon moves events that found the ring full to it when it is awake. */
static void set_event_consumer(struct sr_context *ctx, uint32_t i)
{
	atomic_store(sr_shm_word(&ctx->events, SOFTROCE_RING_CONSUMER), i);
	if (load_event_index(ctx, SOFTROCE_EVENTS_WAITING))
		sr_wake_engine(ctx);
}

/* The number of events in the ring, whose last is below end; 0 if that index is impossible. */
static uint32_t count_events(struct sr_context *ctx, uint32_t end)
{
	uint32_t n = end - load_event_index(ctx, SOFTROCE_RING_CONSUMER);
	return n <= ctx->event_slots ? n : 0;
}

/* As in sr_cq_purge, the events to keep are moved up to the producer index. */
void sr_drop_async_events(struct sr_context *ctx, uint32_t handle)
{
	uint32_t n = 0, to = load_event_index(ctx, SOFTROCE_RING_PRODUCER), from = to;
	for (uint32_t left = count_events(ctx, to); left; left--) {
		const struct softroce_async_event *e = event_slot(ctx, --from);
		if (e->handle == handle)
			n++;
		else if (--to != from)
			*event_slot(ctx, to) = *e;
	}
	if (!n)
		return;
	set_event_consumer(ctx, to);
	sr_drop_events(&ctx->conn, ctx->verbs.context.async_fd, &ctx->dropped_events, n);
}

/* Takes the next event from the ring; false if there is none. */
static bool next_event(struct sr_context *ctx, struct ibv_async_event *event)
{
	bool found = false;
	pthread_mutex_lock(&ctx->lock);
	uint32_t i = load_event_index(ctx, SOFTROCE_RING_CONSUMER);
	uint32_t left = count_events(ctx, load_event_index(ctx, SOFTROCE_RING_PRODUCER));
	for (; !found && left; left--) {
		struct softroce_async_event e = *event_slot(ctx, i);
		set_event_consumer(ctx, ++i);
		memset(event, 0, sizeof *event);
		event->event_type = e.type;
		event->element.port_num = (int)e.port;
		found = !e.handle || find_element(ctx, e.handle, event);
		if (!found) /* an object of another process: the context is imported */
			sr_drop_events(&ctx->conn, ctx->verbs.context.async_fd,
				       &ctx->dropped_events, 1);
	}
	sr_byte_used(&ctx->conn, ctx->verbs.context.async_fd, &ctx->dropped_events, found);
	pthread_mutex_unlock(&ctx->lock);
	return found;
}

static int note_fatal(struct sr_context *ctx, const struct ibv_async_event *event)
{
	if (event->event_type == IBV_EVENT_DEVICE_FATAL)
		atomic_store(&ctx->fatal_reported, 1);
	return 0;
}

/* If the daemon was killed, it sent no IBV_EVENT_DEVICE_FATAL: it is generated here, once. */
SR_PUBLIC int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct sr_context *ctx = sr_ctx(context);
	if (check_own_socket(ctx))
		return -1;
	for (;;) {
		char byte;
		ssize_t n = read(context->async_fd, &byte, 1);
		if (n < 0)
			return -1;
		if (next_event(ctx, event))
			return note_fatal(ctx, event);
		if (n > 0)
			continue;
		atomic_store(&ctx->conn.gone, 1);
		if (!atomic_exchange(&ctx->fatal_reported, 1)) {
			memset(event, 0, sizeof *event);
			event->event_type = IBV_EVENT_DEVICE_FATAL;
			event->element.port_num = 1;
			return 0;
		}
		errno = EIO;
		return -1;
	}
}

static void acknowledge(pthread_mutex_t *m, pthread_cond_t *cond, uint32_t *completed)
{
	pthread_mutex_lock(m);
	++*completed;
	pthread_cond_signal(cond);
	pthread_mutex_unlock(m);
}

SR_PUBLIC void ibv_ack_async_event(struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_CQ_ERR: {
		struct ibv_cq *cq = event->element.cq;
		acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed);
		break;
	}
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED: {
		struct ibv_srq *srq = event->element.srq;
		acknowledge(&srq->mutex, &srq->cond, &srq->events_completed);
		break;
	}
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED: {
		struct ibv_qp *qp = event->element.qp;
		acknowledge(&qp->mutex, &qp->cond, &qp->events_completed);
		break;
	}
	default:
		break;
	}
}
