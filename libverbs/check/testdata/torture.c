// SPDX-License-Identifier: Apache-2.0
/*
 * torture SECONDS SEED lives|dies COMMAND...: everything at once, in rounds. Threads post, poll,
 * wait for events, create and destroy objects, connect and transfer, while others fork children
 * that use what they inherited, execute programs, and cancel threads; and the daemon may die at any
 * moment. What is checked: no call fails that has no reason to, each work request completes once,
 * all objects can be closed, nothing hangs, and whatever the sanitizer finds. "dies" says that the
 * daemon does; COMMAND is how to execute this program again.
 */
#include "torture.h"

#include "torture_net.h"
#include "torture_verbs.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#define HANG 40 /* s; longer than the connection manager tries */

/* A sanitizer's allocator may be locked by another thread, for which a child would wait. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define ONLY_EXEC 1
#else
#define ONLY_EXEC 0
#endif

static uint64_t seed;
static char **command;

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A child that was executed: of its parent's descriptors only the standard ones are open. */
static int executed(void)
{
	DIR *d = opendir("/proc/self/fd");
	REQUIRE(d);
	for (struct dirent *e; (e = readdir(d));) {
		int fd = atoi(e->d_name);
		if (e->d_name[0] == '.' || fd <= 2 || fd == dirfd(d))
			continue;
		fprintf(stderr, "descriptor %d survived exec\n", fd);
		failures++;
	}
	closedir(d);
	return failures != 0;
}

/* A child uses what it inherited, closes some of it, and opens the device for itself. */
static int forked(void)
{
	struct ibv_port_attr port;
	struct ibv_wc wc;
	struct ibv_sge sge;
	struct ibv_send_wr wr = write_wr(&sge, 1), *bad;
	limit_time(HANG);
	OK(!ibv_query_port(s.context, 1, &port));
	RETURNS(EIO, ibv_post_send(qps[0], &wr, &bad));
	CHECK(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc) <= 0);
	if (below(2)) {
		for (int i = 0; i < QPS; i++)
			RETURNS(0, ibv_destroy_qp(qps[i]));
		RETURNS(0, ibv_dereg_mr(s.mr));
	}
	if (below(2))
		churn_device();
	return failures != 0;
}

static void *child_worker(void *arg)
{
	(void)arg;
	while (!stop) {
		bool exec = ONLY_EXEC || !below(4);
		int status;
		pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (!pid) {
			if (exec)
				execvp(command[0], command);
			_exit(exec ? 3 : forked());
		}
		REQUIRE(waitpid(pid, &status, 0) == pid);
		if (status) {
			fprintf(stderr, "%s child: status %#x\n", exec ? "executed" : "forked",
				status);
			abort();
		}
		count(CHILDREN);
		usleep(below(5000));
	}
	return NULL;
}

static void *blocked_in_completion(void *arg)
{
	struct ibv_cq *got;
	void *context;
	if (!ibv_get_cq_event(arg, &got, &context))
		ibv_ack_cq_events(got, 1);
	return NULL;
}

static void *blocked_in_accept(void *arg)
{
	int fd = raccept(*(int *)arg, NULL, NULL);
	if (fd >= 0)
		rclose(fd);
	return NULL;
}

static void *busy(void *arg)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = write_wr(&sge, UNCOUNTED), *bad;
	struct ibv_qp *qp = arg;
	for (;;) {
		ibv_post_send(qp, &wr, &bad);
		churn_memory();
		pthread_testcancel();
	}
	return NULL;
}

static void cancel_in(void *(*function)(void *), void *arg)
{
	pthread_t t;
	REQUIRE(!pthread_create(&t, NULL, function, arg));
	usleep(below(2000));
	REQUIRE(!pthread_cancel(t) && !pthread_join(t, NULL));
	count(CANCELLED);
}

/* Cancels threads, then uses and closes what they used. */
static void *cancel_worker(void *arg)
{
	(void)arg;
	while (!stop) {
		struct sockaddr_in any = nic_addr("192.0.2.2", 0);
		struct ibv_comp_channel *channel = ibv_create_comp_channel(s.context);
		if (!OK(channel != NULL))
			return NULL;
		struct ibv_cq *q = ibv_create_cq(s.context, 4096, NULL, channel, 0);
		if (OK(q != NULL)) {
			struct ibv_qp_init_attr init = rc_attr(&s);
			init.send_cq = init.recv_cq = q;
			cancel_in(blocked_in_completion, channel);
			struct ibv_qp *qp = ibv_create_qp(s.pd, &init);
			if (OK(qp != NULL)) {
				if (churn_connect(qp))
					cancel_in(busy, qp);
				MUST(ibv_destroy_qp(qp));
			}
			MUST(ibv_destroy_cq(q));
		}
		MUST(ibv_destroy_comp_channel(channel));
		int fd = rsocket(AF_INET, SOCK_STREAM, 0);
		if (!OK(fd >= 0))
			return NULL;
		if (OK(!rbind(fd, (struct sockaddr *)&any, sizeof any)) && OK(!rlisten(fd, 1)))
			cancel_in(blocked_in_accept, &fd);
		MUST(rclose(fd));
	}
	return NULL;
}

static void *(*const workers[])(void *) = {
	post_worker,   post_worker,	poll_worker,  event_worker,  async_worker,
	churn_worker,  churn_worker,	cm_server,    cm_client,     stream_server,
	socket_client, datagram_worker, child_worker, cancel_worker,
};

#define WORKERS (sizeof workers / sizeof *workers)

static void *run_worker(void *number)
{
	size_t i = (size_t)(uintptr_t)number;
	random_state = (seed + i) * UINT64_C(0x9e3779b97f4a7c15) | 1;
	return workers[i](NULL);
}

static bool open_round(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	s.context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	ibv_free_device_list(list);
	if (!OK(s.context != NULL))
		return false;
	struct ibv_cq_init_attr_ex attr = {.cqe = 4096};
	s.pd = ibv_alloc_pd(s.context);
	s.channel = ibv_create_comp_channel(s.context);
	attr.channel = s.channel;
	/* An event may go with its object between poll and the call that gets it. */
	fcntl(s.context->async_fd, F_SETFL, O_NONBLOCK);
	if (s.channel)
		fcntl(s.channel->fd, F_SETFL, O_NONBLOCK);
	cq = s.channel ? ibv_create_cq_ex(s.context, &attr) : NULL;
	s.mr = s.pd ? ibv_reg_mr(s.pd, s.buf, sizeof s.buf, ALL_ACCESS) : NULL;
	if (!OK(s.pd && s.channel && cq && s.mr))
		return false;
	for (int i = 0; i < QPS; i++) {
		struct ibv_qp_init_attr_ex init = {
			.send_cq = ibv_cq_ex_to_cq(cq),
			.recv_cq = ibv_cq_ex_to_cq(cq),
			.cap = rc_attr(&s).cap,
			.qp_type = IBV_QPT_RC,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.pd = s.pd,
			.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
		};
		qps[i] = ibv_create_qp_ex(s.context, &init);
		if (!OK(qps[i] != NULL) || !churn_connect(qps[i]))
			return false;
	}
	return true;
}

/*
 * Each counted work request has completed, at the latest when its queue pair fails; or it was in
 * the hands of a daemon that died, and there are no more completions. None completes twice.
 */
static void drain(void)
{
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
	int64_t end = now_ms() + HANG * 1000;
	draining = true;
	for (int i = 0; i < QPS; i++)
		if (qps[i])
			OK(!ibv_modify_qp(qps[i], &error, IBV_QP_STATE));
	int n = 0;
	while (n >= 0 && completed != posted && now_ms() < end) {
		n = poll_some();
		if (!n)
			sched_yield();
	}
	bool lost = daemon_dies && n < 0 && completed < posted;
	if (completed != posted && !lost) {
		fprintf(stderr, "%u work requests, %u completions\n", posted, completed);
		abort();
	}
}

static void close_round(void)
{
	for (int i = 0; i < QPS; i++)
		if (qps[i])
			MUST(ibv_destroy_qp(qps[i]));
	if (s.mr)
		MUST(ibv_dereg_mr(s.mr));
	if (cq)
		MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	if (s.channel)
		MUST(ibv_destroy_comp_channel(s.channel));
	if (s.pd)
		MUST(ibv_dealloc_pd(s.pd));
	if (s.context)
		MUST(ibv_close_device(s.context));
	memset(qps, 0, sizeof qps);
	s.mr = NULL;
	cq = NULL;
	s.channel = NULL;
	s.pd = NULL;
	s.context = NULL;
}

static void round_of_work(unsigned int ms)
{
	pthread_t threads[WORKERS];
	limit_time(3 * HANG);
	stop = draining = false;
	posted = completed = 0;
	if (open_round()) {
		for (size_t i = 0; i < WORKERS; i++)
			REQUIRE(!pthread_create(&threads[i], NULL, run_worker,
						(void *)(uintptr_t)i));
		usleep(ms * 1000);
		stop = true;
		for (size_t i = 0; i < WORKERS; i++)
			REQUIRE(!pthread_join(threads[i], NULL));
		drain();
	} else {
		usleep(20000); /* there is no daemon */
	}
	close_round();
	seed += 100;
}

/* Whether all of it was done. A run that has not done that has shown nothing. */
static bool all_done(void)
{
	for (int w = MESSAGES; w <= CANCELLED; w++)
		if (!done[w])
			return false;
	return true;
}

int main(int argc, char **argv)
{
	if (argc == 2) /* the last argument of COMMAND */
		return executed();
	REQUIRE(argc >= 5 && !close_range(3, ~0u, 0));
	int64_t end = now_ms() + atoi(argv[1]) * 1000;
	seed = strtoull(argv[2], NULL, 0);
	random_state = seed | 1;
	daemon_dies = !strcmp(argv[3], "dies");
	command = argv + 4;
	int rounds = 0;
	do {
		round_of_work(200 + below(300));
		rounds++;
	} while (now_ms() < end || (!all_done() && now_ms() < end + HANG * 1000));
	printf("%d rounds: %lu messages, %lu objects, %lu events, %lu connections, %lu transfers, "
	       "%lu children, %lu cancelled, %u calls refused\n",
	       rounds, done[MESSAGES], done[OBJECTS], done[EVENTS], done[CONNECTIONS],
	       done[SOCKETS], done[CHILDREN], done[CANCELLED], refused);
	REQUIRE(all_done());
	return failures != 0;
}
