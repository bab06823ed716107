// SPDX-License-Identifier: Apache-2.0
/*
 * Another thread uses the libraries for the first time when a fork has already begun. The child
 * does not wait for that thread, which it does not have.
 */
#include "net.h"
#include "setup.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>

#define ROUNDS 5

static void open_device(void)
{
	REQUIRE(!ibv_close_device(open_first()));
}

static void bind_identifier(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in any = nic_addr("192.0.2.1", 0);
	struct rdma_cm_id *id;
	REQUIRE(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	REQUIRE(!rdma_bind_addr(id, (struct sockaddr *)&any) && !rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void open_socket(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	REQUIRE(fd >= 0 && !rclose(fd));
}

/* What a process uses first, or NULL in the process that starts all others. */
static void (*first_use)(void);
static bool thread_runs;
static atomic_bool stop;
static pthread_t thread;

static void *use_repeatedly(void *arg)
{
	(void)arg;
	while (!stop)
		first_use();
	return NULL;
}

/* Runs before the handlers of the libraries, which were loaded before it was registered. */
static void before_fork(void)
{
	if (!first_use || thread_runs)
		return;
	thread_runs = true;
	REQUIRE(!pthread_create(&thread, NULL, use_repeatedly, NULL));
	usleep(5000);
}

static int status_of(pid_t pid)
{
	int status = -1;
	REQUIRE(pid >= 0 && waitpid(pid, &status, 0) == pid);
	return status;
}

static int process(void (*use)(void))
{
	first_use = use;
	pid_t pid = fork();
	if (!pid) {
		limit_time(20);
		use();
		_exit(0);
	}
	int status = status_of(pid);
	stop = true;
	REQUIRE(!pthread_join(thread, NULL));
	return status;
}

int main(void)
{
	static const struct {
		const char *name;
		void (*function)(void);
	} uses[] = {{"list devices", list_devices},
		    {"open a device", open_device},
		    {"bind an identifier", bind_identifier},
		    {"open a socket", open_socket},
		    {"look for devices", look_for_devices}};
	REQUIRE(!pthread_atfork(before_fork, NULL, NULL));
	for (int i = 0; i < ROUNDS * (int)(sizeof uses / sizeof *uses) && !failures; i++) {
		int use = i / ROUNDS;
		pid_t pid = fork();
		if (!pid)
			_exit(process(uses[use].function) != 0);
		if (status_of(pid)) {
			fprintf(stderr, "%s: the child failed or waited\n", uses[use].name);
			failures++;
		}
	}
	return failures != 0;
}
