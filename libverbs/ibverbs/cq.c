// SPDX-License-Identifier: Apache-2.0
/*
 * Completion queues: creation, polling, arming and destruction.
 */
#include "ibverbs/cq.h"
#include "ibverbs/event.h"

#include <stdlib.h>

/* The connection is checked once in so many empty polls. */
#define CHECK_CONN_POLLS 1024

static struct softroce_cqe *slot(struct sr_cq *q, uint32_t i)
{
	return (struct softroce_cqe *)(q->ring.mem + SOFTROCE_RING_SLOTS) + (i & q->mask);
}

/* A queue that has lost its ring is empty: see ibv_resize_cq. */
static uint32_t producer_index(struct sr_cq *q)
{
	if (!q->ring.mem)
		return q->consumer;
	return atomic_load_explicit(sr_shm_word(&q->ring, SOFTROCE_RING_PRODUCER),
				    memory_order_acquire);
}

static void publish_consumer(struct sr_cq *q)
{
	atomic_store_explicit(sr_shm_word(&q->ring, SOFTROCE_RING_CONSUMER), q->consumer,
			      memory_order_release);
}

static void load_wc(struct ibv_wc *wc, const struct softroce_cqe *cqe)
{
	wc->wr_id = cqe->wr_id;
	wc->status = cqe->status;
	wc->opcode = cqe->opcode;
	wc->vendor_err = cqe->vendor_err;
	wc->byte_len = cqe->byte_len;
	wc->imm_data = cqe->imm; /* or invalidated_rkey: a union */
	wc->qp_num = cqe->qp_num;
	wc->src_qp = cqe->src_qp;
	wc->wc_flags = cqe->flags;
	wc->pkey_index = cqe->pkey_index;
	wc->slid = cqe->slid;
	wc->sl = cqe->sl;
	wc->dlid_path_bits = cqe->path_bits;
}

const struct softroce_cqe *sr_cq_peek(struct sr_cq *q, bool *end)
{
	struct sr_conn *c = &sr_ctx(q->ibv.context)->conn;
	*end = !q->ring.mem;
	if (*end)
		return NULL;
	if (producer_index(q) != q->consumer)
		return slot(q, q->consumer);
	sr_share_processor(q);
	if (++q->empty_polls % CHECK_CONN_POLLS == 0)
		sr_alive(c);
	if (!sr_gone(c))
		return NULL;
	if (producer_index(q) != q->consumer) /* completed before the daemon ended */
		return slot(q, q->consumer);
	const struct softroce_cqe *cqe = sr_flush_next(q);
	*end = !cqe;
	return cqe;
}

/* flush_cqe is not in the ring. */
void sr_cq_consume(struct sr_cq *q)
{
	if (q->cqe == &q->flush_cqe)
		return;
	q->consumer++;
	publish_consumer(q);
}

static int poll_empty(struct sr_cq *q, int n, struct ibv_wc *wc)
{
	int got = 0;
	bool end = false;
	while (got < n && (q->cqe = sr_cq_peek(q, &end))) {
		load_wc(&wc[got++], q->cqe);
		sr_cq_consume(q);
	}
	if (got || !end)
		return got;
	errno = EIO;
	return -1;
}

int sr_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct sr_cq *q = sr_cq(cq);
	int got = 0;
	bool locked = sr_lock_call(&q->lock, q->single_threaded);
	uint32_t end = producer_index(q);
	while (got < n && q->consumer != end)
		load_wc(&wc[got++], slot(q, q->consumer++));
	if (got)
		publish_consumer(q);
	else if (n > 0)
		got = poll_empty(q, n, wc);
	sr_unlock_call(&q->lock, locked);
	return got;
}

int sr_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	struct sr_cq *q = sr_cq(cq);
	if (sr_gone(&sr_ctx(cq->context)->conn))
		return sr_error(EIO);
	sr_lock(&q->lock, q->single_threaded);
	if (!q->ring.mem) {
		sr_unlock(&q->lock, q->single_threaded);
		return sr_error(EIO);
	}
	_Atomic uint32_t *armed = sr_shm_word(&q->ring, SOFTROCE_CQ_ARMED);
	uint32_t none = SOFTROCE_CQ_ARM_NONE;
	/* A queue armed for all completions stays so: these include solicited ones. */
	if (solicited_only)
		atomic_compare_exchange_strong(armed, &none, SOFTROCE_CQ_ARM_SOLICITED);
	else
		atomic_store(armed, SOFTROCE_CQ_ARM_NEXT);
	/*
	 * The program polls once more now, and the daemon loads this word after it has stored the
	 * producer index. Either the poll sees the completion, or the daemon sees the word. The
	 * fence is needed because the poll's load is only an acquire.
	 */
	atomic_thread_fence(memory_order_seq_cst);
	sr_unlock(&q->lock, q->single_threaded);
	return 0;
}

/*
 * The daemon only adds completions after those that are present, so the ones to keep are moved
 * up to the producer index.
 */
static void purge(struct sr_cq *q, uint32_t qpn)
{
	uint32_t to = producer_index(q);
	if (to - q->consumer > q->mask + 1) /* impossible: it has been overwritten */
		return;
	for (uint32_t from = to; from != q->consumer;) {
		const struct softroce_cqe *cqe = slot(q, --from);
		if (cqe->qp_num == qpn)
			continue;
		if (--to != from)
			*slot(q, to) = *cqe;
	}
	q->consumer = to;
	publish_consumer(q);
}

void sr_cq_purge(struct sr_cq *q, uint32_t qpn)
{
	sr_lock(&q->lock, q->single_threaded);
	if (q->ring.mem)
		purge(q, qpn);
	sr_unlock(&q->lock, q->single_threaded);
}

static int map_ring(struct sr_cq *q, int fd, const struct softroce_create_cq_reply *r)
{
	struct sr_chunks *chunks = &sr_ctx(q->ibv.context)->chunks;
	struct sr_shm ring;
	int error =
		sr_ring_map(chunks, &ring, fd, &r->chunk, r->ring,
			    SOFTROCE_RING_SLOTS + (size_t)r->entries * sizeof(struct softroce_cqe));
	if (error)
		return error;
	if (!sr_valid_slot_count(r->entries)) {
		sr_ring_unmap(chunks, &ring);
		return EPROTO;
	}
	sr_ring_unmap(chunks, &q->ring);
	q->ring = ring;
	q->mask = r->entries - 1;
	q->consumer = atomic_load(sr_shm_word(&ring, SOFTROCE_RING_CONSUMER));
	q->ibv.cqe = (int)r->entries;
	return 0;
}

static int cmd_create_cq(struct sr_cq *q, uint32_t cqe, uint32_t flags)
{
	struct sr_channel *ch = (struct sr_channel *)q->ibv.channel;
	struct sr_conn *c = &sr_ctx(q->ibv.context)->conn;
	struct softroce_create_cq_request req = {
		.entries = cqe, .channel = ch ? ch->handle : 0, .flags = flags};
	struct softroce_create_cq_reply reply = {0};
	int fd;
	int error = sr_command_fd(c, SOFTROCE_OP_CREATE_CQ, &req, sizeof req, &reply, sizeof reply,
				  &fd);
	if (!error)
		error = map_ring(q, fd, &reply);
	if (error && reply.handle)
		sr_command_handle(c, SOFTROCE_OP_DESTROY_CQ, reply.handle);
	q->ibv.handle = reply.handle;
	return error;
}

static void link_cq(struct sr_cq *q)
{
	struct sr_context *ctx = sr_ctx(q->ibv.context);
	struct sr_channel *ch = (struct sr_channel *)q->ibv.channel;
	sr_list_init(&q->channel_link);
	if (ch)
		pthread_mutex_lock(&ch->lock);
	pthread_mutex_lock(&ctx->lock);
	sr_list_add(&ctx->cqs, &q->link);
	if (ch) {
		sr_list_add(&ch->cqs, &q->channel_link);
		ch->ibv.refcnt++;
	}
	pthread_mutex_unlock(&ctx->lock);
	if (ch)
		pthread_mutex_unlock(&ch->lock);
}

/* The caller holds the channel's lock. */
static void unlink_cq(struct sr_cq *q, struct sr_channel *ch)
{
	struct sr_context *ctx = sr_ctx(q->ibv.context);
	pthread_mutex_lock(&ctx->lock);
	sr_list_del(&q->link);
	sr_drop_async_events(ctx, q->ibv.handle);
	if (ch) {
		if (ch->last == &q->channel_link)
			ch->last = q->channel_link.prev;
		sr_list_del(&q->channel_link);
		ch->ibv.refcnt--;
	}
	pthread_mutex_unlock(&ctx->lock);
}

/*
 * Destroys a queue. Afterwards the daemon may use the memory of the ring for another one, so the
 * channel's lock keeps other threads from looking for events there.
 */
static int cmd_destroy_cq(struct sr_cq *q)
{
	struct sr_context *ctx = sr_ctx(q->ibv.context);
	struct sr_channel *ch = (struct sr_channel *)q->ibv.channel;
	struct softroce_handle_request req = {.handle = q->ibv.handle};
	struct softroce_destroy_cq_reply reply;
	if (ch)
		pthread_mutex_lock(&ch->lock);
	int error = sr_command(&ctx->conn, SOFTROCE_OP_DESTROY_CQ, &req, sizeof req, &reply,
			       sizeof reply);
	if (error == EIO) { /* as in sr_destroy_unused */
		error = atomic_load(&q->users) ? sr_error(EBUSY) : 0;
		reply.events = q->ring.mem ? sr_cq_events(q) : q->comp_events_taken;
	}
	if (!error)
		unlink_cq(q, ch);
	if (ch && !error)
		sr_drop_events(&ctx->conn, ch->ibv.fd, &ch->dropped_events,
			       reply.events - q->comp_events_taken);
	if (ch)
		pthread_mutex_unlock(&ch->lock);
	return error;
}

struct sr_cq *sr_create_cq(struct ibv_context *context, uint32_t cqe, void *cq_context,
			   struct ibv_comp_channel *channel, uint32_t vector, uint32_t flags)
{
	if (!cqe || cqe > INT32_MAX || vector >= (uint32_t)context->num_comp_vectors)
		return sr_null(EINVAL);
	if (channel && channel->context != context)
		return sr_null(ENOENT);
	struct sr_cq *q = calloc(1, sizeof *q);
	if (!q)
		return sr_null(ENOMEM);
	q->ibv.context = context;
	q->ibv.channel = channel;
	q->ibv.cq_context = cq_context;
	sr_list_init(&q->send_qps);
	sr_list_init(&q->recv_qps);
	int error = cmd_create_cq(q, cqe, flags);
	if (error) {
		sr_ring_unmap(&sr_ctx(context)->chunks, &q->ring);
		free(q);
		return sr_null(error);
	}
	pthread_mutex_init(&q->lock, NULL);
	pthread_mutex_init(&q->ibv.mutex, NULL);
	pthread_cond_init(&q->ibv.cond, NULL);
	link_cq(q);
	return q;
}

SR_PUBLIC struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				       struct ibv_comp_channel *channel, int vector)
{
	struct sr_cq *q;
	if (cqe < 1 || vector < 0)
		return sr_null(EINVAL);
	q = sr_create_cq(context, (uint32_t)cqe, cq_context, channel, (uint32_t)vector, 0);
	return q ? &q->ibv : NULL;
}

/*
 * A queue whose new ring this process cannot use has no ring: the daemon may give the memory of the
 * old one to another queue. Polling then fails.
 *
 * The lock is acquired for a single-threaded queue, too: a thread that waits for an event of the
 * channel looks into the rings of all its queues.
 */
SR_PUBLIC int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	struct sr_cq *q = sr_cq(cq);
	struct softroce_resize_cq_request req = {.handle = cq->handle, .entries = (uint32_t)cqe};
	struct softroce_create_cq_reply reply = {0};
	int fd = -1;
	if (cqe < 1)
		return sr_error(EINVAL);
	/* The old ring must not be polled between the request and the reply. */
	pthread_mutex_lock(&q->lock);
	int error = sr_command_fd(&sr_ctx(cq->context)->conn, SOFTROCE_OP_RESIZE_CQ, &req,
				  sizeof req, &reply, sizeof reply, &fd);
	if (reply.handle)
		error = sr_moved(sr_ctx(cq->context), &q->ring, error, map_ring(q, fd, &reply));
	pthread_mutex_unlock(&q->lock);
	return sr_error(error);
}

SR_PUBLIC int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct sr_cq *q = sr_cq(cq);
	int error = cmd_destroy_cq(q);
	if (error)
		return error;
	sr_wait_acknowledged(&cq->mutex, &cq->cond, &q->comp_events_reported,
			     &cq->comp_events_completed);
	sr_wait_acknowledged(&cq->mutex, &cq->cond, &q->async_events_reported,
			     &cq->async_events_completed);
	sr_ring_unmap(&sr_ctx(cq->context)->chunks, &q->ring);
	pthread_mutex_destroy(&q->lock);
	pthread_mutex_destroy(&cq->mutex);
	pthread_cond_destroy(&cq->cond);
	free(q);
	return 0;
}
