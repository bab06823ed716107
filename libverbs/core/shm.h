/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory shared with the daemon: the doorbell page, and the chunks in which the rings are.
 * internal/abi/ring.go lists which accesses of the two sides are ordered by fences.
 */
#ifndef SOFTROCE_SHM_H
#define SOFTROCE_SHM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/softroce_abi.h"

struct sr_shm {
	uint8_t *mem; /* NULL: not mapped */
	size_t size;
};

/* sr_shm_map maps size bytes of fd and always closes fd. It returns 0 or an errno. */
int sr_shm_map(struct sr_shm *m, int fd, size_t size);
void sr_shm_unmap(struct sr_shm *m);

/*
 * sr_shm_make_private replaces the mapping with private zeroed memory at the same address. A forked
 * child does this with what it inherits, so that it cannot modify its parent's queues.
 */
void sr_shm_make_private(struct sr_shm *m);

/* The chunks of a context that are mapped. */
struct sr_chunk;
struct sr_chunks {
	pthread_mutex_t lock; /* no other is acquired with it */
	struct sr_chunk *first;
};

/*
 * sr_ring_map finds a ring of size bytes in a chunk, which it maps if it is not mapped, and always
 * closes fd, the descriptor of the chunk, or -1 if it is mapped. It returns 0 or an errno. A chunk
 * is unmapped with its last ring.
 */
int sr_ring_map(struct sr_chunks *c, struct sr_shm *ring, int fd, const struct softroce_chunk *in,
		uint32_t offset, size_t size);
void sr_ring_unmap(struct sr_chunks *c, struct sr_shm *ring);

/* sr_chunks_make_private is sr_shm_make_private for all chunks. */
void sr_chunks_make_private(struct sr_chunks *c);

static inline _Atomic uint32_t *sr_shm_word(const struct sr_shm *m, size_t offset)
{
	return (_Atomic uint32_t *)(m->mem + offset);
}

/* A ring has a power of two of slots, few enough that its size in bytes does not overflow. */
static inline bool sr_valid_slot_count(uint32_t slots)
{
	return slots && !(slots & (slots - 1)) && slots <= 1u << 24;
}

#endif
