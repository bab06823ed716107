// SPDX-License-Identifier: Apache-2.0
/*
 * Event channels.
 */
#include "rdmacm/rdmacm.h"

#include <stdlib.h>

SR_PUBLIC struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct cm_channel *ch = calloc(1, sizeof *ch);
	if (!ch) {
		errno = ENOMEM;
		return NULL;
	}
	struct softroce_handle_reply reply = {0};
	int error = cm_session(&ch->generation);
	if (!error)
		error = cm_command_fd(ch->generation, SOFTROCE_OP_CM_CREATE_CHANNEL, &reply,
				      sizeof reply, &ch->channel.fd);
	if (error) {
		if (reply.handle) /* the process has no room for another descriptor */
			cm_command_handle(ch->generation, SOFTROCE_OP_CM_DESTROY_CHANNEL,
					  reply.handle);
		free(ch);
		errno = error;
		return NULL;
	}
	ch->handle = reply.handle;
	atomic_store(&ch->users, 1);
	pthread_mutex_init(&ch->lock, NULL);
	sr_make_blocking(ch->channel.fd);
	return &ch->channel;
}

void cm_put_channel(struct cm_channel *ch)
{
	if (atomic_fetch_sub(&ch->users, 1) != 1)
		return;
	pthread_mutex_destroy(&ch->lock);
	free(ch);
}

void cm_drop_events(struct cm_channel *ch, uint32_t n)
{
	struct sr_conn *c = cm_connection(ch->generation);
	if (!c)
		return;
	pthread_mutex_lock(&ch->lock);
	sr_drop_events(c, ch->channel.fd, &ch->dropped_events, n);
	pthread_mutex_unlock(&ch->lock);
}

void cm_byte_used(struct cm_channel *ch, bool found)
{
	struct sr_conn *c = cm_connection(ch->generation);
	if (!c)
		return;
	pthread_mutex_lock(&ch->lock);
	sr_byte_used(c, ch->channel.fd, &ch->dropped_events, found);
	pthread_mutex_unlock(&ch->lock);
}

SR_PUBLIC void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	struct cm_channel *ch = (struct cm_channel *)channel;
	atomic_store(&ch->destroyed, 1);
	cm_command_handle(ch->generation, SOFTROCE_OP_CM_DESTROY_CHANNEL, ch->handle);
	cm_close_fd(ch->generation, ch->channel.fd);
	cm_put_channel(ch);
}
