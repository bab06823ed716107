/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of librdmacm share. The connection manager is the daemon's: an identifier here is
 * a handle there, and queue pairs are made, and taken through their states, by libibverbs.
 *
 * Locks, in the order in which they are taken: the table's, an identifier's, the session's, the
 * devices'.
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

/* A NIC that is open, for as long as the process lives, although its daemon may have gone. */
struct cm_device {
	struct cm_device *next;
	bool gone;
	struct ibv_context *verbs;
	char name[SOFTROCE_NAME_SIZE];
	struct ibv_pd *pd; /* the default one, while identifiers use the device */
	int users;
	struct ibv_xrcd *xrcd;
	uint8_t max_responder_resources;
	uint8_t max_initiator_depth;
};

struct cm_channel {
	struct rdma_event_channel channel;
	uint32_t handle;
	unsigned int generation; /* of the session that it belongs to */
	atomic_int users;	 /* the program, and threads that wait for events */
	atomic_int destroyed;
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
	struct rdma_cm_id id;
	struct cm_id *next; /* in its bucket of the table */
	uint32_t handle;
	unsigned int generation;
	struct cm_device *device;
	bool sync; /* the channel is its own, and calls wait for their outcome */
	bool connect_error;
	bool removed; /* the program has heard, or hears, that its device is gone; under lock */
	uint8_t responder_resources, initiator_depth;
	struct ibv_ece local_ece, remote_ece;
	struct ibv_qp_init_attr *listen_attr; /* of the queue pairs of what a listener accepts */
	void *connect_data;
	size_t connect_len;
	struct ibv_sa_path_rec path;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	uint32_t reported, completed; /* events, under lock */
	struct cm_group *groups;      /* under lock */
};

/* An event that a program has. */
struct cm_event {
	struct rdma_cm_event event;
	uint8_t private_data[SOFTROCE_CM_MAX_PRIVATE_DATA];
	struct cm_id *counted; /* whose event it is, to acknowledge */
};

/* Sets errno and returns -1; with 0 it returns 0. */
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

/* rdmacm_session.c: all return 0 or an errno, and ask for nothing of a session of the past */
int cm_session(unsigned int *generation);
int cm_command(unsigned int generation, uint16_t op, const void *body, size_t len, void *reply,
	       size_t reply_len);
int cm_command_handle(unsigned int generation, uint16_t op, uint32_t handle);
int cm_command_fd(unsigned int generation, uint16_t op, void *reply, size_t reply_len, int *fd);

void cm_put_channel(struct cm_channel *ch);

/* rdmacm_device.c */
int cm_use_device(struct cm_id *id, const char *name);
void cm_leave_device(struct cm_id *id);
struct ibv_xrcd *cm_xrcd(struct cm_device *d);

/* rdmacm_id.c */
struct cm_id *cm_find(uint32_t handle, unsigned int generation);
struct cm_id *cm_find_orphan(const struct rdma_event_channel *channel);
void cm_ids_forked(void);
struct cm_id *cm_new_id(struct rdma_event_channel *channel, void *context, enum rdma_port_space ps,
			enum ibv_qp_type type);
void cm_enlist(struct cm_id *id, uint32_t handle, unsigned int generation);
int cm_learn(struct cm_id *id, const struct softroce_cm_identifier *info);
int cm_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
		 enum rdma_port_space ps, enum ibv_qp_type type);

/* rdmacm_address.c */
int cm_addr_to_abi(const struct sockaddr *addr, struct softroce_cm_addr *out);
void cm_addr_from_abi(const struct softroce_cm_addr *a, struct sockaddr_storage *out);
size_t cm_addr_len(const struct sockaddr *addr);

/* rdmacm_qp.c */
int cm_modify_rtr(struct rdma_cm_id *id, uint8_t responder_resources);
int cm_modify_rts(struct rdma_cm_id *id, uint8_t initiator_depth);
void cm_modify_err(struct rdma_cm_id *id);

/* rdmacm_event.c */
int cm_complete(struct cm_id *id);
void cm_forget_event(struct cm_id *id);

/* rdmacm_multicast.c */
void cm_joined(struct cm_id *id, struct rdma_cm_event *event, uint64_t cookie);
void cm_leave_all(struct cm_id *id);

#endif
