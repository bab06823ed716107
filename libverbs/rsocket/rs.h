/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets over RDMA, compatible with rdma-core's rsockets on the wire.
 *
 * Stream sockets: the receive buffer of each side has two halves. A side offers its peer a free
 * half by writing the half's address into the peer's target SGL, whose two entries are used in
 * turn. The peer writes data there with RDMA WRITE; the immediate data is the number of bytes.
 * Immediate data also grants credits: the number of messages that the peer may send. Each message
 * consumes a receive, which has no memory of its own.
 *
 * A socket has one lock, which its calls hold also while they ask the daemon, but not while they
 * wait. Of several threads that wait on a socket, one polls its descriptors, and the others wait
 * for that thread. A thread can be cancelled while it waits. The lock of the table is taken after
 * those of sockets.
 *
 * fork takes the lock of the table. In a child, a socket whose lock is free is whole, and can be
 * closed; all else fails. If another thread of the parent was using it, the child has no such
 * socket.
 */
#ifndef SOFTROCE_RS_H
#define SOFTROCE_RS_H

#include <fcntl.h>
#include <poll.h>
#include <rdma/rsocket.h>

#include "rdmacm/rdmacm.h"

/* The kind of a message: the three highest bits of its immediate data. */
enum rs_op {
	RS_OP_DATA = 0,
	RS_OP_WRITE = 2, /* not a message: an RDMA WRITE of riowrite */
	RS_OP_SGL = 4,	 /* the other bits: sequence number up to which the peer may send */
	RS_OP_IOMAP = 6,
	RS_OP_CTRL = 7,
};

enum rs_ctrl {
	RS_CTRL_DISCONNECT,
	RS_CTRL_KEEPALIVE,
	RS_CTRL_SHUTDOWN,
};

#define RS_SGL_SIZE	2 /* entries of the local target SGL */
#define RS_MAX_CTRL_MSG 4 /* outstanding control messages, in addition to data */
#define RS_CONN_VERSION 1
#define RS_FLAG_NET	1 /* the sender is big-endian */
#define RS_FLAG_IOMAP	2

/* A message is no larger, so that the peer can start reading a long transfer early. */
#define RS_MAX_MESSAGE (1 << 16)

/* Non-blocking calls without effect after which events of the connection manager are handled. */
#define RS_CM_CHECK_CALLS 64

#define RS_MAX_SGL_SIZE 1024 /* largest accepted target SGL of a peer */

struct rs_sge {
	uint64_t addr;
	uint32_t key;
	uint32_t length;
};

struct rs_iomap {
	uint64_t offset;
	struct rs_sge sge;
};

/* The private data of a connection request and its reply. Numbers are big-endian. */
struct rs_conn_data {
	uint8_t version;
	uint8_t flags;
	uint16_t credits;
	uint8_t reserved[3];
	uint8_t iomap_size;
	struct rs_sge target_sgl; /* address of the sender's target SGL */
	struct rs_sge data_buf;	  /* the first half of its receive buffer */
};

enum rs_state {
	RS_NEW,
	RS_BOUND,
	RS_LISTENING,
	RS_RESOLVING_ADDR,
	RS_RESOLVING_ROUTE,
	RS_CONNECTING,
	RS_ACCEPTING, /* accepted; the peer may not have received the reply yet */
	RS_CONNECTED,
	RS_DISCONNECTED,
	RS_FAILED,
};

/* Memory mapped with riomap. */
struct rs_region {
	struct rs_region *next;
	struct ibv_mr *mr; /* NULL: unmapped */
	off_t offset;
	int index;    /* of its entry in the peer's list; INT_MAX: it has none */
	bool pending; /* the entry has to be sent to the peer */
};

/* Options that an accepted socket inherits from its listener. */
struct rs_options {
	int sq_size, rq_size, inline_size, snd_size, rcv_size, iomap_size;
	int keep_idle, keep_count, keep_interval;
	int64_t snd_timeout, rcv_timeout; /* ms; 0: none */
	struct linger linger;
	bool nodelay, reuse, keepalive, oob_inline, v6only;
};

struct ds;
struct rs;

/* What differs between stream and datagram sockets. All are called with the socket's lock. */
struct rs_ops {
	void (*process_cm_events)(struct rs *s);
	void (*process_cq)(struct rs *s);
	void (*arm_cq)(struct rs *s);	      /* requests an event for the next completion */
	void (*take_cq_events)(struct rs *s); /* and acknowledges them */
	void (*release)(struct rs *s);	      /* frees everything except struct rs */
};

struct rs {
	int fd;
	int refs; /* under the table's lock */
	const struct rs_ops *ops;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool polling; /* a thread polls the descriptors */

	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *comp;
	struct ibv_cq *cq;
	enum rs_state state;
	bool readable, writable; /* not shut down by either side */
	int error;
	int flags;		  /* O_NONBLOCK */
	unsigned int empty_calls; /* non-blocking calls that found nothing to do */
	unsigned int event_count; /* completions and events so far */

	struct rs_options opt;
	struct ds *ds; /* of a datagram socket, which does not use the members below */

	/* Sending. */
	uint8_t *sbuf;
	struct ibv_mr *smr;
	int sbuf_pos; /* where the next byte is written */
	int sbuf_bytes_avail;
	int sqe_avail;			   /* work requests that may be posted */
	int ctrl_outstanding;		   /* control messages */
	uint16_t sseq_no;		   /* of the next message */
	uint16_t sseq_comp;		   /* the peer's credits end here */
	struct rs_sge *target_sgl;	   /* written by the peer */
	struct rs_iomap *target_iomap;	   /* likewise */
	struct ibv_mr *target_mr;	   /* of both */
	struct rs_sge target[RS_SGL_SIZE]; /* copies of target_sgl, less what was sent */
	int target_index;		   /* the one in use */
	int target_next;		   /* the one that the peer writes next */

	/* Receiving. */
	uint8_t *rbuf;
	struct ibv_mr *rmr;
	int rbuf_pos;		  /* where the next byte is read */
	int rbuf_free_pos;	  /* the half that is offered next */
	int rbuf_bytes_free;	  /* bytes that are not offered yet */
	int rbuf_granted;	  /* bytes that the peer may still write */
	bool swap;		  /* the peer has the other byte order */
	struct rs_sge remote_sgl; /* the peer's target SGL */
	int remote_next;	  /* the entry to write next */
	struct rs_sge remote_iomap;
	uint16_t rseq_no;   /* messages that were consumed */
	uint16_t rseq_comp; /* credits are granted when rseq_no reaches it */
	uint32_t *rmsg;	    /* a ring of the lengths of received messages */
	int rmsg_head, rmsg_tail, rmsg_size;

	struct rs_region *regions;
};

static inline int rs_fail(int error)
{
	errno = error;
	return -1;
}

/* The body of a call: evaluates expression, an errno, with the socket's lock held. */
#define RS_WITH_SOCKET(fd, expression)                                                             \
	struct rs *s = rs_enter(fd);                                                               \
	if (!s)                                                                                    \
		return -1;                                                                         \
	int error = (expression);                                                                  \
	rs_leave(s);                                                                               \
	return cm_result(error)

static inline bool rs_connecting(const struct rs *s)
{
	return s->state >= RS_RESOLVING_ADDR && s->state <= RS_CONNECTING;
}

/* The queue pair of the socket can send, although the peer's may not receive yet. */
static inline bool rs_open(const struct rs *s)
{
	return s->state == RS_ACCEPTING || s->state == RS_CONNECTED;
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

static inline void rs_process_cm_events(struct rs *s)
{
	s->ops->process_cm_events(s);
}

static inline void rs_process_cq(struct rs *s)
{
	s->ops->process_cq(s);
}

/* socket.c: the table of sockets by descriptor, and waiting. */
struct rs *rs_get(int fd);
void rs_put(struct rs *s);

/*
 * rs_lock locks a socket and defers cancellation until rs_leave, except in rs_wait. rs_leave also
 * drops a reference. rs_enter is rs_get, then rs_lock. They keep errno.
 */
struct rs *rs_enter(int fd);
void rs_lock(struct rs *s);
void rs_leave(struct rs *s);

/* Adds a socket under s->fd. 0 or an errno. */
int rs_add(struct rs *s);

/* Removes a socket that the caller has a reference to. False: another thread has done so. */
bool rs_remove(struct rs *s, int fd);

/* Creates a socket with the options of a listener, or, if it is NULL, with the defaults. */
struct rs *rs_new(const struct rs_ops *ops, const struct rs *listener);

/* The time in ms, and the time after a timeout; INT64_MAX if it is 0. */
int64_t rs_now(void);
int64_t rs_deadline(int64_t timeout);

/*
 * Waits until something may have changed, for timeout ms or, if it is -1, without limit. 0,
 * ETIMEDOUT or EINTR.
 */
int rs_wait(struct rs *s, int timeout);

/* Fills in the descriptors to poll for a change. Returns their number. */
int rs_descriptors(const struct rs *s, struct pollfd out[2]);

/* defaults.c */
#define RS_MIN_QUEUE  4
#define RS_MAX_QUEUE  8192
#define RS_MIN_BUFFER 8192
#define RS_MAX_BUFFER (1 << 28)
#define RS_MAX_INLINE 512
#define RS_MAX_IOMAPS 0x7f00
int rs_clamp(int v, int min, int max);

/* Rounds to whole pages in each half. */
int rs_round_buffer(int bytes);

/* Rounds to a number that struct rs_conn_data can represent in 8 bits. */
int rs_round_iomaps(int n);
const struct rs_options *rs_default_options(void);

/* For how many µs a waiting call polls for completions before it blocks. */
int rs_default_poll(void);

/*
 * Another thread that uses a socket may take the event that rpoll waits for. So rpoll checks its
 * sockets again after so many ms, which costs time only in that case.
 */
int rs_default_wake_up(void);

/* stream_conn.c: all with the lock. */
extern const struct rs_ops rs_stream_ops;

/* Starts connecting. 0 or an errno. */
int rs_start_connect(struct rs *s, const struct sockaddr *addr);

/* Accepts a connection request. 0 or an errno; EAGAIN: there is none. */
int rs_accept_request(struct rs *s, struct rs **out);

/* stream_data.c: all with the lock. */
void rs_save_conn_data(struct rs *s, const struct rs_conn_data *d);
void rs_format_conn_data(struct rs *s, struct rs_conn_data *d);
int rs_post_recv(struct rs *s, int n);
void rs_process_stream_cq(struct rs *s);
bool rs_can_send(const struct rs *s);
bool rs_can_recv(const struct rs *s);

/* Writes up to len bytes to the peer, through the send buffer or inline. Returns how many. */
int rs_write(struct rs *s, const void *buf, int len, enum rs_op op, uint64_t addr, uint32_t key);
void rs_send_ctrl(struct rs *s, enum rs_ctrl what);

#endif
