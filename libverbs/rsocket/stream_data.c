// SPDX-License-Identifier: Apache-2.0
/*
 * Stream sockets: data, control messages and credits.
 */
#include "rsocket/rs.h"

#include <byteswap.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

/* The immediate data of a message: the highest 3 bits are its kind. */
#define OP_SHIFT  29
#define DATA_MASK 0x1fffffff

static uint32_t make_msg(enum rs_op op, uint32_t data)
{
	return (uint32_t)op << OP_SHIFT | (data & DATA_MASK);
}

/* The wr_id of a send: its kind, and the number of bytes of the send buffer that it occupies. */
static uint64_t wr_id(enum rs_op op, uint32_t bytes)
{
	return (uint64_t)op << 32 | bytes;
}

#define RECV_ID UINT64_MAX

static uint8_t to_8bit_scale(int v)
{
	return v <= 128 ? v : 128 | v >> 8;
}

static uint32_t from_8bit_scale(uint8_t v)
{
	return v <= 128 ? v : (uint32_t)(v & ~128) << 8;
}

void rs_format_conn_data(struct rs *s, struct rs_conn_data *d)
{
	memset(d, 0, sizeof *d);
	d->version = RS_CONN_VERSION;
	d->flags = RS_FLAG_IOMAP;
	if (htobe16(1) == 1)
		d->flags |= RS_FLAG_NET;
	d->credits = htobe16((uint16_t)s->opt.rq_size);
	d->iomap_size = to_8bit_scale(s->opt.iomap_size);
	d->target_sgl.addr = htobe64((uintptr_t)s->target_sgl);
	d->target_sgl.length = htobe32(RS_SGL_SIZE);
	d->target_sgl.key = htobe32(s->target_mr->rkey);
	d->data_buf.addr = htobe64((uintptr_t)s->rbuf);
	d->data_buf.length = htobe32(s->opt.rcv_size / 2);
	d->data_buf.key = htobe32(s->rmr->rkey);
}

void rs_save_conn_data(struct rs *s, const struct rs_conn_data *d)
{
	bool big = htobe16(1) == 1;
	s->swap = big != !!(d->flags & RS_FLAG_NET);
	s->remote_sgl.addr = be64toh(d->target_sgl.addr);
	s->remote_sgl.length = be32toh(d->target_sgl.length);
	s->remote_sgl.key = be32toh(d->target_sgl.key);
	s->remote_next = s->remote_sgl.length > 1;
	s->remote_iomap.addr = s->remote_sgl.addr + sizeof(struct rs_sge) * s->remote_sgl.length;
	s->remote_iomap.length = d->flags & RS_FLAG_IOMAP ? from_8bit_scale(d->iomap_size) : 0;
	s->remote_iomap.key = s->remote_sgl.key;
	s->target[0].addr = be64toh(d->data_buf.addr);
	s->target[0].length = be32toh(d->data_buf.length);
	s->target[0].key = be32toh(d->data_buf.key);
	s->target_next = 1;
	s->sseq_comp = be16toh(d->credits);
}

int rs_post_recv(struct rs *s, int n)
{
	struct ibv_recv_wr wr = {.wr_id = RECV_ID}, *bad;
	for (; n > 0; n--)
		if (ibv_post_recv(s->id->qp, &wr, &bad))
			return errno;
	return 0;
}

/* Has no effect after the connection has ended. */
static void fail_connection(struct rs *s, int error)
{
	if (!rs_open(s))
		return;
	s->state = RS_FAILED;
	s->error = error;
	s->readable = s->writable = false;
}

static void post_send(struct rs *s, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	if (ibv_post_send(s->id->qp, wr, &bad))
		fail_connection(s, EIO);
}

/* Sends a message, with up to 32 bytes of inline data that are written to addr. */
static void post_msg(struct rs *s, uint32_t msg, enum rs_op op, const void *data, size_t len,
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
	post_send(s, &wr);
}

/* Converts an element to the byte order of the peer, which does not convert. */
static struct rs_sge to_peer_order(const struct rs *s, struct rs_sge e)
{
	if (s->swap) {
		e.addr = bswap_64(e.addr);
		e.key = bswap_32(e.key);
		e.length = bswap_32(e.length);
	}
	return e;
}

/* Offers the peer a free half of the receive buffer, or grants it credits, if there are any. */
static void send_credits(struct rs *s)
{
	int half = s->opt.rcv_size / 2;
	while (s->state == RS_CONNECTED && s->ctrl_outstanding < RS_MAX_CTRL_MSG) {
		bool room = s->rbuf_bytes_free >= half;
		if (!room && (int16_t)(s->rseq_no - s->rseq_comp) < 0)
			return;
		s->ctrl_outstanding++;
		s->rseq_comp = (uint16_t)(s->rseq_no + s->opt.rq_size / 2);
		uint32_t msg = make_msg(RS_OP_SGL, (uint16_t)(s->rseq_no + s->opt.rq_size));
		if (!room) {
			post_msg(s, msg, RS_OP_SGL, NULL, 0, 0, 0);
			continue;
		}
		struct rs_sge sge = {.addr = (uintptr_t)s->rbuf + s->rbuf_free_pos,
				     .key = s->rmr->rkey,
				     .length = half};
		sge = to_peer_order(s, sge);
		uint64_t at = s->remote_sgl.addr + (uint64_t)s->remote_next * sizeof sge;
		post_msg(s, msg, RS_OP_SGL, &sge, sizeof sge, at, s->remote_sgl.key);
		s->rbuf_bytes_free -= half;
		s->rbuf_granted += half;
		s->rbuf_free_pos = (s->rbuf_free_pos + half) % (half * 2);
		s->remote_next = (s->remote_next + 1) % (int)s->remote_sgl.length;
	}
}

/* Sends the peer the entries of regions that were mapped or unmapped. */
static void send_iomaps(struct rs *s)
{
	for (struct rs_region **at = &s->regions; *at;) {
		struct rs_region *r = *at;
		if (!r->pending) {
			at = &r->next;
			continue;
		}
		if (s->sqe_avail == 0 || s->sseq_no == s->sseq_comp || s->state != RS_CONNECTED)
			return;
		struct rs_iomap m = {.offset = s->swap ? bswap_64(r->offset) : (uint64_t)r->offset};
		if (r->mr)
			m.sge = to_peer_order(s,
					      (struct rs_sge){(uintptr_t)r->mr->addr, r->mr->rkey,
							      (uint32_t)r->mr->length});
		s->sqe_avail--;
		s->sseq_no++;
		post_msg(s, make_msg(RS_OP_IOMAP, r->index), RS_OP_IOMAP, &m, sizeof m,
			 s->remote_iomap.addr + r->index * sizeof m, s->remote_iomap.key);
		r->pending = false;
		if (!r->mr) { /* the peer may reuse the entry */
			*at = r->next;
			free(r);
		}
	}
}

void rs_send_ctrl(struct rs *s, enum rs_ctrl what)
{
	s->ctrl_outstanding++;
	post_msg(s, make_msg(RS_OP_CTRL, what), RS_OP_CTRL, NULL, 0, 0, 0);
}

static void handle_data(struct rs *s, uint32_t len)
{
	if (len == 0) {
		s->rseq_no++;
		return;
	}
	int next = (s->rmsg_tail + 1) % s->rmsg_size;
	/* The peer exceeds its credits, or the space that it was granted. */
	if (next == s->rmsg_head || len > (uint32_t)s->rbuf_granted) {
		fail_connection(s, EPROTO);
		return;
	}
	s->rbuf_granted -= (int)len;
	s->rmsg[s->rmsg_tail] = len;
	s->rmsg_tail = next;
}

/* Handles a message of the peer. written is the number of bytes that it wrote with it. */
static void handle_msg(struct rs *s, uint32_t msg, uint32_t written)
{
	uint32_t data = msg & DATA_MASK;
	switch (msg >> OP_SHIFT) {
	case RS_OP_SGL:
		s->sseq_comp = (uint16_t)data;
		if (written == sizeof s->target[0]) {
			s->target[s->target_next] = s->target_sgl[s->target_next];
			s->target_next = (s->target_next + 1) % RS_SGL_SIZE;
		}
		break;
	case RS_OP_IOMAP:
		s->rseq_no++; /* the entry was written; the credit is free again */
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
		handle_data(s, data);
		break;
	default:
		fail_connection(s, EPROTO);
	}
}

static void handle_sent(struct rs *s, uint64_t id)
{
	switch (id >> 32) {
	case RS_OP_SGL:
	case RS_OP_CTRL:
		s->ctrl_outstanding--;
		break;
	default:
		s->sqe_avail++;
		s->sbuf_bytes_avail += (int)(id & UINT32_MAX);
	}
}

static void handle_completion(struct rs *s, const struct ibv_wc *wc, int *receives)
{
	s->event_count++;
	if (wc->wr_id != RECV_ID) {
		handle_sent(s, wc->wr_id);
		if (wc->status != IBV_WC_SUCCESS)
			fail_connection(s, wc->status == IBV_WC_WR_FLUSH_ERR ? ECONNRESET : EIO);
	} else if (wc->status == IBV_WC_SUCCESS) {
		++*receives;
		if (s->state == RS_ACCEPTING)
			s->state = RS_CONNECTED;
		if (wc->wc_flags & IBV_WC_WITH_IMM)
			handle_msg(s, be32toh(wc->imm_data), wc->byte_len);
		else
			fail_connection(s, EPROTO);
	} else {
		/* The queue pair is in the Error state; no send of this side need have failed. */
		fail_connection(s, wc->status == IBV_WC_WR_FLUSH_ERR ? ECONNRESET : EIO);
	}
}

void rs_process_stream_cq(struct rs *s)
{
	struct ibv_wc wc;
	int receives = 0;
	if (!s->cq)
		return;
	while (ibv_poll_cq(s->cq, 1, &wc) > 0)
		handle_completion(s, &wc, &receives);
	if (s->state == RS_ACCEPTING)
		rs_process_cm_events(s);
	if (s->state != RS_CONNECTED)
		return;
	if (rs_post_recv(s, receives))
		fail_connection(s, EIO);
	send_credits(s);
	send_iomaps(s);
}

bool rs_can_send(const struct rs *s)
{
	return s->state == RS_CONNECTED && s->sqe_avail > 0 && s->sbuf_bytes_avail > 0 &&
	       s->sseq_no != s->sseq_comp && s->target[s->target_index].length > 0;
}

bool rs_can_recv(const struct rs *s)
{
	return s->rmsg_head != s->rmsg_tail;
}

int rs_write(struct rs *s, const void *buf, int len, enum rs_op op, uint64_t addr, uint32_t key)
{
	struct ibv_sge sge[2] = {{0}};
	struct ibv_send_wr wr = {
		.sg_list = sge,
		.num_sge = 1,
		.opcode = op == RS_OP_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htobe32(make_msg(op, len)),
		.wr.rdma = {.remote_addr = addr, .rkey = key},
	};
	if (len <= s->opt.inline_size) {
		sge[0].addr = (uintptr_t)buf;
		sge[0].length = len;
		wr.send_flags |= IBV_SEND_INLINE;
		wr.wr_id = wr_id(op, 0);
	} else {
		int first =
			s->opt.snd_size - s->sbuf_pos < len ? s->opt.snd_size - s->sbuf_pos : len;
		memcpy(s->sbuf + s->sbuf_pos, buf, first);
		memcpy(s->sbuf, (const uint8_t *)buf + first, len - first);
		sge[0] = (struct ibv_sge){(uintptr_t)s->sbuf + s->sbuf_pos, first, s->smr->lkey};
		sge[1] = (struct ibv_sge){(uintptr_t)s->sbuf, len - first, s->smr->lkey};
		wr.num_sge = 1 + (len > first);
		s->sbuf_pos = (s->sbuf_pos + len) % s->opt.snd_size;
		s->sbuf_bytes_avail -= len;
		wr.wr_id = wr_id(op, len);
	}
	s->sqe_avail--;
	if (op == RS_OP_DATA)
		s->sseq_no++;
	post_send(s, &wr);
	return len;
}
