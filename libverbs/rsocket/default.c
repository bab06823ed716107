// SPDX-License-Identifier: Apache-2.0
/*
 * Sockets over RDMA: what holds where a program says nothing, as rsocket(7) has it: one number in
 * each file of /etc/rdma/rsocket.
 */
#include "rsocket/rs.h"

#include <stdio.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct rs_options defaults;
static int poll_us, wake_up_ms;

static void configured(const char *name, int min, int max, int *value)
{
	char path[64];
	int v;
	snprintf(path, sizeof path, "/etc/rdma/rsocket/%s", name);
	FILE *f = fopen(path, "re");
	if (!f)
		return;
	if (fscanf(f, "%d", &v) == 1)
		*value = v < min ? min : v > max ? max : v;
	fclose(f);
}

static void learn(void)
{
	struct rs_options *d = &defaults;
	*d = (struct rs_options){
		.sq_size = 384,
		.rq_size = 384,
		.inline_size = 64,
		.snd_size = 1 << 17,
		.rcv_size = 1 << 17,
		.keep_idle = 7200,
		.keep_count = 9,
		.keep_interval = 75,
	};
	wake_up_ms = 50;
	configured("mem_default", RS_MIN_BUFFER, RS_MAX_BUFFER, &d->rcv_size);
	configured("wmem_default", RS_MIN_BUFFER, RS_MAX_BUFFER, &d->snd_size);
	configured("sqsize_default", RS_MIN_QUEUE, RS_MAX_QUEUE, &d->sq_size);
	configured("rqsize_default", RS_MIN_QUEUE, RS_MAX_QUEUE, &d->rq_size);
	configured("inline_default", 0, RS_MAX_INLINE, &d->inline_size);
	configured("iomap_size", 0, RS_MAX_IOMAPS, &d->iomap_size);
	configured("polling_time", 0, 1000000, &poll_us);
	configured("wake_up_interval", 1, 60000, &wake_up_ms);
	d->rcv_size = rs_round_buffer(d->rcv_size);
	d->snd_size = rs_round_buffer(d->snd_size);
	d->iomap_size = rs_round_iomaps(d->iomap_size);
}

const struct rs_options *rs_default_options(void)
{
	pthread_once(&once, learn);
	return &defaults;
}

/* For how many µs a call that waits looks for completions before it sleeps. */
int rs_default_poll(void)
{
	pthread_once(&once, learn);
	return poll_us;
}

/*
 * Another thread that uses a socket may take the event that rpoll waits for. So rpoll looks again
 * after so many ms, which only costs where that has happened.
 */
int rs_default_wake_up(void)
{
	pthread_once(&once, learn);
	return wake_up_ms;
}
