// SPDX-License-Identifier: Apache-2.0
#include "core/conn.h"
#include "core/cancel.h"
#include "core/find.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_ERRNO 4095 /* the largest errno of the kernel */

/* A call that waits for its reply, on its caller's stack. */
struct sr_call {
	struct sr_call *next;
	const struct sr_request *request;
	uint64_t tag;
	bool done;
	int error;
};

void sr_warn(const char *format, ...)
{
	if (!getenv("IBV_SHOW_WARNINGS"))
		return;
	va_list args;
	char text[512];
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	fprintf(stderr, "libibverbs: softroce: %s\n", text);
}

static void close_all(const int *fds, int n)
{
	for (int i = 0; i < n; i++)
		close(fds[i]);
}

static int connect_to(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof addr.sun_path)
		return -ENAMETOOLONG;
	strcpy(addr.sun_path, path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	int rc;
	do {
		rc = connect(fd, (struct sockaddr *)&addr, sizeof addr);
	} while (rc && errno == EINTR);
	if (rc) {
		int error = errno;
		close(fd);
		sr_warn("no daemon on %s: %s", path, strerror(error));
		return -error;
	}
	return fd;
}

/* Connects to the daemon that $SOFTROCE_SOCKET names, or else to the first that admits this user.
 */
static int open_socket(void)
{
	const char *named = getenv("SOFTROCE_SOCKET");
	if (named && *named)
		return connect_to(named);
	sr_socket_path list[SR_MAX_SOCKETS];
	int n = sr_sockets(list), error = 0;
	for (int i = 0; i < n; i++) {
		int fd = connect_to(list[i]);
		if (fd >= 0)
			return fd;
		if (fd != -ENOENT && fd != -ECONNREFUSED && fd != -EACCES)
			return fd;
		if (!error || fd == -EACCES)
			error = fd;
	}
	return error;
}

/* The daemon shows clients by the name of their program. */
static void program_name(uint8_t *name, size_t size)
{
	const char *s = program_invocation_short_name;
	size_t n = strnlen(s, size - 1);
	memcpy(name, s, n);
}

/* Device and inode number identify the socket, see sr_conn_stolen. */
static void remember_socket(struct sr_conn *c)
{
	struct stat st;
	if (fstat(c->fd, &st))
		return;
	c->dev = st.st_dev;
	c->ino = st.st_ino;
}

/*
 * If a system call filter of the program forbids fstat, the descriptor is assumed to be
 * unchanged.
 */
static bool owns_socket(const struct sr_conn *c)
{
	struct stat st;
	if (c->fd < 0)
		return false;
	if (fstat(c->fd, &st))
		return errno != EBADF;
	return !c->ino || (st.st_dev == c->dev && st.st_ino == c->ino);
}

bool sr_conn_stolen(struct sr_conn *c)
{
	int saved = errno;
	if (c->fd >= 0 && !atomic_load(&c->stolen) && !owns_socket(c)) {
		atomic_store(&c->stolen, 1);
		atomic_store(&c->gone, 1);
	}
	errno = saved;
	return atomic_load(&c->stolen);
}

void sr_make_blocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	if (flags >= 0)
		fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

void sr_close_fd(struct sr_conn *c, int fd)
{
	int state = sr_defer_cancel();
	if (fd >= 0 && !sr_conn_stolen(c))
		close(fd);
	sr_restore_cancel(state);
}

void sr_drop_events(struct sr_conn *c, int fd, uint32_t *dropped, uint32_t n)
{
	char trash[512];
	ssize_t got = 1;
	*dropped += n;
	if (!*dropped || c->forked || sr_conn_stolen(c))
		return;
	int state = sr_defer_cancel();
	for (; *dropped && got > 0; *dropped -= got > 0 ? (uint32_t)got : 0)
		got = recv(fd, trash, *dropped < sizeof trash ? *dropped : sizeof trash,
			   MSG_DONTWAIT);
	sr_restore_cancel(state);
}

/* A thread that finds an event while bytes are missing leaves the byte of another event behind. */
void sr_byte_used(struct sr_conn *c, int fd, uint32_t *dropped, bool found)
{
	if (found)
		sr_drop_events(c, fd, dropped, 0);
	else if (*dropped)
		--*dropped;
}

static int connect_daemon(struct sr_conn *c)
{
	memset(c, 0, sizeof *c);
	c->join_fd = -1;
	c->fd = open_socket();
	if (c->fd < 0)
		return -c->fd;
	remember_socket(c);
	c->buf = malloc(SOFTROCE_MAX_MESSAGE);
	if (!c->buf) {
		close(c->fd);
		return ENOMEM;
	}
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->cond, NULL);

	struct softroce_hello_request hello = {0};
	struct softroce_hello_reply daemon;
	program_name(hello.comm, sizeof hello.comm);
	struct sr_request r = {
		.op = SOFTROCE_OP_HELLO,
		.body = &hello,
		.len = sizeof hello,
		.reply = &daemon,
		.reply_len = sizeof daemon,
	};
	int error = sr_conn_call(c, &r);
	if (error)
		sr_disconnect(c);
	return error;
}

int sr_connect(struct sr_conn *c)
{
	int state = sr_defer_cancel();
	int error = connect_daemon(c);
	sr_restore_cancel(state);
	return error;
}

static void drop_child(struct sr_conn *c)
{
	if (c->child)
		sr_disconnect(c->child);
	free(c->child);
	c->child = NULL;
}

void sr_disconnect(struct sr_conn *c)
{
	atomic_store(&c->gone, 1);
	sr_close_fd(c, c->fd);
	c->fd = -1;
	free(c->buf);
	c->buf = NULL;
	drop_child(c);
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->cond);
}

void sr_conn_forked(struct sr_conn *c)
{
	atomic_store(&c->gone, 1);
	sr_close_fd(c, c->fd);
	c->fd = -1;
	c->waiting = NULL;
	c->reading = false;
	c->forked = true;
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->cond, NULL);
	if (c->child)
		sr_conn_forked(c->child);
	drop_child(c);
}

static int send_request(struct sr_conn *c, const struct sr_request *r, uint64_t tag)
{
	struct softroce_header h = {
		.version = SOFTROCE_VERSION,
		.op = r->op,
		.length = sizeof h + r->len + r->tail_len,
		.tag = tag,
		.fds = r->nfds,
	};
	struct iovec iov[3] = {
		{&h, sizeof h}, {(void *)r->body, r->len}, {(void *)r->tail, r->tail_len}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 3};
	union {
		char buf[CMSG_SPACE(SOFTROCE_MAX_FDS * sizeof(int))];
		struct cmsghdr align;
	} control;
	if (r->nfds > 0) {
		memset(&control, 0, sizeof control);
		msg.msg_control = control.buf;
		msg.msg_controllen = CMSG_SPACE(r->nfds * sizeof(int));
		struct cmsghdr *m = CMSG_FIRSTHDR(&msg);
		m->cmsg_level = SOL_SOCKET;
		m->cmsg_type = SCM_RIGHTS;
		m->cmsg_len = CMSG_LEN(r->nfds * sizeof(int));
		memcpy(CMSG_DATA(m), r->fds, r->nfds * sizeof(int));
	}
	ssize_t n;
	do {
		n = sendmsg(c->fd, &msg, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n >= 0)
		return 0;
	return errno == EPIPE || errno == ECONNRESET ? EIO : errno;
}

/* Collects the descriptors of a message, at most SOFTROCE_MAX_FDS. Returns their number. */
static int collect_fds(struct msghdr *msg, int *fds)
{
	int n = 0;
	for (struct cmsghdr *m = CMSG_FIRSTHDR(msg); m; m = CMSG_NXTHDR(msg, m)) {
		if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_RIGHTS)
			continue;
		int count = (m->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (int i = 0; i < count; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(m) + i * sizeof fd, sizeof fd);
			if (n < SOFTROCE_MAX_FDS)
				fds[n++] = fd;
			else
				close(fd);
		}
	}
	return n;
}

/* Receives one message into c->buf. Returns its length, or 0 after the last message. */
static size_t receive(struct sr_conn *c, int *fds, int *nfds)
{
	union {
		char buf[CMSG_SPACE(SOFTROCE_MAX_FDS * sizeof(int))];
		struct cmsghdr align;
	} control;
	for (int resets = 0;;) {
		struct iovec iov = {c->buf, SOFTROCE_MAX_MESSAGE};
		struct msghdr msg = {
			.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = control.buf,
			.msg_controllen = sizeof control.buf,
		};
		ssize_t n = recvmsg(c->fd, &msg, MSG_CMSG_CLOEXEC);
		if (n < 0 && errno == EINTR)
			continue;
		/*
		 * The kernel reports ECONNRESET before the daemon's last messages if requests were
		 * left unread.
		 */
		if (n < 0 && errno == ECONNRESET && !resets++)
			continue;
		if (n <= 0)
			return 0;
		*nfds = collect_fds(&msg, fds);
		struct softroce_header *h = (struct softroce_header *)c->buf;
		if ((size_t)n >= sizeof *h && h->length == (size_t)n &&
		    !(msg.msg_flags & MSG_TRUNC))
			return n;
		close_all(fds, *nfds);
	}
}

/* Hands a reply to the call with its tag. The caller holds the lock. */
static void deliver(struct sr_conn *c, size_t n, int *fds, int nfds)
{
	const struct softroce_header *h = (const struct softroce_header *)c->buf;
	const uint8_t *body = c->buf + sizeof *h;
	size_t len = n - sizeof *h;
	if (h->error)
		sr_warn("%s%.*s",
			h->op == SOFTROCE_OP_GOODBYE ? "the daemon closes the connection: " : "",
			(int)len, body);
	struct sr_call **p = &c->waiting;
	while (*p && (*p)->tag != h->tag)
		p = &(*p)->next;
	struct sr_call *call = *p;
	if (!call || !h->tag) {
		close_all(fds, nfds);
		return;
	}
	*p = call->next;
	call->done = true;
	const struct sr_request *r = call->request;
	call->error = h->error <= MAX_ERRNO ? (int)h->error : EPROTO;
	if (!call->error && h->version != SOFTROCE_VERSION)
		call->error = EPROTONOSUPPORT;
	if (!call->error && len < r->reply_len)
		call->error = EPROTO;
	if (!call->error && r->whole_reply) {
		*r->whole_reply = malloc(len ? len : 1);
		*r->whole_reply_len = len;
		if (!*r->whole_reply)
			call->error = ENOMEM;
		else
			memcpy(*r->whole_reply, body, len);
	}
	if (call->error) {
		close_all(fds, nfds);
		return;
	}
	if (r->reply_len)
		memcpy(r->reply, body, r->reply_len);
	if (nfds != r->reply_nfds) {
		/* The caller gets the reply too, so that it can destroy the object. */
		close_all(fds, nfds);
		call->error = EMFILE;
		return;
	}
	if (nfds)
		memcpy(r->reply_fds, fds, nfds * sizeof *fds);
}

/* Fails all outstanding calls: there will be no more replies. The caller holds the lock. */
static void fail_all(struct sr_conn *c)
{
	atomic_store(&c->gone, 1);
	for (struct sr_call *w = c->waiting; w; w = w->next) {
		w->done = true;
		w->error = EIO;
	}
	c->waiting = NULL;
}

/*
 * Reads one message on behalf of all waiting threads. The caller holds the lock, which is
 * released during the read.
 */
static void read_one(struct sr_conn *c)
{
	int fds[SOFTROCE_MAX_FDS], nfds = 0;
	c->reading = true;
	pthread_mutex_unlock(&c->lock);
	size_t n = receive(c, fds, &nfds);
	pthread_mutex_lock(&c->lock);
	c->reading = false;
	if (n)
		deliver(c, n, fds, nfds);
	else
		fail_all(c);
	pthread_cond_broadcast(&c->cond);
}

/*
 * Sends a request and waits for the reply. When it returns, call is on no list. The caller holds
 * the lock.
 */
static int perform(struct sr_conn *c, struct sr_call *call)
{
	if (sr_gone(c) || sr_conn_stolen(c))
		return EIO;
	call->tag = ++c->tag;
	int error = send_request(c, call->request, call->tag);
	if (error) {
		if (error == EIO)
			fail_all(c);
		return error;
	}
	call->next = c->waiting;
	c->waiting = call;
	while (!call->done) {
		if (c->reading)
			pthread_cond_wait(&c->cond, &c->lock);
		else
			read_one(c);
	}
	return call->error;
}

int sr_conn_call(struct sr_conn *c, const struct sr_request *r)
{
	struct sr_call call = {.request = r};
	int state = sr_defer_cancel();
	pthread_mutex_lock(&c->lock);
	int error = perform(c, &call);
	pthread_mutex_unlock(&c->lock);
	sr_restore_cancel(state);
	return error;
}

bool sr_alive(struct sr_conn *c)
{
	if (sr_gone(c) || sr_conn_stolen(c))
		return false;
	struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
	int state = sr_defer_cancel();
	if (poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))
		atomic_store(&c->gone, 1);
	sr_restore_cancel(state);
	return !sr_gone(c);
}
