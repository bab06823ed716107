// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon destroys a queue pair and ends before its reply arrives. By then it may have given the
 * memory of the rings to another queue, so a thread that polls finds no work requests there.
 *
 * The argument is the name of a file that exists when the daemon has destroyed the queue pair,
 * whose reply does not arrive. Then the program closes the descriptor of the connection: its calls
 * find the daemon gone, except the one that waits.
 */
#include "setup.h"

#include <pthread.h>
#include <sys/socket.h>

static void *destroy(void *qp)
{
	ibv_destroy_qp(qp);
	return NULL;
}

/* Connections are the sockets of type SOCK_SEQPACKET. */
static void close_connections(void)
{
	for (int fd = 3; fd < 64; fd++) {
		int type;
		socklen_t n = sizeof type;
		if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) && type == SOCK_SEQPACKET)
			close(fd);
	}
}

int main(int argc, char **argv)
{
	struct setup s;
	struct ibv_wc wc;
	struct ibv_recv_wr recv = {.wr_id = 1}, *bad;
	pthread_t thread;
	int polled, outstanding = 0;
	REQUIRE(argc == 2);
	limit_time(50);
	setup_open(&s);
	struct ibv_qp *going = loopback_qp(&s), *staying = loopback_qp(&s);
	REQUIRE(!ibv_post_recv(going, &recv, &bad));
	REQUIRE(!ibv_post_recv(staying, &recv, &bad));
	REQUIRE(!pthread_create(&thread, NULL, destroy, going));
	while (access(argv[1], F_OK))
		usleep(1000);
	close_connections();
	while ((polled = ibv_poll_cq(s.cq, 1, &wc)) >= 0)
		if (polled) {
			CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == staying->qp_num);
			outstanding++;
		}
	CHECK(outstanding == 1);
	_exit(failures != 0);
}
