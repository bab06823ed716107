// SPDX-License-Identifier: Apache-2.0
/*
 * Work queues: rings that this side fills.
 */
#include "ibverbs/wq.h"

#include <string.h>

void sr_wq_init(struct sr_wq *w)
{
	pthread_mutex_init(&w->lock, NULL);
}

/* Takes a ring over, also in place of another one. used is how much of a slot is filled at most. */
int sr_wq_open(struct sr_wq *w, int fd, uint32_t slots, uint32_t slot_size, uint32_t max_wr,
	       size_t used)
{
	struct sr_shm ring;
	int error = sr_shm_map(&ring, fd, SOFTROCE_RING_SLOTS + (size_t)slots * slot_size);
	if (error)
		return error;
	if (!sr_valid_slot_count(slots) || slot_size < used || max_wr > slots) {
		sr_shm_unmap(&ring);
		return EPROTO;
	}
	sr_shm_unmap(&w->ring);
	w->ring = ring;
	w->slot_size = slot_size;
	w->mask = slots - 1;
	w->max_wr = max_wr;
	return 0;
}

void sr_wq_close(struct sr_wq *w)
{
	sr_shm_unmap(&w->ring);
	pthread_mutex_destroy(&w->lock);
}

static void put_recv(uint8_t *s, const struct ibv_recv_wr *wr)
{
	uint32_t n = (uint32_t)wr->num_sge;
	memcpy(s + SOFTROCE_RECV_WR_ID, &wr->wr_id, sizeof wr->wr_id);
	memcpy(s + SOFTROCE_RECV_NUM_SGE, &n, sizeof n);
	/* An SGE of the ring is a struct ibv_sge. */
	if (n)
		memcpy(s + SOFTROCE_RECV_SGES, wr->sg_list, n * sizeof *wr->sg_list);
}

_Static_assert(sizeof(struct ibv_sge) == SOFTROCE_SGE_SIZE &&
		       offsetof(struct ibv_sge, addr) == SOFTROCE_SGE_ADDR &&
		       offsetof(struct ibv_sge, length) == SOFTROCE_SGE_LENGTH &&
		       offsetof(struct ibv_sge, lkey) == SOFTROCE_SGE_LKEY,
	       "SGEs are copied");

/*
 * Posts receives up to the first that cannot be, which *bad then names. *posted says whether
 * there was one at all. Holds the lock.
 */
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
