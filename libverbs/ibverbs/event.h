/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion channels, and the events that programs acknowledge.
 */
#ifndef SOFTROCE_EVENT_H
#define SOFTROCE_EVENT_H

#include "ibverbs/context.h"

struct sr_channel {
	struct ibv_comp_channel ibv;
	uint32_t handle;
	struct sr_link link; /* in its context */
	pthread_mutex_t lock;
	struct sr_link cqs;	 /* sr_cq.channel_link */
	struct sr_link *last;	 /* of the queue that had the last event, or &cqs */
	uint32_t dropped_events; /* see sr_drop_events */
};

/*
 * sr_drop_async_events removes the asynchronous events of an object that was destroyed. The
 * caller holds ctx->lock.
 */
void sr_drop_async_events(struct sr_context *ctx, uint32_t handle);

/*
 * sr_wait_acknowledged blocks until the program has acknowledged as many events of an object as
 * were reported to it.
 */
void sr_wait_acknowledged(pthread_mutex_t *m, pthread_cond_t *cond, const uint32_t *reported,
			  const uint32_t *completed);

#endif
