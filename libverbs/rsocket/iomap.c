// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that the peer writes to by offset: riomap, riounmap and riowrite.
 */
#include "rsocket/rs.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Returns an entry of the peer's list that no region uses, or -1. */
static int free_index(const struct rs *s)
{
	for (int i = 0; i < (int)s->remote_iomap.length; i++) {
		const struct rs_region *r = s->regions;
		while (r && r->index != i)
			r = r->next;
		if (!r)
			return i;
	}
	return -1;
}

static off_t map_region(struct rs *s, void *buf, size_t len, int prot, off_t offset)
{
	if (!rs_open(s) || !s->id->pd)
		return rs_fail(ENOTCONN);
	if (!len || len > UINT32_MAX)
		return rs_fail(EINVAL);
	/* The peer needs no entry for memory that it cannot write. */
	bool writable = prot & PROT_WRITE;
	int index = writable ? free_index(s) : INT_MAX;
	if (index < 0)
		return rs_fail(ENOBUFS);
	struct rs_region *r = calloc(1, sizeof *r);
	if (!r)
		return rs_fail(ENOMEM);
	int access = IBV_ACCESS_LOCAL_WRITE;
	if (prot & PROT_WRITE)
		access |= IBV_ACCESS_REMOTE_WRITE;
	if (prot & PROT_READ)
		access |= IBV_ACCESS_REMOTE_READ;
	r->mr = ibv_reg_mr(s->id->pd, buf, len, access);
	if (!r->mr) {
		int error = errno;
		free(r);
		return rs_fail(error);
	}
	r->offset = offset == -1 ? (off_t)(uintptr_t)buf : offset;
	r->index = index;
	r->pending = writable;
	r->next = s->regions;
	s->regions = r;
	rs_process_cq(s); /* sends the entry */
	return r->offset;
}

SR_PUBLIC off_t riomap(int fd, void *buf, size_t len, int prot, int flags, off_t offset)
{
	(void)flags;
	struct rs *s = rs_enter(fd);
	if (!s)
		return -1;
	off_t at = map_region(s, buf, len, prot, offset);
	rs_leave(s);
	return at;
}

static int unmap_region(struct rs *s, void *buf, size_t len)
{
	struct rs_region **at = &s->regions;
	while (*at && !((*at)->mr && (*at)->mr->addr == buf && (*at)->mr->length == len))
		at = &(*at)->next;
	struct rs_region *r = *at;
	if (!r)
		return EINVAL;
	ibv_dereg_mr(r->mr);
	r->mr = NULL;
	if (r->index == INT_MAX) {
		*at = r->next;
		free(r);
		return 0;
	}
	r->pending = true;
	rs_process_cq(s); /* sends the entry */
	return 0;
}

SR_PUBLIC int riounmap(int fd, void *buf, size_t len)
{
	struct rs *s = rs_enter(fd);
	if (!s)
		return -1;
	int error = unmap_region(s, buf, len);
	rs_leave(s);
	return cm_result(error);
}

/*
 * Finds the peer's region that contains an offset. The peer may write the list at any time, so
 * each entry is copied once.
 */
static bool find_map(const struct rs *s, uint64_t offset, struct rs_iomap *out)
{
	for (int i = 0; i < s->opt.iomap_size; i++) {
		memcpy(out, (const void *)&s->target_iomap[i], sizeof *out);
		if (out->sge.length && offset >= out->offset &&
		    offset - out->offset < out->sge.length)
			return true;
	}
	return false;
}

static size_t write_offset(struct rs *s, const uint8_t *buf, size_t count, uint64_t offset,
			   int flags)
{
	size_t done = 0;
	struct rs_iomap m;
	rs_process_cq(s);
	while (done < count) {
		if (!rs_open(s))
			return done ? done : (size_t)rs_fail(s->error ? s->error : ECONNRESET);
		if (!s->writable)
			return done ? done : (size_t)rs_fail(EPIPE);
		if (!find_map(s, offset + done, &m))
			return done ? done : (size_t)rs_fail(EINVAL);
		if (s->state == RS_ACCEPTING || s->sqe_avail == 0 || s->sbuf_bytes_avail == 0) {
			int error = rs_would_block(s, flags) ? EAGAIN : rs_wait(s, -1);
			if (error)
				return done ? done : (size_t)rs_fail(error);
			continue;
		}
		uint64_t into = offset + done - m.offset;
		size_t n = count - done;
		if (n > m.sge.length - into)
			n = m.sge.length - into;
		if (n > (size_t)s->sbuf_bytes_avail)
			n = (size_t)s->sbuf_bytes_avail;
		if (n > RS_MAX_MESSAGE)
			n = RS_MAX_MESSAGE;
		rs_write(s, buf + done, (int)n, RS_OP_WRITE, m.sge.addr + into, m.sge.key);
		done += n;
	}
	return done;
}

SR_PUBLIC size_t riowrite(int fd, const void *buf, size_t count, off_t offset, int flags)
{
	struct rs *s = rs_enter(fd);
	if (!s)
		return (size_t)-1;
	size_t n = write_offset(s, buf, count, (uint64_t)offset, flags);
	rs_leave(s);
	return n;
}
