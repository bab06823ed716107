// SPDX-License-Identifier: Apache-2.0
/*
 * The process's connection to the connection manager.
 */
#include "rdmacm/rdmacm.h"

#include "core/at_fork.h"
#include "core/cancel.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t opening_lock = PTHREAD_MUTEX_INITIALIZER; /* of the thread that opens one */
static pthread_mutex_t session_lock = PTHREAD_MUTEX_INITIALIZER;
static struct session {
	struct sr_conn conn; /* first */
	unsigned int generation;
	struct session *prev; /* an earlier session, in which a thread may still be in a call */
} * session;
static unsigned int current_generation;	  /* the generation of the last session */
static unsigned int inherited_generation; /* in a child, of its parent's last session */

static void before_fork(void)
{
	pthread_mutex_lock(&session_lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&session_lock);
}

/* The connection is the parent's. A child opens its own when it needs one. */
static void after_fork_child(void)
{
	if (session)
		sr_conn_forked(&session->conn);
	session = NULL;
	inherited_generation = current_generation++;
	pthread_mutex_init(&opening_lock, NULL);
	pthread_mutex_unlock(&session_lock);
}

SR_AT_FORK(before_fork, after_fork_parent, after_fork_child)

/* The caller holds the opening lock only: fork does not wait for the daemon. */
static int open_session(void)
{
	struct session *s = calloc(1, sizeof *s);
	if (!s)
		return ENOMEM;
	struct sr_conn *c = &s->conn;
	int error = sr_connect(c);
	if (error) {
		free(s);
		/* As librdmacm reports a kernel module that is not loaded. */
		return error == ENOENT || error == ECONNREFUSED ? ENODEV : error;
	}
	struct softroce_cm_open_request req = {0};
	const char *device = getenv("SOFTROCE_DEVICE"); /* its first entry counts */
	size_t len = device ? strcspn(device, ",") : 0;
	if (device && len < sizeof req.device)
		memcpy(req.device, device, len);
	error = sr_command(c, SOFTROCE_OP_CM_OPEN, &req, sizeof req, NULL, 0);
	if (error) {
		sr_disconnect(c);
		free(s);
		return error;
	}
	pthread_mutex_lock(&session_lock);
	s->prev = session;
	s->generation = ++current_generation;
	session = s;
	pthread_mutex_unlock(&session_lock);
	return 0;
}

int cm_session(unsigned int *generation)
{
	pthread_mutex_lock(&opening_lock);
	pthread_mutex_lock(&session_lock);
	bool alive = session && sr_alive(&session->conn);
	pthread_mutex_unlock(&session_lock);
	int error = alive ? 0 : open_session();
	pthread_mutex_lock(&session_lock);
	*generation = current_generation;
	pthread_mutex_unlock(&session_lock);
	pthread_mutex_unlock(&opening_lock);
	return error;
}

bool cm_inherited(unsigned int generation)
{
	pthread_mutex_lock(&session_lock);
	bool inherited = generation <= inherited_generation;
	pthread_mutex_unlock(&session_lock);
	return inherited;
}

struct sr_conn *cm_connection(unsigned int generation)
{
	pthread_mutex_lock(&session_lock);
	struct sr_conn *c = generation == current_generation && session ? &session->conn : NULL;
	pthread_mutex_unlock(&session_lock);
	return c;
}

int cm_command(unsigned int generation, uint16_t op, const void *body, size_t len, void *reply,
	       size_t reply_len)
{
	struct sr_conn *c = cm_connection(generation);
	return c ? sr_command(c, op, body, len, reply, reply_len) : ENODEV;
}

int cm_command_handle(unsigned int generation, uint16_t op, uint32_t handle)
{
	struct sr_conn *c = cm_connection(generation);
	return c ? sr_command_handle(c, op, handle) : ENODEV;
}

int cm_command_fd(unsigned int generation, uint16_t op, void *reply, size_t reply_len, int *fd)
{
	struct sr_conn *c = cm_connection(generation);
	return c ? sr_command_fd(c, op, NULL, 0, reply, reply_len, fd) : ENODEV;
}

/* In a child, the descriptors of earlier sessions are copies of the parent's. */
void cm_close_fd(unsigned int generation, int fd)
{
	pthread_mutex_lock(&session_lock);
	struct session *s = session;
	while (s && s->generation != generation)
		s = s->prev;
	pthread_mutex_unlock(&session_lock);
	int state = sr_defer_cancel();
	if (s)
		sr_close_fd(&s->conn, fd);
	else
		close(fd);
	sr_restore_cancel(state);
}
