/*
 * clock - makes time pass SPEED times as fast for perftest and mckey.
 *
 * Before it prints the results for a message size, perftest measures the processor's frequency: it
 * polls gettimeofday() for about 0.2 s. With -a, which is 23 sizes, a program and its peer keep two
 * processors busy for 10 s, and a guest beside them does not run. ib_write_bw and ib_write_lat
 * sleep for a second before they exchange their parameters, and mckey for three seconds after it
 * has joined. So the printed times are too long by that factor; the programs transfer the same data
 * in the same way.
 */
#define _GNU_SOURCE
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
	SPEED = 100
};

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec real;
	(void)zone;
	clock_gettime(CLOCK_MONOTONIC, &real);
	long long us = (real.tv_sec * 1000000LL + real.tv_nsec / 1000) * SPEED;
	*now = (struct timeval){us / 1000000, us % 1000000};
	return 0;
}

unsigned int sleep(unsigned int seconds)
{
	usleep(seconds * (1000000 / SPEED));
	return 0;
}
