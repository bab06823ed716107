/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SOFTROCE_CQ_H
#define SOFTROCE_CQ_H

#include "ibverbs/context.h"

struct sr_cq {
	union {
		struct ibv_cq ibv;
		struct ibv_cq_ex ex;
	};
	struct sr_link link;	     /* in its context */
	struct sr_link channel_link; /* in its completion channel */
	uint32_t comp_events_taken;  /* out of the ring, under the channel's lock */
	/* Events that the program has to acknowledge, under ibv.mutex. */
	uint32_t comp_events_reported;
	uint32_t async_events_reported;
	bool end_reported; /* the event that reports the end of the daemon was delivered */
	atomic_int users;  /* queue pairs, and shared receive queues of XRC */

	pthread_mutex_t lock;
	bool single_threaded; /* lock is not used, except by ibv_resize_cq */
	struct sr_shm ring;   /* not mapped if a resize has lost it */
	uint32_t mask;
	uint32_t consumer;
	uint32_t empty_polls;
	uint32_t yield_polls;	    /* empty polls from one yield of the processor to the next */
	uint32_t polls_to_yield;    /* those that are left */
	int64_t yielded;	    /* when the last yield ended, in nanoseconds */
	uint32_t yield_empty_polls; /* empty_polls at that time */
	int64_t waited;	       /* nanoseconds that were spent polling, and are not published yet */
	bool shared;	       /* the last yields let another thread run */
	uint8_t shared_yields; /* modulo 256 */
	const struct softroce_cqe *cqe;	   /* the one that an extended poll is looking at */
	struct softroce_cqe flush_cqe;	   /* made by sr_flush_next */
	struct sr_link send_qps, recv_qps; /* those that complete here, under lock */
};

static inline struct sr_cq *sr_cq(struct ibv_cq *q)
{
	return (struct sr_cq *)q;
}

/* The completion events that the ring counts. */
static inline uint32_t sr_cq_events(const struct sr_cq *q)
{
	return atomic_load(sr_shm_word(&q->ring, SOFTROCE_CQ_EVENTS));
}

/* processor.c */
/* sr_share_processor yields the processor after some empty polls of q, whose lock is held. */
void sr_share_processor(struct sr_cq *q);

/* cq.c */
/* flags are those of struct softroce_create_cq_request. */
struct sr_cq *sr_create_cq(struct ibv_context *context, uint32_t cqe, void *cq_context,
			   struct ibv_comp_channel *channel, uint32_t vector, uint32_t flags);
int sr_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int sr_req_notify_cq(struct ibv_cq *cq, int solicited_only);

/*
 * sr_cq_peek returns the next completion, which stays in the queue until sr_cq_consume. If the
 * queue is empty and the daemon is gone, it returns completions with the status "flushed" for the
 * outstanding work requests, and sets *end once there are none left. The caller holds the lock.
 */
const struct softroce_cqe *sr_cq_peek(struct sr_cq *q, bool *end);
void sr_cq_consume(struct sr_cq *q);

/* sr_cq_purge removes the completions of a queue pair, which must no longer be seen. */
void sr_cq_purge(struct sr_cq *q, uint32_t qpn);

/* cq_ex.c */
struct ibv_cq_ex *sr_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);

/* flush.c: the next flushed completion after the end of the daemon, or NULL. */
const struct softroce_cqe *sr_flush_next(struct sr_cq *q);

#endif
