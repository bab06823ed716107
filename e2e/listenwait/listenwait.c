/*
 * Preloaded into both ends of a program that listens for its peer several times, one after the
 * other: a client that comes back before its server listens again is refused.
 *
 *     E2E_TURNS=PORT            at the server
 *     E2E_TURNS=PORT,ADDRESS    at the client, with an IPv4 address of the server's host
 *
 * A server that has called rdma_listen() for the n-th time listens at TCP port PORT+n too, until
 * it ends. A client that is about to resolve its server's address for the n-th connection first
 * waits for that; there are TURNS of them, and whatever the client does later belongs to the last.
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
	TURNS = 2,	  /* of perftest's -R: to agree on parameters, and for the data */
	PAUSE_US = 10000, /* between two looks at the server */
};

/* turn returns the address of the n-th turn; no port: there are none. */
static struct sockaddr_in turn(int n)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
	const char *value = getenv("E2E_TURNS");
	if (value) {
		char *end;
		at.sin_port = htons((in_port_t)(strtoul(value, &end, 10) + (unsigned long)n));
		if (*end == ',' && inet_pton(AF_INET, end + 1, &at.sin_addr) != 1) {
			fprintf(stderr, "turns: no address: %s\n", value);
			exit(1);
		}
	}
	return at;
}

static int tcp(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		perror("turns: socket");
		exit(1);
	}
	return fd;
}

/* announce has the server's client go on. The socket is left open: it ends with
 * the process. */
static void announce(int n)
{
	struct sockaddr_in at = turn(n);
	if (!at.sin_port)
		return;
	int fd = tcp(), on = 1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 1)) {
		perror("turns: listen");
		exit(1);
	}
}

static void await(int n)
{
	struct sockaddr_in at = turn(n);
	if (!at.sin_port)
		return;
	for (int there = 0; !there;) {
		int fd = tcp();
		there = connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0;
		close(fd);
		if (!there)
			usleep(PAUSE_US);
	}
}

int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	static int turns;
	int (*listen_on)(struct rdma_cm_id *, int) = dlsym(RTLD_NEXT, "rdma_listen");
	int err = listen_on(id, backlog);
	if (!err)
		announce(++turns);
	return err;
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int ms)
{
	static struct rdma_cm_id *last;
	static int turns;
	int (*resolve)(struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int) =
		dlsym(RTLD_NEXT, "rdma_resolve_addr");
	/* The same identifier once more: its address was not found. */
	if (turns < TURNS && id != last)
		await(++turns);
	last = id;
	return resolve(id, src, dst, ms);
}
