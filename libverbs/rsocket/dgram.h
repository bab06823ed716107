/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagram sockets over RDMA, as rdma-core's rsockets have them on the wire (where they cannot be
 * tried: rdma-core makes an address vector without a GRH for its own use, which no RoCE device
 * takes).
 *
 * A datagram goes from one UD queue pair to another, behind a header that says which socket it is
 * from. Of a peer only its IP address and port are known at first. Where the system has our address
 * datagrams to it go through a UDP socket until it has answered there with the number of its queue
 * pair. NICs whose addresses the system does not have (those of a fabric) ask the connection
 * manager of the peer's NIC instead (SIDR_REQ), and its socket answers.
 *
 * There is no thread: what comes is looked at in the calls of the program.
 */
#ifndef SOFTROCE_RS_DGRAM_H
#define SOFTROCE_RS_DGRAM_H

#include <netinet/in.h>

#include "rsocket/rs.h"

#define DS_TAG	     0x55555555 /* begins each message through UDP */
#define DS_GRH	     40
#define DS_MAX_PEERS 1024 /* that a socket knows of; who was heard of longest ago goes first */
#define DS_PATIENCE  5000 /* ms that a peer has to say what its queue pair is */
#define DS_MAX_UDP   64	  /* datagrams that came through UDP and were not read */

/* Begins a message through UDP. Numbers are big-endian. */
struct ds_udp_header {
	uint32_t tag;
	uint8_t version; /* of IP: 4 or 6 */
	uint8_t op;	 /* RS_OP_DATA, or RS_OP_CTRL: nothing but the header */
	uint8_t length;	 /* of this header */
	uint8_t reserved;
	uint32_t qpn;	/* the sender's */
	uint8_t to[16]; /* the address that it is sent to; 4 bytes in version 4 */
};

/* Begins a message between queue pairs: the sender's port and address. */
struct ds_header {
	uint8_t version;
	uint8_t length;
	uint16_t port;
	union {
		uint8_t ipv4[4];
		struct {
			uint8_t flow[4];
			uint8_t addr[16];
		} ipv6;
	};
};

/* The private data of a SIDR_REQ from one socket to another. */
struct ds_call {
	uint32_t tag;
	uint32_t qpn; /* as in ds_udp_header */
	uint16_t port;
	uint16_t reserved;
};

union ds_addr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

/* A datagram that has come: in a receive buffer of a queue pair, or behind this. */
struct ds_msg {
	struct ds_msg *next;
	struct ds_qp *qp; /* NULL: it came through UDP */
	const uint8_t *data;
	uint32_t len;
	union ds_addr from;
	uint8_t own[];
};

/* The queue pair of one of our addresses. */
struct ds_qp {
	struct ds_qp *next;
	struct rdma_cm_id *id;
	union ds_addr local; /* without the port */
	struct ibv_comp_channel *comp;
	struct ibv_cq *cq;
	struct ibv_mr *rmr, *smr;
	uint8_t *rbuf, *sbuf;
	struct ds_msg *msgs; /* one for each receive buffer */
	int *idle;	     /* the send buffers that are free */
	int idle_count, sends, receives;
	uint32_t mtu, slot; /* bytes of a message, and of a receive buffer */
	struct ds_header header;
};

/* Someone whom datagrams go to. */
struct ds_peer {
	struct ds_peer *next; /* heard of longer ago */
	union ds_addr addr;
	struct ds_qp *qp;      /* ours, for it */
	bool udp;	       /* it is reached through UDP */
	uint32_t qpn;	       /* 0: not known */
	struct ibv_ah *ah;     /* NULL: the way is not known */
	struct rdma_cm_id *id; /* while that is being asked */
	int64_t patience;      /* until when, in the ms of rs_now */
	bool settled;	       /* it was asked, whatever came of it */
	int error;
};

struct ds {
	int udp, domain;
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener;
	union ds_addr local; /* what was bound; the address may be unspecified */
	bool routed;	     /* the system has the address, or there is none yet */
	struct ds_qp *qps;
	struct ds_peer *peers, *to; /* connected to */
	struct ds_msg *first, **last;
	int udp_count;
};

/* rs_dgram.c */
int ds_create(struct rs *s, int domain);
int ds_bind(struct rs *s, const struct sockaddr *addr);
int ds_connect(struct rs *s, const struct sockaddr *addr);
int ds_name(struct rs *s, bool peer, union ds_addr *out);
ssize_t ds_send(struct rs *s, const struct msghdr *msg, int flags);
ssize_t ds_recv(struct rs *s, struct msghdr *msg, int flags);
bool ds_can_send(struct rs *s);
bool ds_can_recv(struct rs *s);
void ds_close(struct rs *s);
void ds_process(struct rs *s);
void ds_advance(struct rs *s);
void ds_arm(struct rs *s);
void ds_take_events(struct rs *s);
void ds_release(struct rs *s);

/* rs_dgram_qp.c */
struct ds_qp *ds_find_qp(struct rs *s, const union ds_addr *local);
bool ds_poll(struct rs *s, struct ds_qp *qp);
void ds_post_recv(struct ds_qp *qp, struct ds_msg *m);
int ds_post_send(struct ds_peer *p, const struct iovec *v, size_t count);
void ds_destroy_qp(struct ds_qp *qp);
void ds_queue(struct ds *d, struct ds_msg *m);

/* rs_dgram_peer.c */
struct ds_peer *ds_find_peer(struct ds *d, const union ds_addr *addr);
int ds_meet(struct rs *s, const union ds_addr *addr, struct ds_peer **out);
void ds_forget(struct ds *d, struct ds_peer *p);
void ds_read_udp(struct rs *s);
ssize_t ds_send_udp(struct ds *d, struct ds_peer *p, const void *data, size_t len);
void ds_events(struct rs *s);

/* Addresses, in rs_dgram_peer.c */
bool ds_addr_from(union ds_addr *out, const struct sockaddr *addr, socklen_t len);
socklen_t ds_addr_len(const union ds_addr *a);
void *ds_addr_bytes(union ds_addr *a, size_t *len);
uint16_t *ds_addr_port(union ds_addr *a);
bool ds_addr_any(const union ds_addr *a);
bool ds_same(const union ds_addr *a, const union ds_addr *b, bool port);

#endif
