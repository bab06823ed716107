// SPDX-License-Identifier: Apache-2.0
/*
 * Identifiers: from their making to their end, addresses, routes, options.
 */
#include "rdmacm/rdmacm.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 256

/* Identifiers by their handles, for events. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cm_id *table[BUCKETS];

/* Finds an identifier and counts an event of it. */
struct cm_id *cm_find(uint32_t handle, unsigned int generation)
{
	pthread_mutex_lock(&table_lock);
	struct cm_id *id = table[handle % BUCKETS];
	while (id && !(id->handle == handle && id->generation == generation))
		id = id->next;
	if (id) {
		pthread_mutex_lock(&id->lock);
		id->reported++;
		pthread_mutex_unlock(&id->lock);
	}
	pthread_mutex_unlock(&table_lock);
	return id;
}

void cm_enlist(struct cm_id *id, uint32_t handle, unsigned int generation)
{
	id->handle = handle;
	id->generation = generation;
	pthread_mutex_lock(&table_lock);
	id->next = table[handle % BUCKETS];
	table[handle % BUCKETS] = id;
	pthread_mutex_unlock(&table_lock);
}

/*
 * Finds an identifier of a channel that has a device and has not heard that it is gone, and counts
 * the event that tells it.
 */
struct cm_id *cm_find_orphan(const struct rdma_event_channel *channel)
{
	struct cm_id *found = NULL;
	pthread_mutex_lock(&table_lock);
	for (int i = 0; i < BUCKETS && !found; i++) {
		for (struct cm_id *id = table[i]; id && !found; id = id->next) {
			pthread_mutex_lock(&id->lock);
			if (id->id.channel == channel && id->device && !id->removed) {
				id->removed = true;
				id->reported++;
				found = id;
			}
			pthread_mutex_unlock(&id->lock);
		}
	}
	pthread_mutex_unlock(&table_lock);
	return found;
}

/* Another thread may have held the lock when its process was forked. */
void cm_ids_forked(void)
{
	pthread_mutex_init(&table_lock, NULL);
}

static void delist(struct cm_id *id)
{
	pthread_mutex_lock(&table_lock);
	struct cm_id **p = &table[id->handle % BUCKETS];
	while (*p && *p != id)
		p = &(*p)->next;
	if (*p)
		*p = id->next;
	pthread_mutex_unlock(&table_lock);
}

/* Makes an identifier that the daemon does not know of yet. */
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
	cm_leave_all(id);
	cm_leave_device(id);
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
	struct softroce_cm_create_id_request ask = {
		.channel = ch->handle, .port_space = ps, .qp_type = type};
	struct softroce_handle_reply reply;
	int error = cm_command(ch->generation, SOFTROCE_OP_CM_CREATE_ID, &ask, sizeof ask, &reply,
			       sizeof reply);
	if (error) {
		free_id(id);
		return cm_result(error);
	}
	cm_enlist(id, reply.handle, ch->generation);
	*out = &id->id;
	return 0;
}

SR_PUBLIC int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id,
			     void *context, enum rdma_port_space ps)
{
	bool datagrams = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB;
	return cm_create_id(channel, id, context, ps, datagrams ? IBV_QPT_UD : IBV_QPT_RC);
}

/* Waits until the program has acknowledged the events that it has. */
static void wait_acknowledged(struct cm_id *id)
{
	pthread_mutex_lock(&id->lock);
	while (id->completed < id->reported)
		pthread_cond_wait(&id->cond, &id->lock);
	pthread_mutex_unlock(&id->lock);
}

SR_PUBLIC int rdma_destroy_id(struct rdma_cm_id *ibv)
{
	struct cm_id *id = cm_id(ibv);
	int error = cm_command_handle(id->generation, SOFTROCE_OP_CM_DESTROY_ID, id->handle);
	/* A daemon that is gone has no identifiers. */
	if (error && error != EIO && error != ENODEV)
		return cm_result(error);
	delist(id);
	if (id->id.event)
		cm_forget_event(id);
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
	p->traffic_class = info->t_class;
	p->reversible = 1;
	p->numb_path = 1;
	p->pkey = htobe16(info->pkey);
	p->mtu_selector = 2; /* exactly */
	p->mtu = info->mtu;
	p->rate_selector = 2;
	p->packet_life_time_selector = 2;
	p->packet_life_time = info->packet_life;
	id->id.route.path_rec = p;
	id->id.route.num_paths = 1;
}

/* Takes over what the daemon says of an identifier. 0 or an errno. */
int cm_learn(struct cm_id *id, const struct softroce_cm_identifier *info)
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

SR_PUBLIC int rdma_bind_addr(struct rdma_cm_id *ibv, struct sockaddr *addr)
{
	struct cm_id *id = cm_id(ibv);
	struct softroce_cm_bind_request ask = {.id = id->handle};
	struct softroce_cm_identifier info;
	int error = addr ? cm_addr_to_abi(addr, &ask.addr) : EINVAL;
	if (!error)
		error = cm_command(id->generation, SOFTROCE_OP_CM_BIND, &ask, sizeof ask, &info,
				   sizeof info);
	if (!error)
		error = cm_learn(id, &info);
	return cm_result(error);
}

SR_PUBLIC int rdma_resolve_addr(struct rdma_cm_id *ibv, struct sockaddr *src, struct sockaddr *dst,
				int timeout_ms)
{
	struct cm_id *id = cm_id(ibv);
	struct softroce_cm_resolve_addr_request ask = {.id = id->handle,
						       .timeout = timeout_ms > 0 ? timeout_ms : 0};
	int error = dst ? cm_addr_to_abi(dst, &ask.dst) : EINVAL;
	if (!error)
		error = cm_addr_to_abi(src, &ask.src);
	if (!error) {
		memset(&ibv->route.addr.dst_storage, 0, sizeof ibv->route.addr.dst_storage);
		memcpy(&ibv->route.addr.dst_storage, dst, cm_addr_len(dst));
		error = cm_command(id->generation, SOFTROCE_OP_CM_RESOLVE_ADDR, &ask, sizeof ask,
				   NULL, 0);
	}
	return error ? cm_result(error) : cm_complete(id);
}

SR_PUBLIC int rdma_resolve_route(struct rdma_cm_id *ibv, int timeout_ms)
{
	struct cm_id *id = cm_id(ibv);
	(void)timeout_ms; /* on Ethernet nobody is asked */
	int error = cm_command_handle(id->generation, SOFTROCE_OP_CM_RESOLVE_ROUTE, id->handle);
	return error ? cm_result(error) : cm_complete(id);
}

SR_PUBLIC int rdma_listen(struct rdma_cm_id *ibv, int backlog)
{
	struct cm_id *id = cm_id(ibv);
	struct softroce_cm_listen_request ask = {.id = id->handle,
						 .backlog = backlog > 0 ? backlog : 0};
	struct softroce_cm_identifier info;
	int error = cm_command(id->generation, SOFTROCE_OP_CM_LISTEN, &ask, sizeof ask, &info,
			       sizeof info);
	if (!error)
		error = cm_learn(id, &info);
	return cm_result(error);
}

SR_PUBLIC int rdma_set_option(struct rdma_cm_id *ibv, int level, int option, void *value,
			      size_t len)
{
	struct cm_id *id = cm_id(ibv);
	struct softroce_cm_set_option_request ask = {.id = id->handle, .option = option};
	if (level != RDMA_OPTION_ID)
		return cm_result(ENOSYS);
	if (!value)
		return cm_result(EINVAL);
	switch (option) {
	case RDMA_OPTION_ID_TOS:
	case RDMA_OPTION_ID_ACK_TIMEOUT:
		if (len != sizeof(uint8_t))
			return cm_result(EINVAL);
		ask.value = *(uint8_t *)value;
		break;
	case RDMA_OPTION_ID_REUSEADDR:
	case RDMA_OPTION_ID_AFONLY: {
		int on;
		if (len != sizeof on)
			return cm_result(EINVAL);
		memcpy(&on, value, sizeof on);
		ask.value = on != 0;
		break;
	}
	default:
		return cm_result(ENOSYS);
	}
	return cm_result(
		cm_command(id->generation, SOFTROCE_OP_CM_SET_OPTION, &ask, sizeof ask, NULL, 0));
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
	struct softroce_cm_migrate_request ask = {.id = id->handle, .channel = to->handle};
	int error =
		ENODEV; /* a channel of a daemon that was started since has no old identifiers */
	if (to->generation == id->generation)
		error = cm_command(id->generation, SOFTROCE_OP_CM_MIGRATE, &ask, sizeof ask, NULL,
				   0);
	if (error) {
		if (sync)
			rdma_destroy_event_channel(channel);
		return cm_result(error);
	}
	if (id->sync) {
		if (id->id.event)
			cm_forget_event(id);
		rdma_destroy_event_channel(id->id.channel);
	}
	id->sync = sync;
	id->id.channel = channel;
	return 0;
}
