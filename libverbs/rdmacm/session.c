// SPDX-License-Identifier: Apache-2.0
/*
 * The process's connection to the daemon's connection manager, and event channels.
 */
#include "rdmacm/rdmacm.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t session_lock = PTHREAD_MUTEX_INITIALIZER;
static struct session {
	struct sr_conn conn; /* first */
	unsigned int generation;
	struct session *before; /* those of the past stay: others may be in the middle of a call */
} * session;
static unsigned int current; /* generation: counts sessions */

static void before_fork(void)
{
	pthread_mutex_lock(&session_lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&session_lock);
}

/* The connection is the parent's. A child that wants one makes its own. */
static void after_fork_child(void)
{
	if (session)
		sr_conn_forked(&session->conn);
	session = NULL;
	current++;
	pthread_mutex_init(&session_lock, NULL);
	cm_ids_forked();
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static int open_session(void)
{
	struct session *s = calloc(1, sizeof *s);
	if (!s)
		return ENOMEM;
	struct sr_conn *c = &s->conn;
	int error = sr_connect(c);
	if (error) {
		free(s);
		/* What the library says where the kernel's module is not loaded. */
		return error == ENOENT || error == ECONNREFUSED ? ENODEV : error;
	}
	struct softroce_cm_open_request ask = {0};
	const char *device = getenv("SOFTROCE_DEVICE"); /* the first of them */
	size_t len = device ? strcspn(device, ",") : 0;
	if (device && len < sizeof ask.device)
		memcpy(ask.device, device, len);
	error = sr_command(c, SOFTROCE_OP_CM_OPEN, &ask, sizeof ask, NULL, 0);
	if (error) {
		sr_disconnect(c);
		free(s);
		return error;
	}
	s->before = session;
	s->generation = ++current;
	session = s;
	return 0;
}

int cm_session(unsigned int *generation)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&session_lock);
	int error = 0;
	if (!session || !sr_alive(&session->conn))
		error = open_session();
	*generation = current;
	pthread_mutex_unlock(&session_lock);
	return error;
}

/* The connection of a generation, NULL where it is one of the past. */
static struct sr_conn *connection(unsigned int generation)
{
	pthread_mutex_lock(&session_lock);
	struct sr_conn *c = generation == current && session ? &session->conn : NULL;
	pthread_mutex_unlock(&session_lock);
	return c;
}

int cm_command(unsigned int generation, uint16_t op, const void *body, size_t len, void *reply,
	       size_t reply_len)
{
	struct sr_conn *c = connection(generation);
	return c ? sr_command(c, op, body, len, reply, reply_len) : ENODEV;
}

int cm_command_handle(unsigned int generation, uint16_t op, uint32_t handle)
{
	struct sr_conn *c = connection(generation);
	return c ? sr_command_handle(c, op, handle) : ENODEV;
}

int cm_command_fd(unsigned int generation, uint16_t op, void *reply, size_t reply_len, int *fd)
{
	struct sr_conn *c = connection(generation);
	return c ? sr_command_fd(c, op, NULL, 0, reply, reply_len, fd) : ENODEV;
}

SR_PUBLIC struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct cm_channel *ch = calloc(1, sizeof *ch);
	if (!ch) {
		errno = ENOMEM;
		return NULL;
	}
	struct softroce_handle_reply reply = {0};
	int error = cm_session(&ch->generation);
	if (!error)
		error = cm_command_fd(ch->generation, SOFTROCE_OP_CM_CREATE_CHANNEL, &reply,
				      sizeof reply, &ch->channel.fd);
	if (error) {
		if (reply.handle) /* there was no room for its descriptor */
			cm_command_handle(ch->generation, SOFTROCE_OP_CM_DESTROY_CHANNEL,
					  reply.handle);
		free(ch);
		errno = error;
		return NULL;
	}
	ch->handle = reply.handle;
	atomic_store(&ch->users, 1);
	sr_make_blocking(ch->channel.fd);
	return &ch->channel;
}

/* A child closes its copy of what its parent had. */
static void close_channel(const struct cm_channel *ch)
{
	pthread_mutex_lock(&session_lock);
	struct session *s = session;
	while (s && s->generation != ch->generation)
		s = s->before;
	pthread_mutex_unlock(&session_lock);
	if (s)
		sr_close_fd(&s->conn, ch->channel.fd);
	else
		close(ch->channel.fd);
}

/* Lets go of a channel. The last one frees it. */
void cm_put_channel(struct cm_channel *ch)
{
	if (atomic_fetch_sub(&ch->users, 1) == 1)
		free(ch);
}

SR_PUBLIC void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	struct cm_channel *ch = (struct cm_channel *)channel;
	atomic_store(&ch->destroyed, 1);
	cm_command_handle(ch->generation, SOFTROCE_OP_CM_DESTROY_CHANNEL, ch->handle);
	close_channel(ch);
	cm_put_channel(ch);
}
