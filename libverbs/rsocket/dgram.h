/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagram sockets over RDMA, in the protocol of rdma-core's rsockets. (Interoperability cannot be
 * tested: rdma-core creates an address handle without a GRH, which RoCE devices reject.)
 *
 * A datagram is sent from one UD queue pair to another, after a header that names the sending
 * socket. At first only the IP address and port of a peer are known. If the local address is one of
 * the kernel's, datagrams go through a UDP socket until the peer has replied there with the number
 * of its queue pair. NICs whose addresses the kernel does not have (those on a fabric) send a
 * SIDR_REQ to the connection manager of the peer's NIC, to which the peer's socket replies.
 *
 * There are no threads: messages are handled within the calls of the program.
 */
#ifndef SOFTROCE_RS_DGRAM_H
#define SOFTROCE_RS_DGRAM_H

#include <netinet/in.h>

#include "rsocket/rs.h"

#define DS_TAG		   0x55555555 /* the first word of each message through UDP */
#define DS_MAX_MTU	   4096	      /* the largest MTU of IBTA */
#define DS_GRH		   40
#define DS_MAX_PEERS	   1024 /* known to a socket; the least recently used one is removed */
#define DS_RESOLVE_TIMEOUT 5000 /* ms until the number of a peer's queue pair must be known */
#define DS_MAX_UDP_MSGS	   64	/* datagrams that arrived through UDP and were not read */

/* The header of a message through UDP. Numbers are big-endian. */
struct ds_udp_header {
	uint32_t tag;
	uint8_t version; /* of IP: 4 or 6 */
	uint8_t op;	 /* RS_OP_DATA, or RS_OP_CTRL without data */
	uint8_t length;	 /* of the header */
	uint8_t reserved;
	uint32_t qpn;	  /* the sender's */
	uint8_t addr[16]; /* the destination; 4 bytes if version is 4 */
};

/* The header of a message between queue pairs: the sender's port and address. */
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
struct ds_sidr_data {
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

/* A received datagram, in a receive buffer of a queue pair or in buf. */
struct ds_msg {
	struct ds_msg *next;
	struct ds_qp *qp; /* NULL: received through UDP */
	const uint8_t *data;
	uint32_t len;
	union ds_addr from;
	uint8_t buf[];
};

/* The queue pair of a local address. */
struct ds_qp {
	struct ds_qp *next;
	struct rdma_cm_id *id;
	union ds_addr local; /* port 0 */
	struct ibv_comp_channel *comp;
	struct ibv_cq *cq;
	struct ibv_mr *rmr, *smr;
	uint8_t *rbuf, *sbuf;
	struct ds_msg *msgs; /* one for each receive buffer */
	int *free_sends;     /* indices of free send buffers */
	int free_count, sends, receives;
	uint32_t mtu;	    /* bytes of a send buffer */
	uint32_t recv_size; /* bytes of a receive buffer */
	struct ds_header header;
};

/* A destination of datagrams. */
struct ds_peer {
	struct ds_peer *next; /* less recently used */
	union ds_addr addr;
	struct ds_qp *qp;      /* the local one */
	bool udp;	       /* reachable through UDP */
	uint32_t qpn;	       /* 0: unknown */
	struct ibv_ah *ah;     /* NULL: the path is unknown */
	struct rdma_cm_id *id; /* during the resolution */
	int64_t deadline;      /* of the resolution */
	bool resolved;	       /* the resolution has ended, in success or failure */
	int error;
};

struct ds {
	int udp, domain;
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener;
	union ds_addr local; /* as bound; the address may be unspecified */
	bool kernel_addr;    /* the address is one of the kernel's, or unspecified */
	struct ds_qp *qps;
	struct ds_peer *peers;
	struct ds_peer *conn_dest; /* of a connected socket */
	struct ds_msg *first, **last;
	int udp_msgs;
};

/* dgram.c: the socket calls. They return 0 or an errno; ds_send and ds_recv set errno. */
int ds_create(struct rs *s, int domain);
int ds_bind(struct rs *s, const struct sockaddr *addr);
int ds_connect(struct rs *s, const struct sockaddr *addr);
int ds_name(struct rs *s, bool peer, union ds_addr *out);
ssize_t ds_send(struct rs *s, const struct msghdr *msg, int flags);
ssize_t ds_recv(struct rs *s, struct msghdr *msg, int flags);
bool ds_can_send(struct rs *s);
bool ds_can_recv(struct rs *s);

/* Waits until the datagrams in the send queues are sent. */
void ds_drain(struct rs *s);
extern const struct rs_ops ds_ops;

/* dgram_qp.c */

/* Returns the queue pair of an address, created if necessary; NULL with errno. */
struct ds_qp *ds_get_qp(struct rs *s, const union ds_addr *local);

/* Handles completions. True: there were some. */
bool ds_poll_qp(struct rs *s, struct ds_qp *qp);
void ds_post_recv(struct ds_qp *qp, struct ds_msg *m);

/* Sends to a peer whose queue pair and path are known. 0 or an errno; EAGAIN: no free buffer. */
int ds_post_send(struct ds_peer *p, const struct iovec *v, size_t count);
void ds_destroy_qp(struct ds_qp *qp);
void ds_add_msg(struct ds *d, struct ds_msg *m);

/* dgram_peer.c */

/* Returns a peer, created if necessary, and starts its resolution. 0 or an errno. */
int ds_get_peer(struct rs *s, const union ds_addr *addr, struct ds_peer **out);
void ds_remove_peer(struct ds *d, struct ds_peer *p);

/* Handles received messages, up to DS_MAX_UDP_MSGS; others stay in the kernel's buffer. */
void ds_read_udp(struct rs *s);
ssize_t ds_send_udp(struct ds *d, struct ds_peer *p, const void *data, size_t len);
void ds_process_cm_events(struct rs *s);

/* dgram_addr.c */
bool ds_addr_from(union ds_addr *out, const struct sockaddr *addr, socklen_t len);
socklen_t ds_addr_len(const union ds_addr *a);
void *ds_addr_bytes(union ds_addr *a, size_t *len);
uint16_t *ds_addr_port(union ds_addr *a);
bool ds_addr_any(const union ds_addr *a);

/* Compares addresses, and their ports if port is true. */
bool ds_addr_equal(const union ds_addr *a, const union ds_addr *b, bool port);

#endif
