// SPDX-License-Identifier: Apache-2.0
/*
 * Address handles.
 */
#include "ibverbs/ah.h"
#include "core/ah.h"
#include "ibverbs/pd.h"
#include "ibverbs/query.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/*
 * Address handles of the program that have the same attributes share one of the daemon. A few
 * that have no user are kept: programs that reply to datagrams create one for each reply.
 */
struct shared_ah {
	struct sr_link link;	  /* in its bucket, if it can be shared */
	struct sr_link idle_link; /* if it has no user */
	struct softroce_create_ah_request key;
	uint32_t handle;
	uint32_t users;
	uint32_t changes; /* of the NIC's addresses, when it was created */
	uint64_t created; /* ms */
	bool listed;	  /* in its bucket: new users may be added */
};

struct ah {
	struct ibv_ah ibv;
	struct shared_ah *shared;
};

#define MAX_IDLE_AHS 16
#define MAX_AH_AGE   1000 /* ms: after that the next hop is resolved again */

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* FNV-1a */
static struct sr_link *bucket(struct sr_ahs *t, const struct softroce_create_ah_request *key)
{
	uint32_t h = 2166136261;
	for (const uint8_t *p = (const uint8_t *)key, *end = p + sizeof *key; p < end; p++)
		h = (h ^ *p) * 16777619;
	return &t->buckets[(h ^ h >> 16) % SR_AH_BUCKETS];
}

/* The functions up to the next comment like this one are called with the context's lock. */
static bool create_buckets(struct sr_ahs *t)
{
	if (t->buckets)
		return true;
	t->buckets = malloc(SR_AH_BUCKETS * sizeof *t->buckets);
	for (int i = 0; t->buckets && i < SR_AH_BUCKETS; i++)
		sr_list_init(&t->buckets[i]);
	return t->buckets;
}

static struct shared_ah *find_shared(struct sr_ahs *t, const struct softroce_create_ah_request *key)
{
	struct sr_link *b = bucket(t, key);
	sr_for_each (l, b) {
		struct shared_ah *s = sr_container(l, struct shared_ah, link);
		if (!memcmp(&s->key, key, sizeof *key))
			return s;
	}
	return NULL;
}

static void leave_idle(struct sr_ahs *t, struct shared_ah *s)
{
	sr_list_del(&s->idle_link);
	t->idle_count--;
}

/* Removes s from what new users find. Returns it if it has no user. */
static struct shared_ah *unlist(struct sr_ahs *t, struct shared_ah *s)
{
	sr_list_del(&s->link);
	s->listed = false;
	if (s->users)
		return NULL;
	leave_idle(t, s);
	return s;
}

static bool limit_reached(const struct sr_ahs *t)
{
	return t->max && t->users >= t->max;
}

/* The functions below are called without the context's lock. */

/* Adds a user to an address handle that can be shared. *error is set at the limit. */
static struct shared_ah *share(struct sr_context *ctx, const struct softroce_create_ah_request *key,
			       int *error)
{
	struct sr_ahs *t = &ctx->ahs;
	struct shared_ah *s = NULL;
	pthread_mutex_lock(&ctx->lock);
	if (limit_reached(t))
		*error = ENOMEM;
	else if (!create_buckets(t))
		*error = ENOMEM;
	else
		s = find_shared(t, key);
	if (s && (!sr_copies_valid(ctx) || s->changes != sr_address_changes(ctx) ||
		  now_ms() - s->created > MAX_AH_AGE))
		s = NULL;
	if (s && !s->users++)
		leave_idle(t, s);
	if (!*error)
		t->users++;
	pthread_mutex_unlock(&ctx->lock);
	return s;
}

/*
 * No error concerns the program: its own address handle is gone, and s may be one that was kept for
 * later.
 */
static void destroy_shared(struct sr_context *ctx, struct shared_ah *s)
{
	int saved = errno;
	if (s)
		sr_destroy(&ctx->conn, SOFTROCE_OP_DESTROY_AH, s->handle);
	free(s);
	errno = saved;
}

/* Lists s, which has one user, in place of one that has aged. */
static void list_shared(struct sr_context *ctx, struct shared_ah *s, uint32_t max)
{
	struct sr_ahs *t = &ctx->ahs;
	pthread_mutex_lock(&ctx->lock);
	struct shared_ah *old = find_shared(t, &s->key);
	if (old)
		old = unlist(t, old);
	sr_list_add(bucket(t, &s->key), &s->link);
	s->listed = true;
	s->users = 1;
	t->max = max;
	pthread_mutex_unlock(&ctx->lock);
	destroy_shared(ctx, old);
}

/* Makes the daemon create an address handle, and destroys unused ones if there are too many. */
static struct shared_ah *create_shared(struct sr_context *ctx,
				       const struct softroce_create_ah_request *key, int *error)
{
	struct shared_ah *s = calloc(1, sizeof *s);
	struct softroce_create_ah_reply reply;
	*error = ENOMEM;
	if (!s)
		return NULL;
	s->key = *key;
	s->changes = sr_address_changes(ctx);
	s->created = now_ms();
	*error = sr_command(&ctx->conn, SOFTROCE_OP_CREATE_AH, key, sizeof *key, &reply,
			    sizeof reply);
	if (*error == ENOMEM && sr_drop_idle_ahs(ctx, 0))
		*error = sr_command(&ctx->conn, SOFTROCE_OP_CREATE_AH, key, sizeof *key, &reply,
				    sizeof reply);
	if (*error) {
		free(s);
		return NULL;
	}
	s->handle = reply.handle;
	list_shared(ctx, s, reply.max_ah);
	return s;
}

static void forget_user(struct sr_context *ctx)
{
	pthread_mutex_lock(&ctx->lock);
	ctx->ahs.users--;
	pthread_mutex_unlock(&ctx->lock);
}

/* Removes a user, and returns what the daemon must destroy. */
static struct shared_ah *release(struct sr_context *ctx, struct shared_ah *s)
{
	struct sr_ahs *t = &ctx->ahs;
	pthread_mutex_lock(&ctx->lock);
	t->users--;
	struct shared_ah *unused = --s->users ? NULL : s;
	if (unused && s->listed) {
		sr_list_add(&t->idle, &s->idle_link);
		unused = NULL;
		if (++t->idle_count > MAX_IDLE_AHS)
			unused = unlist(t, sr_container(t->idle.next, struct shared_ah, idle_link));
	}
	pthread_mutex_unlock(&ctx->lock);
	return unused;
}

static struct shared_ah *take_idle(struct sr_context *ctx, uint32_t pd)
{
	struct shared_ah *found = NULL;
	pthread_mutex_lock(&ctx->lock);
	sr_for_each (l, &ctx->ahs.idle) {
		struct shared_ah *s = sr_container(l, struct shared_ah, idle_link);
		if (pd && s->key.pd != pd)
			continue;
		found = unlist(&ctx->ahs, s);
		break;
	}
	pthread_mutex_unlock(&ctx->lock);
	return found;
}

bool sr_drop_idle_ahs(struct sr_context *ctx, uint32_t pd)
{
	struct shared_ah *s;
	bool any = false;
	while ((s = take_idle(ctx, pd))) {
		destroy_shared(ctx, s);
		any = true;
	}
	return any;
}

void sr_free_ahs(struct sr_context *ctx)
{
	struct sr_link *first;
	while ((first = ctx->ahs.idle.next) != &ctx->ahs.idle)
		free(unlist(&ctx->ahs, sr_container(first, struct shared_ah, idle_link)));
	free(ctx->ahs.buckets);
}

SR_PUBLIC struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct sr_context *ctx = sr_ctx(pd->context);
	/* RoCE addresses are always global. */
	if (!attr->is_global || attr->port_num != 1)
		return sr_null(EINVAL);
	struct ah *ah = calloc(1, sizeof *ah);
	if (!ah)
		return sr_null(ENOMEM);
	struct softroce_create_ah_request key = {
		.pd = sr_base_pd(pd)->ibv.handle,
		.ah = sr_ah_to_abi(attr),
	};
	int error = 0;
	ah->shared = share(ctx, &key, &error);
	if (!ah->shared && !error) {
		ah->shared = create_shared(ctx, &key, &error);
		if (error)
			forget_user(ctx);
	}
	if (error) {
		free(ah);
		return sr_null(error);
	}
	ah->ibv.context = pd->context;
	ah->ibv.pd = pd;
	ah->ibv.handle = ah->shared->handle;
	sr_pd_count_users(pd, 1);
	return &ah->ibv;
}

SR_PUBLIC int ibv_destroy_ah(struct ibv_ah *ibv)
{
	struct ah *ah = (struct ah *)ibv;
	struct sr_context *ctx = sr_ctx(ibv->context);
	if (ibv->handle != ah->shared->handle)
		return errno = ENOENT;
	destroy_shared(ctx, release(ctx, ah->shared));
	sr_pd_count_users(ibv->pd, -1);
	free(ah);
	return 0;
}

/* A received IPv4 header is in the second half of the 40 bytes of the GRH. */
#define GRH_IPV4	    20
#define IPV4_TOS	    1
#define IPV4_SOURCE	    12
#define IPV4_DESTINATION    16
#define NEXT_HEADER_BTH	    0x1b
#define REPLY_HOP_LIMIT	    0xff
#define FLOW_LABEL_MASK	    0xfffff
#define TRAFFIC_CLASS_SHIFT 20

static void set_ipv4_mapped(union ibv_gid *gid, const uint8_t *ipv4)
{
	memset(gid, 0, sizeof *gid);
	gid->raw[10] = gid->raw[11] = 0xff;
	memcpy(gid->raw + 12, ipv4, 4);
}

/*
 * Reads the source of a received datagram into ah and its destination into to, and returns the type
 * of both GIDs. IPv4 if the first 4 bits are not those of an IPv6 header; RoCE v1 if a BTH follows.
 */
static enum ibv_gid_type grh_addresses(const struct ibv_grh *grh, struct ibv_ah_attr *ah,
				       union ibv_gid *to)
{
	const uint8_t *v4 = (const uint8_t *)grh + GRH_IPV4;
	uint32_t head = ntohl(grh->version_tclass_flow);
	if (head >> 28 == 6) {
		ah->grh.dgid = grh->sgid;
		*to = grh->dgid;
		ah->grh.flow_label = head & FLOW_LABEL_MASK;
		ah->grh.traffic_class = head >> TRAFFIC_CLASS_SHIFT & 0xff;
		return grh->next_hdr == NEXT_HEADER_BTH ? IBV_GID_TYPE_ROCE_V1
							: IBV_GID_TYPE_ROCE_V2;
	}
	set_ipv4_mapped(&ah->grh.dgid, v4 + IPV4_SOURCE);
	set_ipv4_mapped(to, v4 + IPV4_DESTINATION);
	ah->grh.traffic_class = v4[IPV4_TOS];
	return IBV_GID_TYPE_ROCE_V2;
}

SR_PUBLIC int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc,
				  struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
	memset(attr, 0, sizeof *attr);
	attr->dlid = wc->slid;
	attr->sl = wc->sl;
	attr->src_path_bits = wc->dlid_path_bits;
	attr->port_num = port;
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	attr->is_global = 1;
	attr->grh.hop_limit = REPLY_HOP_LIMIT;

	union ibv_gid to;
	struct softroce_gid_entry *gids;
	uint32_t n;
	enum ibv_gid_type type = grh_addresses(grh, attr, &to);
	int error = port == 1 ? sr_query_gids(context, &gids, &n) : EINVAL;
	if (error) {
		errno = error;
		return -1;
	}
	bool found = false;
	for (uint32_t i = 0; i < n && !found; i++) {
		if (memcmp(gids[i].gid, to.raw, sizeof to.raw) || gids[i].type != type)
			continue;
		attr->grh.sgid_index = gids[i].index;
		found = true;
	}
	free(gids);
	if (found)
		return 0;
	errno = ENOENT; /* sent to a multicast group, or the address was removed */
	return -1;
}

SR_PUBLIC struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc,
					       struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;
	if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}
