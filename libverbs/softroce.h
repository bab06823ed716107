/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this library share: its objects, each of which begins with the public
 * struct that programs see.
 *
 * Locks, in the order in which they are taken: the list of contexts, a context's lock, a
 * channel's, a completion queue's, a work queue's, the public mutex of an object, a connection's.
 */
#ifndef SOFTROCE_H
#define SOFTROCE_H

#include <infiniband/verbs.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "conn.h"

#undef ibv_query_port
#define SR_PUBLIC __attribute__((visibility("default")))

/* What lies between a public struct's address and that of ours. */
#define sr_container(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* A list through its elements. */
struct sr_link {
	struct sr_link *next, *prev;
};

static inline void sr_list_init(struct sr_link *l)
{
	l->next = l->prev = l;
}

static inline void sr_list_add(struct sr_link *list, struct sr_link *l)
{
	l->prev = list->prev;
	l->next = list;
	list->prev->next = l;
	list->prev = l;
}

/* An element that was removed may be removed again. */
static inline void sr_list_del(struct sr_link *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	sr_list_init(l);
}

#define sr_for_each(pos, list)                                                                     \
	for (struct sr_link *pos = (list)->next; pos != (list); pos = pos->next)

/* Slots of a ring are a power of two, and not so many that sizes overflow. */
static inline bool sr_is_ring(uint32_t slots)
{
	return slots && !(slots & (slots - 1)) && slots <= 1u << 24;
}

/* Shared memory of the daemon. */
struct sr_map {
	uint8_t *mem;
	size_t size;
};

static inline _Atomic uint32_t *sr_word(const struct sr_map *m, size_t offset)
{
	return (_Atomic uint32_t *)(m->mem + offset);
}

struct sr_device {
	struct ibv_device ibv;
	struct sr_device *next;
	char netdev[SOFTROCE_IF_NAME_SIZE];
	uint64_t guid;
	int index;
};

struct sr_context {
	struct verbs_context verbs;
	struct sr_conn conn;
	struct sr_link link; /* in the list of all contexts */
	struct sr_map doorbells;
	struct sr_map events;
	uint32_t event_slots;
	int doorbell_fd;
	bool imported;
	atomic_int fatal_told; /* IBV_EVENT_DEVICE_FATAL was given to the program */
	pthread_mutex_t lock;  /* of the lists */
	struct sr_link cqs, qps, srqs;
};

/* A protection domain, or a parent domain: then of stands for it in the daemon. */
struct sr_pd {
	struct ibv_pd ibv;
	struct sr_pd *of;
	struct ibv_td *td;
	atomic_int refs; /* of parent domains */
	void *pd_context;
	bool imported;
};

struct sr_td {
	struct ibv_td ibv;
	atomic_int refs;
};

struct sr_mr {
	struct ibv_mr ibv;
	uint64_t iova;
	unsigned int access;
	bool foreign; /* its memory is not this process's */
	bool imported;
};

struct sr_dm {
	struct ibv_dm ibv;
	uint64_t length;
};

struct sr_ah {
	struct ibv_ah ibv;
};

struct sr_channel {
	struct ibv_comp_channel ibv;
	uint32_t handle;
	pthread_mutex_t lock;
	struct sr_link cqs; /* sr_cq.in_channel */
};

struct sr_cq {
	union {
		struct ibv_cq ibv;
		struct ibv_cq_ex ex;
	};
	struct sr_link link;	   /* in its context */
	struct sr_link in_channel; /* in its channel */
	uint32_t seen;		   /* completion events given out, under the channel's lock */
	uint32_t comp_reported; /* those and async ones that are to be acknowledged, under ibv.mutex
				 */
	uint32_t async_reported;
	bool end_told; /* the end of the daemon woke those who wait for this queue */

	pthread_mutex_t lock;
	bool unlocked; /* made for one thread */
	struct sr_map ring;
	uint32_t mask;
	uint32_t consumer;
	uint32_t idle;			 /* polls that found nothing */
	const uint8_t *cqe;		 /* the one that an extended poll looks at */
	uint8_t made[SOFTROCE_CQE_SIZE]; /* a completion that the daemon did not live to give */
	int64_t wall;			 /* extended: the real-time clock less the NIC's, ns */
	uint64_t wc_flags;
	struct sr_link send_qps, recv_qps; /* those that complete here, under lock */
};

/* A ring that this side fills. */
struct sr_wq {
	pthread_mutex_t lock;
	bool unlocked;
	struct sr_map ring;
	uint32_t slot_size;
	uint32_t mask;
	uint32_t limit;
	uint32_t producer;
	uint32_t flushed; /* what was completed here because the daemon is gone: up to this index */
};

struct sr_qp {
	struct ibv_qp_ex ex; /* begins with struct ibv_qp */
	struct sr_link link;
	struct sr_link in_send_cq, in_recv_cq;
	uint32_t reported; /* async events, under ex.qp_base.mutex */
	bool has_wr_ops;
	int sig_all;
	struct ibv_qp_cap cap;
	struct sr_wq sq, rq;
	_Atomic uint64_t *doorbell;
	uint64_t bit;

	/* Between wr_start and wr_complete. */
	uint8_t *wr; /* the slot that is being filled */
	uint32_t wr_first;
	int wr_error;
};

struct sr_srq {
	struct ibv_srq ibv;
	struct sr_link link;
	uint32_t reported; /* async events, under ibv.mutex */
	uint32_t number;
	uint32_t max_sge;
	struct sr_wq wq;
};

struct sr_xrcd {
	struct ibv_xrcd ibv;
	uint32_t handle;
};

struct sr_mw {
	struct ibv_mw ibv;
};

static inline struct sr_context *sr_ctx(struct ibv_context *c)
{
	return sr_container(c, struct sr_context, verbs.context);
}

static inline struct sr_cq *sr_cq(struct ibv_cq *q)
{
	return (struct sr_cq *)q;
}

static inline struct sr_qp *sr_qp(struct ibv_qp *q)
{
	return (struct sr_qp *)q;
}

static inline struct sr_srq *sr_srq(struct ibv_srq *q)
{
	return (struct sr_srq *)q;
}

/* The domain that the daemon knows. */
static inline struct sr_pd *sr_pd(struct ibv_pd *p)
{
	struct sr_pd *pd = (struct sr_pd *)p;
	return pd->of ? pd->of : pd;
}

static inline void sr_lock(pthread_mutex_t *m, bool unlocked)
{
	if (!unlocked)
		pthread_mutex_lock(m);
}

static inline void sr_unlock(pthread_mutex_t *m, bool unlocked)
{
	if (!unlocked)
		pthread_mutex_unlock(m);
}

/* Sets errno and returns NULL, for functions that return an object. */
static inline void *sr_null(int error)
{
	errno = error;
	return NULL;
}

/* device.c */
void sr_device_path(const struct sr_device *d, char *path, size_t size);
struct sr_device *sr_device_named(const char *name);
int sr_list_devices(struct sr_device ***devices, int *count);

/* context.c: maps a descriptor, which it closes; 0 or an errno */
int sr_map(struct sr_map *m, int fd, size_t size);
void sr_unmap(struct sr_map *m);
void sr_make_blocking(int fd);

/* ops.c, stubs.c */
void sr_set_ops(struct sr_context *ctx);
void sr_set_unsupported(struct verbs_context *v);

/* query.c */
int sr_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
		       struct ibv_device_attr_ex *attr, size_t size);
int sr_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
		  size_t size);
int sr_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values);
int sr_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index,
		      unsigned int *type);
int sr_gids(struct ibv_context *context, struct softroce_gid_entry **gids, uint32_t *count);

/* domain.c */
struct ibv_pd *sr_alloc_parent_domain(struct ibv_context *context,
				      struct ibv_parent_domain_init_attr *attr);
struct ibv_td *sr_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr);
int sr_dealloc_td(struct ibv_td *td);

/* cq.c */
int sr_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int sr_req_notify_cq(struct ibv_cq *cq, int solicited_only);
struct sr_cq *sr_create_cq(struct ibv_context *context, uint32_t cqe, void *cq_context,
			   struct ibv_comp_channel *channel, uint32_t vector);
void sr_cq_purge(struct sr_cq *q, uint32_t qpn);
const uint8_t *sr_cq_next(struct sr_cq *q, bool *end);
void sr_cq_took(struct sr_cq *q);
void sr_cq_attach(struct sr_qp *q);
void sr_cq_detach(struct sr_qp *q);

/* cq_ex.c */
struct ibv_cq_ex *sr_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);

/* flush.c: makes the next completion that a dead daemon still owes; NULL where there is none */
const uint8_t *sr_flush_next(struct sr_cq *q);

/* event.c */
void sr_wait_acknowledged(pthread_mutex_t *m, pthread_cond_t *cond, const uint32_t *reported,
			  const uint32_t *completed);

/* wq.c */
int sr_wq_open(struct sr_wq *w, int fd, uint32_t slots, uint32_t slot_size, uint32_t limit,
	       size_t used);
void sr_wq_init(struct sr_wq *w);
void sr_wq_close(struct sr_wq *w);
int sr_wq_post_recv(struct sr_wq *w, uint32_t max_sge, struct ibv_recv_wr *wr,
		    struct ibv_recv_wr **bad, bool *posted);

/* How much of a slot so many SGEs need, or so much inline data. */
static inline size_t sr_send_bytes(uint32_t sges, uint32_t inlined)
{
	size_t s = (size_t)sges * SOFTROCE_SGE_SIZE;
	return SOFTROCE_SEND_SGES + (s > inlined ? s : inlined);
}

static inline size_t sr_recv_bytes(uint32_t sges)
{
	return SOFTROCE_RECV_SGES + (size_t)sges * SOFTROCE_SGE_SIZE;
}

static inline uint32_t sr_wq_used(struct sr_wq *w)
{
	return w->producer - atomic_load_explicit(sr_word(&w->ring, SOFTROCE_RING_CONSUMER),
						  memory_order_acquire);
}

static inline uint8_t *sr_wq_slot(struct sr_wq *w, uint32_t i)
{
	return w->ring.mem + SOFTROCE_RING_SLOTS + (size_t)(i & w->mask) * w->slot_size;
}

static inline void sr_wq_publish(struct sr_wq *w)
{
	atomic_store_explicit(sr_word(&w->ring, SOFTROCE_RING_PRODUCER), w->producer,
			      memory_order_release);
}

/* The flags that the daemon knows; the checksum offload of raw packets is not among them. */
#define SR_SEND_FLAGS                                                                              \
	(SOFTROCE_SEND_FENCE | SOFTROCE_SEND_SIGNALED | SOFTROCE_SEND_SOLICITED |                  \
	 SOFTROCE_SEND_INLINE)

/* A window grants nothing to this side: programs say "local write" all the same. */
#define SR_WINDOW_ACCESS (~(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_OPTIONAL_RANGE))

/* post.c */
int sr_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int sr_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int sr_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void sr_ring_doorbell(struct sr_qp *q);
int sr_may_post(struct sr_qp *q, enum ibv_qp_state from);

/* qp.c */
struct ibv_qp *sr_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);

/* wr.c */
void sr_set_wr_ops(struct sr_qp *q);

/* mr.c: registers memory that has no address here, by ask and, unless NULL, a descriptor */
struct ibv_mr *sr_reg_foreign(struct ibv_pd *pd, struct softroce_reg_mr_request *ask,
			      const int *fd);

/* dm.c */
struct ibv_dm *sr_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr);
int sr_free_dm(struct ibv_dm *dm);
struct ibv_mr *sr_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
			    unsigned int access);

/* mw.c */
struct ibv_mw *sr_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int sr_dealloc_mw(struct ibv_mw *mw);
int sr_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);

/* srq.c, xrc.c */
struct ibv_srq *sr_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
int sr_get_srq_num(struct ibv_srq *srq, uint32_t *number);
struct ibv_xrcd *sr_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr);
int sr_close_xrcd(struct ibv_xrcd *xrcd);

/* ah.c */
struct softroce_ah_attr sr_ah_to_abi(const struct ibv_ah_attr *a);
struct ibv_ah_attr sr_ah_from_abi(const struct softroce_ah_attr *a);

/* qp_attr.c. Of the attributes those are asked for that the mask selects, and the others are 0. */
struct softroce_qp_cap sr_qp_cap_to_abi(const struct ibv_qp_cap *c);
struct ibv_qp_cap sr_qp_cap_from_abi(const struct softroce_qp_cap *c);
void sr_qp_attr_to_abi(struct softroce_modify_qp_request *ask, enum ibv_qp_type type,
		       const struct ibv_qp_attr *attr, int mask);
void sr_qp_attr_from_abi(struct ibv_qp_attr *out, const struct softroce_qp_attr *a);

#endif
