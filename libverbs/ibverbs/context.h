/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts, and helpers that all objects of a context use. Each object begins with the public
 * struct that programs see.
 *
 * Lock order: a completion channel's, a completion queue's, a work queue's, the list of contexts, a
 * context's, that of its chunks, the public mutex of an object; a connection's is taken last.
 *
 * fork takes the locks of the list of contexts, of all contexts with their chunks, and of the list
 * of devices. So a thread that holds one of them waits for nothing: not for the daemon, and not for
 * a lock that a program may hold when it forks, as it holds a queue's from ibv_start_poll to
 * ibv_end_poll. All lists change under the context's lock, those of a channel or a completion queue
 * under its own too, which is enough to read them. A child finds the lists whole, and initializes
 * all other locks.
 */
#ifndef SOFTROCE_CONTEXT_H
#define SOFTROCE_CONTEXT_H

#include <infiniband/verbs.h>

#include <errno.h>
#include <stdlib.h>
#include <sys/single_threaded.h>

#include "core/conn.h"
#include "core/export.h"
#include "core/list.h"
#include "core/shm.h"

#undef ibv_query_port

/* A copy of the GID table, and its length with the unused indices. */
struct sr_gid_table {
	struct softroce_gid_entry *entries; /* NULL: not read */
	uint32_t count;
	uint32_t changes; /* of the table, when it was read */
	uint32_t length;  /* 0: unknown */
};

/* The address handles of a context: see ah.c. */
#define SR_AH_BUCKETS 256
struct sr_ahs {
	struct sr_link *buckets; /* those that can be shared, NULL: none yet */
	struct sr_link idle;	 /* those without users, oldest first */
	uint32_t idle_count;
	uint32_t users; /* address handles of the program */
	uint32_t max;	/* the most that it may have, 0: unknown */
};

struct sr_context {
	struct verbs_context verbs;
	struct sr_conn conn;
	struct sr_link link; /* in the list of all contexts */
	struct sr_shm doorbells;
	struct sr_chunks chunks;
	struct sr_shm events; /* the ring of async events */
	uint32_t event_slots;
	uint32_t dropped_events; /* of the async event socket: see sr_drop_events */
	int doorbell_fd;
	atomic_bool waited;	   /* a poll found nothing since a post last yielded */
	atomic_bool engine_woken;  /* by this process, which has not yielded since */
	atomic_bool posted;	   /* sends, since a thread last yielded for lack of completions */
	atomic_int fatal_reported; /* IBV_EVENT_DEVICE_FATAL was delivered to the program */
	pthread_mutex_t lock;	   /* of what follows */
	struct sr_link channels, cqs, qps, srqs;
	struct sr_gid_table gids;
	struct sr_ahs ahs;
};

static inline struct sr_context *sr_ctx(struct ibv_context *c)
{
	return sr_container(c, struct sr_context, verbs.context);
}

/*
 * sr_address_changes returns a number that the daemon changes when the GID table changes. The
 * copies of a context in a child of a fork are not renewed.
 */
static inline uint32_t sr_address_changes(struct sr_context *ctx)
{
	return atomic_load(sr_shm_word(&ctx->doorbells, SOFTROCE_DOORBELL_ADDRESSES));
}

static inline bool sr_copies_valid(struct sr_context *ctx)
{
	return !ctx->conn.forked && !sr_gone(&ctx->conn);
}

/* sr_wake_engine wakes the engine if it sleeps (post.c). */
void sr_wake_engine(struct sr_context *ctx);

/* sr_take_flag clears a flag, and reports whether it was set. */
static inline bool sr_take_flag(atomic_bool *flag)
{
	return atomic_load_explicit(flag, memory_order_relaxed) &&
	       atomic_exchange_explicit(flag, false, memory_order_relaxed);
}

/* Queues of a thread domain are used by one thread at a time and take no lock. */
static inline void sr_lock(pthread_mutex_t *m, bool single_threaded)
{
	if (!single_threaded)
		pthread_mutex_lock(m);
}

static inline void sr_unlock(pthread_mutex_t *m, bool single_threaded)
{
	if (!single_threaded)
		pthread_mutex_unlock(m);
}

/*
 * sr_lock_call and sr_unlock_call are for functions that lock and unlock a queue in one call. They
 * take no lock until the process has created a thread, either: none can start meanwhile.
 * sr_unlock_call gets what sr_lock_call has returned.
 */
static inline bool sr_lock_call(pthread_mutex_t *m, bool single_threaded)
{
	bool locks = !single_threaded && !__libc_single_threaded;
	if (locks)
		pthread_mutex_lock(m);
	return locks;
}

static inline void sr_unlock_call(pthread_mutex_t *m, bool locked)
{
	if (locked)
		pthread_mutex_unlock(m);
}

/*
 * Sets errno to an error and returns it, for functions that return an errno: programs look at
 * either. sr_call has done so when it fails.
 */
static inline int sr_error(int error)
{
	if (error)
		errno = error;
	return error;
}

/*
 * Destroys an object unless others use it, which refer to it. Without the daemon, and for an
 * inherited object in a forked child, the number of users decides.
 */
static inline int sr_destroy_unused(struct ibv_context *c, atomic_int *users, uint16_t op,
				    uint32_t handle)
{
	int error = sr_command_handle(&sr_ctx(c)->conn, op, handle);
	return error != EIO ? error : atomic_load(users) ? sr_error(EBUSY) : 0;
}

/*
 * Adds n to the users of an object that can be imported. Below zero frees it: when an imported
 * object is given up, which counts as -1, objects that refer to it may be left.
 */
static inline void sr_count_users(void *object, atomic_int *users, int n)
{
	if (atomic_fetch_add(users, n) + n < 0)
		free(object);
}

/*
 * sr_moved returns the error of moving a queue to another ring. The daemon uses the new one also if
 * this process had no room for its descriptor (EMFILE): then its chunk may be mapped already. If
 * it is not, the queue has lost its ring.
 */
static inline int sr_moved(struct sr_context *ctx, struct sr_shm *ring, int error,
			   int mapping_error)
{
	if (!mapping_error)
		return 0;
	sr_ring_unmap(&ctx->chunks, ring);
	return error ? error : mapping_error;
}

/* Sets errno and returns NULL, for functions that return an object. */
static inline void *sr_null(int error)
{
	errno = error;
	return NULL;
}

#endif
