// SPDX-License-Identifier: Apache-2.0
/*
 * Contexts: opening and closing a device, and what a fork does to them.
 */
#include "ibverbs/context.h"
#include "ibverbs/ah.h"
#include "ibverbs/cq.h"
#include "ibverbs/device.h"
#include "ibverbs/event.h"
#include "ibverbs/ops.h"
#include "ibverbs/qp.h"
#include "ibverbs/srq.h"

#include "core/at_fork.h"
#include "core/cancel.h"
#include "memory/shared.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sr_link contexts = {&contexts, &contexts};

/*
 * A forked child has copies of its parent's objects, but their queues are the parent's. In the
 * child the rings are replaced by private memory, so that nothing the child does reaches the
 * parent's queues, and the child's copy of the connection is closed. Other threads may have held
 * locks, or waited for one another: they do not exist in the child.
 */
static void object_forked(pthread_mutex_t *m, pthread_cond_t *cond)
{
	pthread_mutex_init(m, NULL);
	pthread_cond_init(cond, NULL);
}

static void wq_forked(struct sr_wq *w)
{
	w->producer = 0;
	w->flushing = false;
	pthread_mutex_init(&w->lock, NULL);
}

static void context_forked(struct sr_context *ctx)
{
	sr_conn_forked(&ctx->conn);
	sr_close_fd(&ctx->conn, ctx->doorbell_fd);
	ctx->doorbell_fd = -1;
	sr_shm_make_private(&ctx->doorbells);
	sr_chunks_make_private(&ctx->chunks);
	sr_for_each (l, &ctx->cqs) {
		struct sr_cq *q = sr_container(l, struct sr_cq, link);
		q->consumer = q->comp_events_taken = 0;
		q->comp_events_reported = q->ibv.comp_events_completed;
		q->async_events_reported = q->ibv.async_events_completed;
		pthread_mutex_init(&q->lock, NULL);
		object_forked(&q->ibv.mutex, &q->ibv.cond);
	}
	sr_for_each (l, &ctx->qps) {
		struct sr_qp *q = sr_container(l, struct sr_qp, link);
		wq_forked(&q->sq);
		wq_forked(&q->rq);
		q->events_reported = q->ex.qp_base.events_completed;
		object_forked(&q->ex.qp_base.mutex, &q->ex.qp_base.cond);
	}
	sr_for_each (l, &ctx->srqs) {
		struct sr_srq *s = sr_container(l, struct sr_srq, link);
		wq_forked(&s->wq);
		s->events_reported = s->ibv.events_completed;
		object_forked(&s->ibv.mutex, &s->ibv.cond);
	}
	sr_for_each (l, &ctx->channels)
		pthread_mutex_init(&sr_container(l, struct sr_channel, link)->lock, NULL);
}

static void before_fork(void)
{
	pthread_mutex_lock(&contexts_lock);
	sr_for_each (l, &contexts) {
		struct sr_context *ctx = sr_container(l, struct sr_context, link);
		pthread_mutex_lock(&ctx->lock);
		pthread_mutex_lock(&ctx->chunks.lock);
	}
}

static void after_fork_parent(void)
{
	sr_for_each (l, &contexts) {
		struct sr_context *ctx = sr_container(l, struct sr_context, link);
		pthread_mutex_unlock(&ctx->chunks.lock);
		pthread_mutex_unlock(&ctx->lock);
	}
	pthread_mutex_unlock(&contexts_lock);
}

static void after_fork_child(void)
{
	sr_for_each (l, &contexts)
		context_forked(sr_container(l, struct sr_context, link));
	after_fork_parent(); /* these locks are the forking thread's */
}

SR_AT_FORK(before_fork, after_fork_parent, after_fork_child)

static void link_context(struct sr_context *ctx)
{
	pthread_mutex_lock(&contexts_lock);
	sr_list_add(&contexts, &ctx->link);
	pthread_mutex_unlock(&contexts_lock);
}

static struct sr_context *new_context(struct ibv_device *device)
{
	struct sr_context *ctx = calloc(1, sizeof *ctx);
	if (!ctx)
		return NULL;
	ctx->verbs.sz = sizeof ctx->verbs;
	struct ibv_context *c = &ctx->verbs.context;
	c->device = device;
	c->abi_compat = __VERBS_ABI_IS_EXTENDED;
	c->num_comp_vectors = 1;
	c->cmd_fd = c->async_fd = ctx->doorbell_fd = -1;
	pthread_mutex_init(&c->mutex, NULL);
	pthread_mutex_init(&ctx->lock, NULL);
	pthread_mutex_init(&ctx->chunks.lock, NULL);
	sr_list_init(&ctx->link);
	sr_list_init(&ctx->channels);
	sr_list_init(&ctx->cqs);
	sr_list_init(&ctx->qps);
	sr_list_init(&ctx->srqs);
	sr_list_init(&ctx->ahs.idle);
	sr_set_ops(ctx);
	return ctx;
}

static void free_context(struct sr_context *ctx)
{
	struct ibv_context *c = &ctx->verbs.context;
	sr_shm_unmap(&ctx->doorbells);
	sr_ring_unmap(&ctx->chunks, &ctx->events);
	sr_close_fd(&ctx->conn, ctx->doorbell_fd);
	sr_close_fd(&ctx->conn, c->async_fd);
	sr_close_fd(&ctx->conn, c->cmd_fd);
	pthread_mutex_destroy(&c->mutex);
	pthread_mutex_destroy(&ctx->lock);
	pthread_mutex_destroy(&ctx->chunks.lock);
	free(ctx->gids.entries);
	sr_free_ahs(ctx);
	free(ctx);
}

/* Maps what came with the reply to "open device" or "join device". */
static int map_context(struct sr_context *ctx, const struct softroce_open_device_reply *r,
		       int fds[4])
{
	struct ibv_context *c = &ctx->verbs.context;
	ctx->doorbell_fd = fds[1];
	c->async_fd = fds[3];
	sr_make_blocking(fds[3]);
	int error = 0;
	/* A descriptor of the doorbell page entitles its holder to join the context. */
	if (c->cmd_fd < 0)
		c->cmd_fd = fcntl(fds[0], F_DUPFD_CLOEXEC, 0);
	if (c->cmd_fd < 0)
		error = errno;
	ctx->conn.join_fd = c->cmd_fd;
	int mapped = sr_shm_map(&ctx->doorbells, fds[0], r->doorbell_size);
	if (mapped)
		error = mapped;
	if (r->doorbell_size < SOFTROCE_DOORBELL_BITS || !sr_valid_slot_count(r->event_slots))
		error = EPROTO;
	ctx->event_slots = r->event_slots;
	mapped = sr_ring_map(&ctx->chunks, &ctx->events, fds[2], &r->chunk, r->event_ring,
			     SOFTROCE_RING_SLOTS +
				     (size_t)r->event_slots * sizeof(struct softroce_async_event));
	return mapped ? mapped : error;
}

static int open_device(struct sr_context *ctx, const char *name)
{
	struct softroce_open_device_request req = {0};
	struct softroce_open_device_reply reply;
	int fds[4];
	memcpy(req.name, name, strnlen(name, sizeof req.name - 1));
	struct sr_request r = {
		.op = SOFTROCE_OP_OPEN_DEVICE,
		.body = &req,
		.len = sizeof req,
		.reply = &reply,
		.reply_len = sizeof reply,
		.reply_fds = fds,
		.reply_nfds = 4,
	};
	int error = sr_call(&ctx->conn, &r);
	return error ? error : map_context(ctx, &reply, fds);
}

/* Joins the context that cmd_fd belongs to, and finds its device. */
static int join_device(struct sr_context *ctx, int cmd_fd)
{
	struct softroce_open_device_reply reply;
	int fds[4];
	struct sr_request r = {
		.op = SOFTROCE_OP_JOIN_DEVICE,
		.fds = &cmd_fd,
		.nfds = 1,
		.reply = &reply,
		.reply_len = sizeof reply,
		.reply_fds = fds,
		.reply_nfds = 4,
	};
	int error = sr_call(&ctx->conn, &r);
	if (error)
		return error;
	struct ibv_context *c = &ctx->verbs.context;
	c->cmd_fd = cmd_fd;
	error = map_context(ctx, &reply, fds);
	reply.name[sizeof reply.name - 1] = 0;
	struct sr_device *d = sr_find_device((const char *)reply.name);
	if (!error && !d)
		error = ENODEV;
	c->device = d ? &d->ibv : NULL;
	if (error)
		c->cmd_fd = -1; /* the caller keeps it */
	return error;
}

/* Opens a context of a device, or, if device is NULL, joins the context of cmd_fd. */
static struct ibv_context *new_connected_context(struct ibv_device *device, int cmd_fd)
{
	struct sr_context *ctx = new_context(device);
	if (!ctx)
		return sr_null(ENOMEM);
	int error = sr_connect(&ctx->conn);
	if (!error) {
		error = device ? open_device(ctx, device->name) : join_device(ctx, cmd_fd);
		if (error)
			sr_disconnect(&ctx->conn);
	}
	if (error) {
		free_context(ctx);
		return sr_null(error);
	}
	link_context(ctx);
	sr_aligned_begin();
	sr_mapped_begin();
	return &ctx->verbs.context;
}

SR_PUBLIC struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	return new_connected_context(device, -1);
}

SR_PUBLIC struct ibv_context *ibv_import_device(int cmd_fd)
{
	return new_connected_context(NULL, cmd_fd);
}

/*
 * Waits until the daemon has closed its end of the connection. From then on it does not access
 * registered memory, and the program may unmap or reuse it.
 */
static void wait_released(struct sr_conn *c)
{
	char buf[256];
	if (c->fd < 0 || sr_conn_stolen(c) || shutdown(c->fd, SHUT_WR))
		return;
	ssize_t n;
	do {
		n = recv(c->fd, buf, sizeof buf, 0);
	} while (n > 0 || (n < 0 && (errno == EINTR || errno == ECONNRESET)));
}

SR_PUBLIC int ibv_close_device(struct ibv_context *context)
{
	struct sr_context *ctx = sr_ctx(context);
	int state = sr_defer_cancel();
	pthread_mutex_lock(&contexts_lock);
	sr_list_del(&ctx->link);
	pthread_mutex_unlock(&contexts_lock);
	wait_released(&ctx->conn);
	sr_disconnect(&ctx->conn);
	free_context(ctx);
	sr_restore_cancel(state);
	return 0;
}
