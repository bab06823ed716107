// SPDX-License-Identifier: Apache-2.0
/*
 * Sockets over RDMA: messages, credits, waiting.
 */
#include "rsocket/dgram.h"

#include <byteswap.h>
#include <endian.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint32_t message(enum rs_op op, uint32_t data)
{
	return (uint32_t)op << 29 | (data & 0x1fffffff);
}

/* Work requests are told apart by their numbers: bytes of the send buffer, and what it was. */
static uint64_t wr_id(enum rs_op op, uint32_t bytes)
{
	return (uint64_t)op << 32 | bytes;
}

#define RECV_ID UINT64_MAX

static uint8_t to_scale(int v)
{
	return v <= 128 ? v : 128 | v >> 8;
}

static uint32_t from_scale(uint8_t v)
{
	return v <= 128 ? v : (uint32_t)(v & ~128) << 8;
}

void rs_describe(struct rs *s, struct rs_conn_data *d)
{
	memset(d, 0, sizeof *d);
	d->version = RS_VERSION;
	d->flags = RS_FLAG_IOMAP;
	if (htobe16(1) == 1)
		d->flags |= RS_FLAG_NET;
	d->credits = htobe16((uint16_t)s->opt.rq_size);
	d->iomap_size = to_scale(s->opt.iomap_size);
	d->targets.addr = htobe64((uintptr_t)s->targets);
	d->targets.length = htobe32(RS_TARGETS);
	d->targets.key = htobe32(s->tmr->rkey);
	d->data.addr = htobe64((uintptr_t)s->rbuf);
	d->data.length = htobe32(s->opt.rcv_size / 2);
	d->data.key = htobe32(s->rmr->rkey);
}

void rs_init_peer(struct rs *s, const struct rs_conn_data *d)
{
	bool big = htobe16(1) == 1;
	s->swap = big != !!(d->flags & RS_FLAG_NET);
	s->peer.addr = be64toh(d->targets.addr);
	s->peer.length = be32toh(d->targets.length);
	s->peer.key = be32toh(d->targets.key);
	s->peer_next = s->peer.length > 1;
	s->peer_iomaps.addr = s->peer.addr + sizeof(struct rs_sge) * s->peer.length;
	s->peer_iomaps.length = d->flags & RS_FLAG_IOMAP ? from_scale(d->iomap_size) : 0;
	s->peer_iomaps.key = s->peer.key;
	s->to[0].addr = be64toh(d->data.addr);
	s->to[0].length = be32toh(d->data.length);
	s->to[0].key = be32toh(d->data.key);
	s->to_next = 1;
	s->sseq_max = be16toh(d->credits);
}

int rs_post_recv(struct rs *s, int n)
{
	struct ibv_recv_wr wr = {.wr_id = RECV_ID}, *bad;
	for (; n > 0; n--)
		if (ibv_post_recv(s->id->qp, &wr, &bad))
			return errno;
	return 0;
}

static void broken(struct rs *s, int error)
{
	if (s->state != RS_CONNECTED)
		return;
	s->state = RS_FAILED;
	s->error = error;
	s->readable = s->writable = false;
}

static void post(struct rs *s, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	if (ibv_post_send(s->id->qp, wr, &bad))
		broken(s, EIO);
}

/* Sends an immediate, with up to 32 bytes that are written to addr. */
static void post_small(struct rs *s, uint32_t msg, enum rs_op op, const void *data, size_t len,
		       uint64_t addr, uint32_t key)
{
	struct ibv_sge sge = {.addr = (uintptr_t)data, .length = (uint32_t)len};
	struct ibv_send_wr wr = {
		.wr_id = wr_id(op, 0),
		.sg_list = &sge,
		.num_sge = len > 0,
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
		.imm_data = htobe32(msg),
		.wr.rdma = {.remote_addr = addr, .rkey = key},
	};
	post(s, &wr);
}

/* In the byte order of the peer, who does not look at ours. */
static struct rs_sge ordered(const struct rs *s, struct rs_sge e)
{
	if (s->swap) {
		e.addr = bswap_64(e.addr);
		e.key = bswap_32(e.key);
		e.length = bswap_32(e.length);
	}
	return e;
}

/* Tells the peer of a half that is free, or of more credits, where there is something to tell. */
static void give_credits(struct rs *s)
{
	int half = s->opt.rcv_size / 2;
	while (s->state == RS_CONNECTED && s->ctrl < RS_CTRL_MAX) {
		bool room = s->rbytes >= half;
		if (!room && (int16_t)(s->rseq - s->rseq_told) < 0)
			return;
		s->ctrl++;
		s->rseq_told = (uint16_t)(s->rseq + s->opt.rq_size / 2);
		uint32_t msg = message(RS_OP_SGL, (uint16_t)(s->rseq + s->opt.rq_size));
		if (!room) {
			post_small(s, msg, RS_OP_SGL, NULL, 0, 0, 0);
			continue;
		}
		struct rs_sge sge = {
			.addr = (uintptr_t)s->rbuf + s->rtold, .key = s->rmr->rkey, .length = half};
		sge = ordered(s, sge);
		uint64_t at = s->peer.addr + (uint64_t)s->peer_next * sizeof sge;
		post_small(s, msg, RS_OP_SGL, &sge, sizeof sge, at, s->peer.key);
		s->rbytes -= half;
		s->rgiven += half;
		s->rtold = (s->rtold + half) % (half * 2);
		s->peer_next = (s->peer_next + 1) % (int)s->peer.length;
	}
}

/* Tells the peer of memory that it may write to, or may no more. */
static void tell_regions(struct rs *s)
{
	for (struct rs_region **at = &s->regions; *at;) {
		struct rs_region *r = *at;
		if (!r->pending) {
			at = &r->next;
			continue;
		}
		if (s->sqe == 0 || s->sseq == s->sseq_max || s->state != RS_CONNECTED)
			return;
		struct rs_iomap m = {.offset = s->swap ? bswap_64(r->offset) : (uint64_t)r->offset};
		if (r->mr)
			m.sge = ordered(s, (struct rs_sge){(uintptr_t)r->mr->addr, r->mr->rkey,
							   (uint32_t)r->mr->length});
		s->sqe--;
		s->sseq++;
		post_small(s, message(RS_OP_IOMAP, r->index), RS_OP_IOMAP, &m, sizeof m,
			   s->peer_iomaps.addr + r->index * sizeof m, s->peer_iomaps.key);
		r->pending = false;
		if (!r->mr) { /* the entry is empty, and anyone's */
			*at = r->next;
			free(r);
		}
	}
}

void rs_send_ctrl(struct rs *s, enum rs_ctrl what)
{
	s->ctrl++;
	post_small(s, message(RS_OP_CTRL, what), RS_OP_CTRL, NULL, 0, 0, 0);
}

static void received_data(struct rs *s, uint32_t len)
{
	if (len == 0) {
		s->rseq++;
		return;
	}
	int next = (s->mtail + 1) % s->msize;
	/* A peer that does not keep to its credits, or to the room that it has. */
	if (next == s->mhead || len > (uint32_t)s->rgiven) {
		broken(s, EPROTO);
		return;
	}
	s->rgiven -= (int)len;
	s->messages[s->mtail] = len;
	s->mtail = next;
}

/* A message of the peer, which has written so many bytes before it. */
static void received(struct rs *s, uint32_t msg, uint32_t written)
{
	uint32_t data = msg & 0x1fffffff;
	switch (msg >> 29) {
	case RS_OP_SGL:
		s->sseq_max = (uint16_t)data;
		if (written == sizeof s->to[0]) {
			s->to[s->to_next] = s->targets[s->to_next];
			s->to_next = (s->to_next + 1) % RS_TARGETS;
		}
		break;
	case RS_OP_IOMAP:
		s->rseq++; /* it is in its place, and its credit is free again */
		break;
	case RS_OP_CTRL:
		if (data == RS_CTRL_DISCONNECT) {
			s->state = RS_DISCONNECTED;
			s->readable = s->writable = false;
		} else if (data == RS_CTRL_SHUTDOWN) {
			s->readable = false;
		}
		break;
	case RS_OP_DATA:
		received_data(s, data);
		break;
	default:
		broken(s, EPROTO);
	}
}

static void sent(struct rs *s, uint64_t id)
{
	switch (id >> 32) {
	case RS_OP_SGL:
	case RS_OP_CTRL:
		s->ctrl--;
		break;
	default:
		s->sqe++;
		s->sfree += (int)(id & UINT32_MAX);
	}
}

static void take_completion(struct rs *s, const struct ibv_wc *wc, int *receives)
{
	s->changes++;
	if (wc->wr_id != RECV_ID) {
		sent(s, wc->wr_id);
		if (wc->status != IBV_WC_SUCCESS)
			broken(s, wc->status == IBV_WC_WR_FLUSH_ERR ? ECONNRESET : EIO);
	} else if (wc->status == IBV_WC_SUCCESS) {
		++*receives;
		if (wc->wc_flags & IBV_WC_WITH_IMM)
			received(s, be32toh(wc->imm_data), wc->byte_len);
		else
			broken(s, EPROTO);
	} else {
		/* The queue pair has failed, for which no send of ours need be the reason. */
		broken(s, wc->status == IBV_WC_WR_FLUSH_ERR ? ECONNRESET : EIO);
	}
}

void rs_process(struct rs *s)
{
	struct ibv_wc wc;
	int receives = 0;
	if (s->ds)
		ds_process(s);
	if (!s->cq)
		return;
	while (ibv_poll_cq(s->cq, 1, &wc) > 0)
		take_completion(s, &wc, &receives);
	if (s->state != RS_CONNECTED)
		return;
	if (rs_post_recv(s, receives))
		broken(s, EIO);
	give_credits(s);
	tell_regions(s);
}

bool rs_can_send(const struct rs *s)
{
	return s->state == RS_CONNECTED && s->sqe > 0 && s->sfree > 0 && s->sseq != s->sseq_max &&
	       s->to[s->target].length > 0;
}

bool rs_can_recv(const struct rs *s)
{
	return s->mhead != s->mtail;
}

/* Writes up to len bytes to the peer, from the send buffer. Returns how many. */
int rs_write(struct rs *s, const void *buf, int len, enum rs_op op, uint64_t addr, uint32_t key)
{
	struct ibv_sge sge[2] = {{0}};
	struct ibv_send_wr wr = {
		.sg_list = sge,
		.num_sge = 1,
		.opcode = op == RS_OP_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htobe32(message(op, len)),
		.wr.rdma = {.remote_addr = addr, .rkey = key},
	};
	if (len <= s->opt.inline_size) {
		sge[0].addr = (uintptr_t)buf;
		sge[0].length = len;
		wr.send_flags |= IBV_SEND_INLINE;
		wr.wr_id = wr_id(op, 0);
	} else {
		int first = s->opt.snd_size - s->shead < len ? s->opt.snd_size - s->shead : len;
		memcpy(s->sbuf + s->shead, buf, first);
		memcpy(s->sbuf, (const uint8_t *)buf + first, len - first);
		sge[0] = (struct ibv_sge){(uintptr_t)s->sbuf + s->shead, first, s->smr->lkey};
		sge[1] = (struct ibv_sge){(uintptr_t)s->sbuf, len - first, s->smr->lkey};
		wr.num_sge = 1 + (len > first);
		s->shead = (s->shead + len) % s->opt.snd_size;
		s->sfree -= len;
		wr.wr_id = wr_id(op, len);
	}
	s->sqe--;
	if (op == RS_OP_DATA)
		s->sseq++;
	post(s, &wr);
	return len;
}

static int64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* In ms. */
int64_t rs_now(void)
{
	return now_us() / 1000;
}

/* Looks for completions, for as long as the administrator says. True: there were some. */
static bool look(struct rs *s)
{
	unsigned int before = s->changes;
	int us = rs_default_poll();
	rs_process(s);
	for (int64_t end = us ? now_us() + us : 0; s->changes == before && us && now_us() < end;)
		rs_process(s);
	return s->changes != before;
}

/* Asks for an event of the completions to come. */
void rs_arm(struct rs *s)
{
	if (s->ds)
		ds_arm(s);
	else if (s->cq)
		ibv_req_notify_cq(s->cq, 0);
}

void rs_take_events(struct rs *s)
{
	struct ibv_cq *cq;
	void *context;
	if (s->ds)
		ds_take_events(s);
	else if (s->comp)
		while (!ibv_get_cq_event(s->comp, &cq, &context))
			ibv_ack_cq_events(cq, 1);
}

/* What a wait for anything that happens has to poll. Returns how many. */
int rs_descriptors(const struct rs *s, struct pollfd out[2])
{
	out[0] = (struct pollfd){.fd = s->fd, .events = POLLIN};
	if (!s->comp)
		return 1;
	out[1] = (struct pollfd){.fd = s->comp->fd, .events = POLLIN};
	return 2;
}

/* One thread polls for all. Returns 0, or ETIMEDOUT. */
static int poll_once(struct rs *s, int timeout)
{
	struct pollfd p[2];
	rs_arm(s);
	if (look(s))
		return 0;
	int n = rs_descriptors(s, p);
	s->polling = true;
	pthread_mutex_unlock(&s->lock);
	int got = poll(p, n, timeout);
	int error = errno;
	pthread_mutex_lock(&s->lock);
	s->polling = false;
	rs_take_events(s);
	rs_process(s);
	rs_advance(s);
	pthread_cond_broadcast(&s->cond);
	if (got < 0)
		return error;
	return got == 0 ? ETIMEDOUT : 0;
}

/*
 * Waits until something may have changed, timeout ms at most, -1 for ever. 0, ETIMEDOUT or EINTR.
 */
int rs_wait(struct rs *s, int timeout)
{
	if (!s->polling)
		return poll_once(s, timeout);
	if (timeout < 0)
		return pthread_cond_wait(&s->cond, &s->lock);
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	int64_t ns = t.tv_nsec + (int64_t)(timeout % 1000) * 1000000;
	t.tv_sec += timeout / 1000 + ns / 1000000000;
	t.tv_nsec = ns % 1000000000;
	return pthread_cond_clockwait(&s->cond, &s->lock, CLOCK_MONOTONIC, &t);
}
