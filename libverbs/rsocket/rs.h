/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream sockets over RDMA, as rdma-core's rsocket protocol has them on the wire.
 *
 * Each side has a receive buffer of two halves. It tells its peer of a half that is free by writing
 * the half's address into the peer's list of targets (two entries, used in turn); the peer writes
 * data there, with the number of bytes as the immediate. Immediates also grant credits: how many
 * messages the peer may send. Each takes a receive, which has no memory of its own.
 *
 * A socket has one lock. Whoever has to wait polls its descriptors for all, and the others wait for
 * that one.
 */
#ifndef SOFTROCE_RS_H
#define SOFTROCE_RS_H

#include <fcntl.h>
#include <poll.h>
#include <rdma/rsocket.h>

#include "rdmacm/rdmacm.h"

/* What an immediate says: its three highest bits. */
enum rs_op {
	RS_OP_DATA = 0,
	RS_OP_WRITE = 2, /* not sent: a write of riowrite */
	RS_OP_SGL = 4,	 /* the rest is the number up to which the peer may send */
	RS_OP_IOMAP = 6,
	RS_OP_CTRL = 7,
};

enum rs_ctrl {
	RS_CTRL_DISCONNECT,
	RS_CTRL_KEEPALIVE,
	RS_CTRL_SHUTDOWN,
};

#define RS_TARGETS    2 /* entries of the list of targets */
#define RS_CTRL_MAX   4 /* control messages at a time, beside those of data */
#define RS_VERSION    1
#define RS_FLAG_NET   1 /* the sender is big-endian */
#define RS_FLAG_IOMAP 2
#define RS_MAX_LIST   1024 /* entries of a list of targets that a peer may have */

struct rs_sge {
	uint64_t addr;
	uint32_t key;
	uint32_t length;
};

struct rs_iomap {
	uint64_t offset;
	struct rs_sge sge;
};

/* The private data of a request and its answer; numbers are big-endian. */
struct rs_conn_data {
	uint8_t version;
	uint8_t flags;
	uint16_t credits;
	uint8_t reserved[3];
	uint8_t iomap_size;
	struct rs_sge targets; /* where the list of targets is */
	struct rs_sge data;    /* the first half of the buffer */
};

enum rs_state {
	RS_NEW,
	RS_BOUND,
	RS_LISTENING,
	RS_RESOLVING_ADDR,
	RS_RESOLVING_ROUTE,
	RS_CONNECTING,
	RS_CONNECTED,
	RS_DISCONNECTED,
	RS_FAILED,
};

/* Memory of the program that its peer may write to. */
struct rs_region {
	struct rs_region *next;
	struct ibv_mr *mr;
	off_t offset;
	int index;    /* in the peer's list; INT_MAX: in none */
	bool pending; /* the peer is to hear of it, or, without memory, that there is nothing */
};

/* What a socket that is accepted has from its listener. */
struct rs_options {
	int sq_size, rq_size, inline_size, snd_size, rcv_size, iomap_size;
	int keep_idle, keep_count, keep_interval;
	int64_t snd_timeout, rcv_timeout; /* ms; 0: for ever */
	struct linger linger;
	bool nodelay, reuse, keepalive, oob_inline, v6only;
};

struct ds;

struct rs {
	int fd;
	int refs; /* under the table's lock */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool polling; /* a thread waits for the descriptors */

	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *comp;
	struct ibv_cq *cq;
	enum rs_state state;
	bool readable, writable; /* neither side has shut it down */
	int error;
	int flags;	      /* O_NONBLOCK */
	unsigned int tries;   /* calls that found nothing to do */
	unsigned int changes; /* completions and events that there have been */

	struct rs_options opt;
	struct ds *ds; /* a datagram socket's, which has nothing of what follows */

	/* Sending. */
	uint8_t *sbuf;
	struct ibv_mr *smr;
	int shead, sfree; /* where the next byte goes; bytes that are free */
	int sqe;	  /* work requests that may be posted */
	int ctrl;	  /* control messages under way */
	uint16_t sseq, sseq_max;
	struct rs_sge *targets; /* the peer writes to it */
	struct rs_iomap *iomaps;
	struct ibv_mr *tmr;
	struct rs_sge to[RS_TARGETS]; /* what it wrote, as of when it said so, less what was sent */
	int target, to_next;	      /* in use; the one that it writes next */

	/* Receiving. */
	uint8_t *rbuf;
	struct ibv_mr *rmr;
	int rhead;	    /* where the next byte is */
	int rtold, rbytes;  /* the half that the peer hears of next; bytes free to tell of */
	int rgiven;	    /* bytes that the peer may still write */
	bool swap;	    /* its byte order is the other one */
	struct rs_sge peer; /* its list of targets */
	int peer_next;
	struct rs_sge peer_iomaps;
	uint16_t rseq, rseq_told;
	uint32_t *messages; /* lengths that have come */
	int mhead, mtail, msize;

	struct rs_region *regions;
};

static inline int rs_fail(int error)
{
	errno = error;
	return -1;
}

/* The calls have one shape: with the socket's lock, and an errno to return. */
#define RS_WITH_SOCKET(fd, expression)                                                             \
	struct rs *s = rs_get(fd);                                                                 \
	if (!s)                                                                                    \
		return -1;                                                                         \
	pthread_mutex_lock(&s->lock);                                                              \
	int error = (expression);                                                                  \
	pthread_mutex_unlock(&s->lock);                                                            \
	rs_put(s);                                                                                 \
	return cm_result(error)

static inline bool rs_connecting(const struct rs *s)
{
	return s->state >= RS_RESOLVING_ADDR && s->state <= RS_CONNECTING;
}

static inline bool rs_would_block(const struct rs *s, int flags)
{
	return s->flags & O_NONBLOCK || flags & MSG_DONTWAIT;
}

static inline int rs_take_error(struct rs *s)
{
	int error = s->error;
	s->error = 0;
	return error;
}

/* rsocket.c */
struct rs *rs_get(int fd);
void rs_put(struct rs *s);
int rs_enlist(struct rs *s);
struct rs *rs_new(const struct rs *like);

/* rs_default.c, rs_option.c */
#define RS_MIN_QUEUE  4
#define RS_MAX_QUEUE  8192
#define RS_MIN_BUFFER 8192
#define RS_MAX_BUFFER (1 << 28)
#define RS_MAX_INLINE 512
#define RS_MAX_IOMAPS 0x7f00
int rs_round_buffer(int bytes);
int rs_round_iomaps(int n);
const struct rs_options *rs_default_options(void);
int rs_default_poll(void);
int rs_default_wake_up(void);

/* rs_conn.c: all with the lock; 0 or an errno */
int rs_start(struct rs *s, const struct sockaddr *addr);
void rs_advance(struct rs *s);
int rs_accept_one(struct rs *s, struct rs **out);
void rs_release(struct rs *s);

/* rs_data.c: all with the lock */
void rs_init_peer(struct rs *s, const struct rs_conn_data *d);
void rs_describe(struct rs *s, struct rs_conn_data *d);
int rs_post_recv(struct rs *s, int n);
void rs_process(struct rs *s);
bool rs_can_send(const struct rs *s);
bool rs_can_recv(const struct rs *s);
int rs_wait(struct rs *s, int timeout);
int64_t rs_now(void);
void rs_arm(struct rs *s);
void rs_take_events(struct rs *s);
int rs_descriptors(const struct rs *s, struct pollfd out[2]);
int rs_write(struct rs *s, const void *buf, int len, enum rs_op op, uint64_t addr, uint32_t key);
void rs_send_ctrl(struct rs *s, enum rs_ctrl what);

#endif
