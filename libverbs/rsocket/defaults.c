// SPDX-License-Identifier: Apache-2.0
/*
 * Defaults of options, see rsocket(7): each file of /etc/rdma/rsocket contains one number.
 */
#include "rsocket/rs.h"

#include <stdio.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct rs_options defaults;
static int poll_us, wake_up_ms;

int rs_clamp(int v, int min, int max)
{
	return v < min ? min : v > max ? max : v;
}

int rs_round_buffer(int bytes)
{
	return rs_clamp(bytes, RS_MIN_BUFFER, RS_MAX_BUFFER) / 8192 * 8192;
}

int rs_round_iomaps(int n)
{
	n = rs_clamp(n, 0, RS_MAX_IOMAPS);
	return n <= 128 ? n : (n + 255) / 256 * 256;
}

static void read_setting(const char *name, int min, int max, int *value)
{
	char path[64];
	int v;
	snprintf(path, sizeof path, "/etc/rdma/rsocket/%s", name);
	FILE *f = fopen(path, "re");
	if (!f)
		return;
	if (fscanf(f, "%d", &v) == 1)
		*value = rs_clamp(v, min, max);
	fclose(f);
}

static void load_defaults(void)
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
	read_setting("mem_default", RS_MIN_BUFFER, RS_MAX_BUFFER, &d->rcv_size);
	read_setting("wmem_default", RS_MIN_BUFFER, RS_MAX_BUFFER, &d->snd_size);
	read_setting("sqsize_default", RS_MIN_QUEUE, RS_MAX_QUEUE, &d->sq_size);
	read_setting("rqsize_default", RS_MIN_QUEUE, RS_MAX_QUEUE, &d->rq_size);
	read_setting("inline_default", 0, RS_MAX_INLINE, &d->inline_size);
	read_setting("iomap_size", 0, RS_MAX_IOMAPS, &d->iomap_size);
	read_setting("polling_time", 0, 1000000, &poll_us);
	read_setting("wake_up_interval", 1, 60000, &wake_up_ms);
	d->rcv_size = rs_round_buffer(d->rcv_size);
	d->snd_size = rs_round_buffer(d->snd_size);
	d->iomap_size = rs_round_iomaps(d->iomap_size);
}

const struct rs_options *rs_default_options(void)
{
	pthread_once(&once, load_defaults);
	return &defaults;
}

int rs_default_poll(void)
{
	pthread_once(&once, load_defaults);
	return poll_us;
}

int rs_default_wake_up(void)
{
	pthread_once(&once, load_defaults);
	return wake_up_ms;
}
