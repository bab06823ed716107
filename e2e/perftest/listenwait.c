/*
 * listenwait - makes the client of a program wait until its server listens.
 *
 * Preloaded into both ends of a program whose server listens several times in a row. Without it a
 * client that connects before the server listens again is rejected.
 *
 *     E2E_LISTENWAIT=PORT            at the server
 *     E2E_LISTENWAIT=PORT,ADDRESS    at the client, with an IPv4 address of the server's host
 *
 * After its n-th rdma_listen() the server also listens on TCP port PORT+n until it ends. Before the
 * client resolves the server's address for its n-th connection, it waits until that port is open.
 * There are CONNECTIONS of them; later connections do not wait.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct rdma_cm_id;

enum {
	CONNECTIONS = 2,  /* of perftest -R: one for its parameters, one for the data */
	PAUSE_US = 10000, /* between two connection attempts */
};

/* Returns the TCP address for the n-th connection; its port is 0 if the variable is not set. */
static struct sockaddr_in address_of(int n)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
	const char *value = getenv("E2E_LISTENWAIT");
	if (value) {
		char *end;
		at.sin_port = htons((in_port_t)(strtoul(value, &end, 10) + (unsigned long)n));
		if (*end == ',' && inet_pton(AF_INET, end + 1, &at.sin_addr) != 1) {
			fprintf(stderr, "listenwait: not an IPv4 address: %s\n", value);
			exit(1);
		}
	}
	return at;
}

static int tcp_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		perror("listenwait: socket");
		exit(1);
	}
	return fd;
}

/* Lets the client connect for the n-th time. The socket stays open until the process ends. */
static void open_port(int n)
{
	struct sockaddr_in at = address_of(n);
	if (!at.sin_port)
		return;
	int fd = tcp_socket(), on = 1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 1)) {
		perror("listenwait: listen");
		exit(1);
	}
}

/* Waits until the server listens for the n-th time. */
static void await_port(int n)
{
	struct sockaddr_in at = address_of(n);
	if (!at.sin_port)
		return;
	for (int connected = 0; !connected;) {
		int fd = tcp_socket();
		connected = connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0;
		close(fd);
		if (!connected)
			usleep(PAUSE_US);
	}
}

int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	static int listened;
	int (*listen_on)(struct rdma_cm_id *, int) = dlsym(RTLD_NEXT, "rdma_listen");
	int err = listen_on(id, backlog);
	if (!err)
		open_port(++listened);
	return err;
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int ms)
{
	static struct rdma_cm_id *last;
	static int connections;
	int (*resolve)(struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int) =
		dlsym(RTLD_NEXT, "rdma_resolve_addr");
	/* The same identifier again means that resolving its address failed. */
	if (connections < CONNECTIONS && id != last)
		await_port(++connections);
	last = id;
	return resolve(id, src, dst, ms);
}
