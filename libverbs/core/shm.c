// SPDX-License-Identifier: Apache-2.0
#include "core/shm.h"
#include "core/cancel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Accessing memory that is shorter than announced, or truncated later, would raise SIGBUS. */
static int check_size(int fd, size_t size)
{
	struct stat st;
	if (fstat(fd, &st))
		return errno;
	int seals = fcntl(fd, F_GET_SEALS);
	return st.st_size < 0 || (uint64_t)st.st_size < size || seals < 0 ||
			       !(seals & F_SEAL_SHRINK)
		       ? EPROTO
		       : 0;
}

static void close_fd(int fd)
{
	int state = sr_defer_cancel();
	close(fd);
	sr_restore_cancel(state);
}

int sr_shm_map(struct sr_shm *m, int fd, size_t size)
{
	int error = check_size(fd, size);
	void *mem = MAP_FAILED;
	if (!error) {
		mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		error = errno;
	}
	close_fd(fd);
	if (mem == MAP_FAILED)
		return error;
	m->mem = mem;
	m->size = size;
	return 0;
}

void sr_shm_unmap(struct sr_shm *m)
{
	if (m->mem)
		munmap(m->mem, m->size);
	m->mem = NULL;
}

void sr_shm_make_private(struct sr_shm *m)
{
	if (m->mem)
		mmap(m->mem, m->size, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

struct sr_chunk {
	struct sr_chunk *next;
	struct sr_shm shm;
	uint32_t number;
	uint32_t rings;
};

static struct sr_chunk *find_chunk(struct sr_chunks *c, uint32_t number)
{
	struct sr_chunk *k = c->first;
	while (k && k->number != number)
		k = k->next;
	return k;
}

static struct sr_chunk *map_chunk(struct sr_chunks *c, int fd, const struct softroce_chunk *in,
				  int *error)
{
	struct sr_chunk *k = calloc(1, sizeof *k);
	if (!k) {
		close_fd(fd);
		*error = ENOMEM;
		return NULL;
	}
	*error = sr_shm_map(&k->shm, fd, in->size);
	if (*error) {
		free(k);
		return NULL;
	}
	k->number = in->number;
	k->next = c->first;
	c->first = k;
	return k;
}

int sr_ring_map(struct sr_chunks *c, struct sr_shm *ring, int fd, const struct softroce_chunk *in,
		uint32_t offset, size_t size)
{
	int error = offset > in->size || size > in->size - offset || offset % 64 ? EPROTO : 0;
	pthread_mutex_lock(&c->lock);
	struct sr_chunk *k = find_chunk(c, in->number);
	if (k && k->shm.size != in->size)
		error = EPROTO;
	if (!error && !k)
		k = map_chunk(c, fd, in, &error);
	else if (fd >= 0)
		close_fd(fd);
	if (!error) {
		k->rings++;
		ring->mem = k->shm.mem + offset;
		ring->size = size;
	}
	pthread_mutex_unlock(&c->lock);
	return error;
}

void sr_ring_unmap(struct sr_chunks *c, struct sr_shm *ring)
{
	if (!ring->mem)
		return;
	pthread_mutex_lock(&c->lock);
	struct sr_chunk **p = &c->first;
	while (ring->mem < (*p)->shm.mem || ring->mem >= (*p)->shm.mem + (*p)->shm.size)
		p = &(*p)->next;
	struct sr_chunk *k = *p;
	if (!--k->rings) {
		*p = k->next;
		sr_shm_unmap(&k->shm);
		free(k);
	}
	pthread_mutex_unlock(&c->lock);
	ring->mem = NULL;
}

void sr_chunks_make_private(struct sr_chunks *c)
{
	for (struct sr_chunk *k = c->first; k; k = k->next)
		sr_shm_make_private(&k->shm);
}
