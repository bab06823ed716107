/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of librdmacm share. The connection manager runs in the daemon: an identifier here
 * has a handle there. Queue pairs are created and modified through libibverbs.
 *
 * Lock order: the devices, the opening of a session, the table of identifiers, an identifier, the
 * session. fork takes those of the table and of the session, so a thread that holds one of these or
 * an identifier's waits for nothing. A child initializes the others, and opens its own session and
 * devices.
 *
 * Functions return 0 or an errno unless noted otherwise.
 */
#ifndef SOFTROCE_RDMACM_H
#define SOFTROCE_RDMACM_H

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/conn.h"
#include "core/export.h"

/* An open NIC. It stays open until the process ends, even if its daemon is gone. */
struct cm_device {
	struct cm_device *next;
	bool gone; /* its daemon */
	struct ibv_context *verbs;
	char name[SOFTROCE_NAME_SIZE];
	struct ibv_pd *pd; /* the default one, while identifiers use the device */
	int users;
	struct ibv_xrcd *xrcd;
	uint8_t max_responder_resources;
	uint8_t max_initiator_depth;
};

struct cm_channel {
	struct rdma_event_channel channel; /* first */
	uint32_t handle;
	unsigned int generation; /* of its session */
	atomic_int users;	 /* the program, and threads that wait for events */
	atomic_int destroyed;
	pthread_mutex_t lock;	 /* of dropped_events */
	uint32_t dropped_events; /* see sr_drop_events */
};

/* A membership in a multicast group. */
struct cm_group {
	struct cm_group *next;
	void *context;
	uint64_t cookie;
	bool send_only;
	bool attached;
	union ibv_gid gid;
	uint16_t lid;
	struct sockaddr_storage addr;
};

struct cm_id {
	struct rdma_cm_id id; /* first */
	struct cm_id *next;   /* in its bucket of the table */
	uint32_t handle;
	unsigned int generation; /* of its session */
	struct cm_device *device;
	bool sync; /* it was created without a channel: calls wait for their completion */
	bool connect_error;
	bool removed; /* the removal of its device was reported; under lock */
	uint8_t responder_resources, initiator_depth;
	struct ibv_ece local_ece, remote_ece;
	struct ibv_qp_init_attr *listen_attr; /* a listener's: for the queue pairs of requests */
	void *connect_data;
	size_t connect_len;
	struct ibv_sa_path_rec path;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	uint32_t events_reported, events_completed; /* under lock */
	struct cm_group *groups;		    /* under lock */
};

/* An event that was reported to the program. */
struct cm_event {
	struct rdma_cm_event event; /* first */
	uint8_t private_data[SOFTROCE_CM_MAX_PRIVATE_DATA];
	struct cm_id
		*counted; /* the identifier whose events_completed an acknowledgement increments */
};

/* Sets errno and returns -1 unless error is 0. */
static inline int cm_result(int error)
{
	if (!error)
		return 0;
	errno = error;
	return -1;
}

static inline struct cm_id *cm_id(struct rdma_cm_id *id)
{
	return (struct cm_id *)id;
}

static inline bool cm_is_ud(const struct rdma_cm_id *id)
{
	return id->qp_type == IBV_QPT_UD;
}

/*
 * session.c. A generation identifies a session; it changes when the daemon restarts and in a forked
 * child. Commands of an earlier generation fail with ENODEV.
 */
int cm_session(unsigned int *generation);

/* Tells whether a session was the parent's, in a forked child. Generations begin with 1. */
bool cm_inherited(unsigned int generation);
int cm_command(unsigned int generation, uint16_t op, const void *body, size_t len, void *reply,
	       size_t reply_len);
int cm_command_handle(unsigned int generation, uint16_t op, uint32_t handle);
int cm_command_fd(unsigned int generation, uint16_t op, void *reply, size_t reply_len, int *fd);
void cm_close_fd(unsigned int generation, int fd);

/* The connection of a generation, or NULL if it is an earlier one. */
struct sr_conn *cm_connection(unsigned int generation);

/*
 * channel.c. cm_put_channel drops a reference; the last one frees the channel. The others are those
 * of the socket: sr_drop_events and sr_byte_used.
 */
void cm_put_channel(struct cm_channel *ch);
void cm_drop_events(struct cm_channel *ch, uint32_t n);
void cm_byte_used(struct cm_channel *ch, bool found);

/* device.c */
int cm_use_device(struct cm_id *id, const char *name);
void cm_release_device(struct cm_id *id);

/* The device's default XRC domain; NULL with errno. */
struct ibv_xrcd *cm_xrcd(struct cm_device *d);

/* id.c. The cm_find functions count an event as reported. */
struct cm_id *cm_find(uint32_t handle, unsigned int generation);

/* Finds an identifier of a channel that has a device and was not notified of its removal. */
struct cm_id *cm_find_unnotified(const struct rdma_event_channel *channel);

/* Creates an identifier without a handle; NULL with errno. */
struct cm_id *cm_new_id(struct rdma_event_channel *channel, void *context, enum rdma_port_space ps,
			enum ibv_qp_type type);

/* Sets the handle, and adds the identifier to the table. */
void cm_add_id(struct cm_id *id, uint32_t handle, unsigned int generation);

/* Updates an identifier from the daemon's description. */
int cm_update_id(struct cm_id *id, const struct softroce_cm_identifier *info);

/* rdma_create_id with a queue pair type. It sets errno and returns -1 on failure. */
int cm_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
		 enum rdma_port_space ps, enum ibv_qp_type type);
void cm_count_completed(struct cm_id *id);

/* Acknowledges the event in id->id.event. */
void cm_ack_held_event(struct cm_id *id);

/* address.c */
int cm_addr_to_abi(const struct sockaddr *addr, struct softroce_cm_addr *out);
void cm_addr_from_abi(const struct softroce_cm_addr *a, struct sockaddr_storage *out);

/* The length of an address; 0 if its family is neither IPv4 nor IPv6. */
size_t cm_addr_len(const struct sockaddr *addr);

/*
 * qp.c. RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH leave the number to the connection manager.
 */
int cm_modify_rtr(struct rdma_cm_id *id, uint8_t responder_resources);
int cm_modify_rts(struct rdma_cm_id *id, uint8_t initiator_depth);
void cm_modify_err(struct rdma_cm_id *id);

/* group.c: attaches the queue pair to the group of a multicast event. */
void cm_attach_group(struct cm_id *id, struct rdma_cm_event *event, uint64_t cookie);
struct cm_group *cm_take_group(struct cm_id *id, const struct sockaddr *addr, uint64_t cookie);

/*
 * sync.c: waits for the completion of a call, if the identifier was created without a channel. It
 * sets errno and returns -1 on failure.
 */
int cm_complete(struct cm_id *id);

#endif
