/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work queues: rings of which this side is the producer.
 */
#ifndef SOFTROCE_WQ_H
#define SOFTROCE_WQ_H

#include "ibverbs/context.h"

#include <string.h>

struct sr_wq {
	pthread_mutex_t lock;
	bool single_threaded; /* lock is not used */
	struct sr_shm ring;
	uint32_t slot_size;
	uint32_t mask;
	uint32_t max_wr;
	uint32_t producer;
	/* For sr_flush_next, under the lock of the completion queue. */
	bool flushing;	  /* it has looked at this queue: flushed is valid */
	uint32_t flushed; /* work requests below this index are complete */
};

void sr_wq_init(struct sr_wq *w);
void sr_wq_close(struct sr_context *ctx, struct sr_wq *w);

/* Where a ring is: in a chunk whose descriptor is fd, or -1 if it is mapped. */
struct sr_ring {
	int fd;
	const struct softroce_chunk *chunk;
	uint32_t offset;
	uint32_t slots;
	uint32_t slot_size;
};

/*
 * sr_wq_open uses a ring, also in place of an earlier one, and closes its descriptor. used is the
 * number of bytes of a slot that this side may write. 0 or an errno.
 */
int sr_wq_open(struct sr_context *ctx, struct sr_wq *w, const struct sr_ring *r, uint32_t max_wr,
	       size_t used);

/*
 * sr_wq_post_recv posts receives up to the first that is invalid, which *bad then points to.
 * *posted reports whether there was at least one. The caller holds the lock.
 */
int sr_wq_post_recv(struct sr_wq *w, uint32_t max_sge, struct ibv_recv_wr *wr,
		    struct ibv_recv_wr **bad, bool *posted);

/* The bytes of a send slot that so many SGEs, or so much inline data, take. */
static inline size_t sr_send_bytes(uint32_t sges, uint32_t inlined)
{
	size_t s = (size_t)sges * sizeof(struct softroce_sge);
	return sizeof(struct softroce_send_wqe) + (s > inlined ? s : inlined);
}

static inline size_t sr_recv_bytes(uint32_t sges)
{
	return sizeof(struct softroce_recv_wqe) + (size_t)sges * sizeof(struct softroce_sge);
}

_Static_assert(sizeof(struct ibv_sge) == sizeof(struct softroce_sge) &&
		       offsetof(struct ibv_sge, addr) == offsetof(struct softroce_sge, addr) &&
		       offsetof(struct ibv_sge, length) == offsetof(struct softroce_sge, length) &&
		       offsetof(struct ibv_sge, lkey) == offsetof(struct softroce_sge, lkey),
	       "sr_put_sges copies them unchanged");

/* Writes the SGEs that follow the fixed part of a work request. */
static inline void sr_put_sges(void *to, const struct ibv_sge *list, uint32_t n)
{
	if (n)
		memcpy(to, list, n * sizeof *list);
}

/* The number of slots that the daemon has not consumed. */
static inline uint32_t sr_wq_used(struct sr_wq *w)
{
	return w->producer - atomic_load_explicit(sr_shm_word(&w->ring, SOFTROCE_RING_CONSUMER),
						  memory_order_acquire);
}

static inline void *sr_wq_slot(struct sr_wq *w, uint32_t i)
{
	return w->ring.mem + SOFTROCE_RING_SLOTS + (size_t)(i & w->mask) * w->slot_size;
}

static inline void sr_wq_publish(struct sr_wq *w)
{
	atomic_store_explicit(sr_shm_word(&w->ring, SOFTROCE_RING_PRODUCER), w->producer,
			      memory_order_release);
}

#endif
