// SPDX-License-Identifier: Apache-2.0
#include "ibverbs/wq.h"

void sr_wq_init(struct sr_wq *w)
{
	pthread_mutex_init(&w->lock, NULL);
}

int sr_wq_open(struct sr_context *ctx, struct sr_wq *w, const struct sr_ring *r, uint32_t max_wr,
	       size_t used)
{
	struct sr_shm ring;
	int error = sr_ring_map(&ctx->chunks, &ring, r->fd, r->chunk, r->offset,
				SOFTROCE_RING_SLOTS + (size_t)r->slots * r->slot_size);
	if (error)
		return error;
	/* Slots are accessed as structs, whose alignment is 8. */
	if (!sr_valid_slot_count(r->slots) || r->slot_size < used || r->slot_size % 8 ||
	    max_wr > r->slots) {
		sr_ring_unmap(&ctx->chunks, &ring);
		return EPROTO;
	}
	sr_ring_unmap(&ctx->chunks, &w->ring);
	w->ring = ring;
	w->slot_size = r->slot_size;
	w->mask = r->slots - 1;
	w->max_wr = max_wr;
	w->producer = atomic_load(sr_shm_word(&ring, SOFTROCE_RING_PRODUCER));
	return 0;
}

void sr_wq_close(struct sr_context *ctx, struct sr_wq *w)
{
	sr_ring_unmap(&ctx->chunks, &w->ring);
	pthread_mutex_destroy(&w->lock);
}

static void put_recv(struct softroce_recv_wqe *wqe, const struct ibv_recv_wr *wr)
{
	wqe->wr_id = wr->wr_id;
	wqe->num_sge = (uint32_t)wr->num_sge;
	sr_put_sges(wqe + 1, wr->sg_list, (uint32_t)wr->num_sge);
}

int sr_wq_post_recv(struct sr_wq *w, uint32_t max_sge, struct ibv_recv_wr *wr,
		    struct ibv_recv_wr **bad, bool *posted)
{
	uint32_t room = w->max_wr - sr_wq_used(w);
	int error = 0;
	*posted = false;
	for (; wr; wr = wr->next) {
		if (wr->num_sge < 0 || (uint32_t)wr->num_sge > max_sge)
			error = EINVAL;
		else if (!room)
			error = ENOMEM;
		if (error) {
			*bad = wr;
			break;
		}
		put_recv(sr_wq_slot(w, w->producer), wr);
		w->producer++;
		room--;
		*posted = true;
	}
	if (*posted)
		sr_wq_publish(w);
	return error;
}
