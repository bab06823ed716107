/*
 * program - the verbs program of a scenario, on the host of the NIC under test.
 *
 * It reads lines and replies to each with one line: "ok" and values, or "error" and a reason.
 * ../README.md describes the lines. It exits at the end of its input.
 *
 * usage: program [-d DEVICE] [-g GID-INDEX]
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

#define MAX_WORDS 64

struct object *objects;
struct ibv_context *ctx;
struct ibv_comp_channel *channel;
int gid_index = -1;
int num_words;
static const char *device;
static char *word[MAX_WORDS];

void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("error ");
	vprintf(format, args);
	printf("\n");
	va_end(args);
}

void fail_errno(const char *what)
{
	fail("%s: %s", what, strerror(errno));
}

uint64_t number(int i)
{
	return i < num_words ? strtoull(word[i], NULL, 0) : 0;
}

const char *text(int i)
{
	return i < num_words ? word[i] : "-";
}

/* find_gid returns the first RoCE v2 GID of the peer's address family. */
static int find_gid(const char *peer, union ibv_gid *gid)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	int want4 = !strchr(peer, ':');

	for (int i = gid_index < 0 ? 0 : gid_index; !ibv_query_gid(ctx, 1, i, gid); i++) {
		int is4 = !memcmp(gid->raw, mapped, sizeof(mapped));
		int local = gid->raw[0] == 0xfe && gid->raw[1] == 0x80;
		struct ibv_gid_entry e;

		if (gid_index >= 0 ||
		    ((want4 ? is4 : !is4 && !local && gid->raw[0]) &&
		     !ibv_query_gid_ex(ctx, 1, i, &e, 0) && e.gid_type == IBV_GID_TYPE_ROCE_V2)) {
			gid_index = i;
			return 0;
		}
		if (i > 1000)
			break;
	}
	return -1;
}

/* hello PEER: returns the NIC's address for the peer. */
static void do_hello(void)
{
	struct ibv_device **list;
	union ibv_gid gid;
	char address[INET6_ADDRSTRLEN];
	int n = 0;

	list = ctx ? NULL : ibv_get_device_list(&n);
	for (int i = 0; i < n && !ctx; i++)
		if (!device || !strcmp(ibv_get_device_name(list[i]), device))
			ctx = ibv_open_device(list[i]);
	if (!ctx) {
		fail("no RDMA device%s%s", device ? " " : "", device ? device : "");
		return;
	}
	fcntl(ctx->async_fd, F_SETFL, fcntl(ctx->async_fd, F_GETFL) | O_NONBLOCK);
	if (!channel) {
		channel = ibv_create_comp_channel(ctx);
		if (!channel) {
			fail_errno("ibv_create_comp_channel");
			return;
		}
		fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	}
	if (find_gid(text(1), &gid)) {
		fail("the device has no address of the address family of %s", text(1));
		return;
	}
	printf("ok %s %d\n", inet_ntop(AF_INET6, gid.raw, address, sizeof(address)), gid_index);
}

/* gid VERSION: returns the GID of a version of RoCE with the address that hello returned. */
static void do_gid(void)
{
	uint32_t type = number(1); /* IBV_GID_TYPE_ROCE_V1 is 1, IBV_GID_TYPE_ROCE_V2 is 2 */
	struct ibv_port_attr port;
	struct ibv_gid_entry ours, e;

	if (!ctx || ibv_query_port(ctx, 1, &port) ||
	    ibv_query_gid_ex(ctx, 1, gid_index, &ours, 0)) {
		fail("no GID is in use");
		return;
	}
	for (int i = 0; i < port.gid_tbl_len; i++) {
		if (!ibv_query_gid_ex(ctx, 1, i, &e, 0) && e.gid_type == type &&
		    e.ndev_ifindex == ours.ndev_ifindex &&
		    !memcmp(e.gid.raw, ours.gid.raw, sizeof(e.gid.raw))) {
			printf("ok %d\n", i);
			return;
		}
	}
	fail("the device has no GID of RoCE v%u for the address at index %d", type, gid_index);
}

/*
 * now: returns the monotonic time in nanoseconds. The reply shows that the host is making
 * progress, and so is the device, which is queried twice: packets that arrived before the first
 * query are processed before the second.
 */
static void do_now(void)
{
	struct ibv_port_attr a;
	struct timespec t;

	for (int i = 0; i < 2; i++)
		ibv_query_port(ctx, 1, &a);
	clock_gettime(CLOCK_MONOTONIC, &t);
	printf("ok %lld\n", t.tv_sec * 1000000000LL + t.tv_nsec);
}

static const struct command {
	const char *name;
	void (*execute)(void);
} commands[] = {
	{"hello", do_hello},	 {"mr", do_mr},		{"dereg", do_dereg},   {"read", do_read},
	{"write", do_write},	 {"cq", do_cq},		{"srq", do_srq},       {"qp", do_qp},
	{"destroy", do_destroy}, {"modify", do_modify}, {"state", do_state},   {"send", do_send},
	{"recv", do_recv},	 {"poll", do_poll},	{"event", do_event},   {"now", do_now},
	{"arm", do_arm},	 {"notice", do_notice}, {"xrcd", do_xrcd},     {"query", do_query},
	{"resize", do_resize},	 {"limit", do_limit},	{"mw", do_mw},	       {"free", do_free},
	{"bind", do_bind},	 {"attach", do_attach}, {"detach", do_detach}, {"reset", do_reset},
	{"gid", do_gid},
};

static void execute(char *line)
{
	num_words = 0;
	for (char *w = strtok(line, " \n"); w && num_words < MAX_WORDS; w = strtok(NULL, " \n"))
		word[num_words++] = w;
	if (!num_words) {
		fail("empty line");
		return;
	}
	if (!ctx && strcmp(word[0], "hello")) {
		fail("the first command must be hello");
		return;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (!strcmp(word[0], commands[i].name)) {
			commands[i].execute();
			return;
		}
	}
	fail("unknown command %s", word[0]);
}

int main(int argc, char **argv)
{
	char *line = NULL;
	size_t room = 0;
	int c;

	while ((c = getopt(argc, argv, "d:g:")) != -1) {
		if (c == 'd') {
			device = optarg;
		} else if (c == 'g') {
			gid_index = atoi(optarg);
		} else {
			fprintf(stderr, "usage: program [-d DEVICE] [-g GID-INDEX]\n");
			return 2;
		}
	}
	while (getline(&line, &room, stdin) > 0) {
		execute(line);
		fflush(stdout);
	}
	return 0;
}
