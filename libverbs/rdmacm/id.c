// SPDX-License-Identifier: Apache-2.0
/*
 * Identifiers: the table of all, creation, destruction, and the events that the program holds.
 */
#include "rdmacm/rdmacm.h"

#include "core/at_fork.h"
#include "core/cancel.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 256

/* A hash table of identifiers by handle, to find the identifier of an event. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cm_id *table[BUCKETS];

struct cm_id *cm_find(uint32_t handle, unsigned int generation)
{
	pthread_mutex_lock(&table_lock);
	struct cm_id *id = table[handle % BUCKETS];
	while (id && !(id->handle == handle && id->generation == generation))
		id = id->next;
	if (id) {
		pthread_mutex_lock(&id->lock);
		id->events_reported++;
		pthread_mutex_unlock(&id->lock);
	}
	pthread_mutex_unlock(&table_lock);
	return id;
}

static void before_fork(void)
{
	pthread_mutex_lock(&table_lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&table_lock);
}

/* Threads that the child does not have may have held an identifier's lock, or its events. */
static void after_fork_child(void)
{
	for (int i = 0; i < BUCKETS; i++) {
		for (struct cm_id *id = table[i]; id; id = id->next) {
			pthread_mutex_init(&id->lock, NULL);
			pthread_cond_init(&id->cond, NULL);
			id->events_reported = id->events_completed;
		}
	}
	pthread_mutex_unlock(&table_lock);
}

SR_AT_FORK(before_fork, after_fork_parent, after_fork_child)

void cm_add_id(struct cm_id *id, uint32_t handle, unsigned int generation)
{
	id->handle = handle;
	id->generation = generation;
	pthread_mutex_lock(&table_lock);
	id->next = table[handle % BUCKETS];
	table[handle % BUCKETS] = id;
	pthread_mutex_unlock(&table_lock);
}

struct cm_id *cm_find_unnotified(const struct rdma_event_channel *channel)
{
	struct cm_id *found = NULL;
	pthread_mutex_lock(&table_lock);
	for (int i = 0; i < BUCKETS && !found; i++) {
		for (struct cm_id *id = table[i]; id && !found; id = id->next) {
			pthread_mutex_lock(&id->lock);
			if (id->id.channel == channel && id->device && !id->removed) {
				id->removed = true;
				id->events_reported++;
				found = id;
			}
			pthread_mutex_unlock(&id->lock);
		}
	}
	pthread_mutex_unlock(&table_lock);
	return found;
}

static void remove_id(struct cm_id *id)
{
	pthread_mutex_lock(&table_lock);
	struct cm_id **p = &table[id->handle % BUCKETS];
	while (*p && *p != id)
		p = &(*p)->next;
	if (*p)
		*p = id->next;
	pthread_mutex_unlock(&table_lock);
}

struct cm_id *cm_new_id(struct rdma_event_channel *channel, void *context, enum rdma_port_space ps,
			enum ibv_qp_type type)
{
	struct cm_id *id = calloc(1, sizeof *id);
	if (!id)
		return NULL;
	id->id.context = context;
	id->id.ps = ps;
	id->id.qp_type = type;
	pthread_mutex_init(&id->lock, NULL);
	pthread_cond_init(&id->cond, NULL);
	id->id.channel = channel;
	if (!channel) {
		id->sync = true;
		id->id.channel = rdma_create_event_channel();
		if (!id->id.channel) {
			free(id);
			return NULL;
		}
	}
	return id;
}

static void free_id(struct cm_id *id)
{
	if (id->sync)
		rdma_destroy_event_channel(id->id.channel);
	while (id->groups) {
		struct cm_group *g = id->groups;
		id->groups = g->next;
		free(g);
	}
	cm_release_device(id);
	free(id->listen_attr);
	free(id->connect_data);
	pthread_mutex_destroy(&id->lock);
	pthread_cond_destroy(&id->cond);
	free(id);
}

int cm_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *context,
		 enum rdma_port_space ps, enum ibv_qp_type type)
{
	struct cm_id *id = cm_new_id(channel, context, ps, type);
	if (!id)
		return cm_result(errno ? errno : ENOMEM);
	struct cm_channel *ch = (struct cm_channel *)id->id.channel;
	struct softroce_cm_create_id_request req = {
		.channel = ch->handle, .port_space = ps, .qp_type = type};
	struct softroce_handle_reply reply;
	int error = cm_command(ch->generation, SOFTROCE_OP_CM_CREATE_ID, &req, sizeof req, &reply,
			       sizeof reply);
	if (error) {
		free_id(id);
		return cm_result(error);
	}
	cm_add_id(id, reply.handle, ch->generation);
	*out = &id->id;
	return 0;
}

SR_PUBLIC int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id,
			     void *context, enum rdma_port_space ps)
{
	bool datagrams = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB;
	return cm_create_id(channel, id, context, ps, datagrams ? IBV_QPT_UD : IBV_QPT_RC);
}

void cm_count_completed(struct cm_id *id)
{
	pthread_mutex_lock(&id->lock);
	id->events_completed++;
	pthread_cond_signal(&id->cond);
	pthread_mutex_unlock(&id->lock);
}

SR_PUBLIC int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	if (!event)
		return cm_result(EINVAL);
	struct cm_event *e = (struct cm_event *)event;
	struct cm_id *id = e->counted;
	free(e);
	cm_count_completed(id);
	return 0;
}

void cm_ack_held_event(struct cm_id *id)
{
	rdma_ack_cm_event(id->id.event);
	id->id.event = NULL;
}

/* Waits until the program has acknowledged all events that were reported to it. */
static void wait_acknowledged(struct cm_id *id)
{
	int state = sr_defer_cancel();
	pthread_mutex_lock(&id->lock);
	while ((int32_t)(id->events_reported - id->events_completed) > 0)
		pthread_cond_wait(&id->cond, &id->lock);
	pthread_mutex_unlock(&id->lock);
	sr_restore_cancel(state);
}

SR_PUBLIC int rdma_destroy_id(struct rdma_cm_id *ibv)
{
	struct cm_id *id = cm_id(ibv);
	struct softroce_handle_request req = {.handle = id->handle};
	struct softroce_cm_removed_reply removed = {0};
	int error = cm_command(id->generation, SOFTROCE_OP_CM_DESTROY_ID, &req, sizeof req,
			       &removed, sizeof removed);
	/* If the daemon is gone, so is the identifier. */
	if (error && error != EIO && error != ENODEV)
		return cm_result(error);
	remove_id(id);
	if (removed.events)
		cm_drop_events((struct cm_channel *)id->id.channel, removed.events);
	if (id->id.event)
		cm_ack_held_event(id);
	wait_acknowledged(id);
	free_id(id);
	return 0;
}

static void fill_path(struct cm_id *id, const struct softroce_cm_identifier *info)
{
	struct ibv_sa_path_rec *p = &id->path;
	memset(p, 0, sizeof *p);
	memcpy(p->dgid.raw, info->dgid, 16);
	memcpy(p->sgid.raw, info->sgid, 16);
	p->flow_label = htobe32(info->flow_label);
	p->hop_limit = info->hop_limit;
	p->sl = info->sl;
	p->traffic_class = info->t_class;
	p->reversible = 1;
	p->numb_path = 1;
	p->pkey = htobe16(info->pkey);
	p->mtu_selector = 2; /* exactly this MTU */
	p->mtu = info->mtu;
	p->rate_selector = 2;
	p->packet_life_time_selector = 2;
	p->packet_life_time = info->packet_life;
	id->id.route.path_rec = p;
	id->id.route.num_paths = 1;
}

int cm_update_id(struct cm_id *id, const struct softroce_cm_identifier *info)
{
	static const uint8_t none[16];
	struct rdma_addr *a = &id->id.route.addr;
	cm_addr_from_abi(&info->src, &a->src_storage);
	if (info->dst.family)
		cm_addr_from_abi(&info->dst, &a->dst_storage);
	if (info->port_num && info->device[0]) {
		char name[SOFTROCE_NAME_SIZE];
		memcpy(name, info->device, sizeof name);
		name[sizeof name - 1] = 0;
		int error = cm_use_device(id, name);
		if (error)
			return error;
		id->id.port_num = info->port_num;
	}
	if (memcmp(info->dgid, none, sizeof none)) {
		memcpy(a->addr.ibaddr.sgid.raw, info->sgid, 16);
		memcpy(a->addr.ibaddr.dgid.raw, info->dgid, 16);
		a->addr.ibaddr.pkey = htobe16(info->pkey);
		fill_path(id, info);
	}
	return 0;
}

SR_PUBLIC int rdma_migrate_id(struct rdma_cm_id *ibv, struct rdma_event_channel *channel)
{
	struct cm_id *id = cm_id(ibv);
	bool sync = !channel;
	if (id->sync && sync)
		return cm_result(EINVAL);
	if (sync) {
		channel = rdma_create_event_channel();
		if (!channel)
			return -1;
	}
	struct cm_channel *to = (struct cm_channel *)channel;
	struct softroce_cm_migrate_request req = {.id = id->handle, .channel = to->handle};
	struct softroce_cm_removed_reply removed;
	int error = ENODEV; /* the channel belongs to a daemon that was started later */
	if (to->generation == id->generation)
		error = cm_command(id->generation, SOFTROCE_OP_CM_MIGRATE, &req, sizeof req,
				   &removed, sizeof removed);
	if (error) {
		if (sync)
			rdma_destroy_event_channel(channel);
		return cm_result(error);
	}
	if (id->sync) {
		if (id->id.event)
			cm_ack_held_event(id);
		rdma_destroy_event_channel(id->id.channel);
	} else if (removed.events) {
		cm_drop_events((struct cm_channel *)id->id.channel, removed.events);
	}
	id->sync = sync;
	id->id.channel = channel;
	wait_acknowledged(id); /* those of the old channel */
	return 0;
}
