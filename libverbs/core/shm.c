// SPDX-License-Identifier: Apache-2.0
#include "core/shm.h"

#include <errno.h>
#include <fcntl.h>
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

int sr_shm_map(struct sr_shm *m, int fd, size_t size)
{
	int error = check_size(fd, size);
	void *mem = MAP_FAILED;
	if (!error) {
		mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		error = errno;
	}
	close(fd);
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
