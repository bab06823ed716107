// SPDX-License-Identifier: Apache-2.0
/*
 * Prints how many nanoseconds control calls take, each on a line with its name. Creations are
 * measured together with the destruction of what they created. Arguments are the number of calls
 * and the names of those to make, by default all.
 */
#include "setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static struct setup s;
static struct ibv_ah_attr address = {
	.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}};

static void query(void)
{
	struct ibv_port_attr port;
	REQUIRE(!ibv_query_port(s.context, 1, &port));
}

static void create_cq(int entries)
{
	struct ibv_cq *q = ibv_create_cq(s.context, entries, NULL, NULL, 0);
	REQUIRE(q && !ibv_destroy_cq(q));
}

static void cq(void)
{
	create_cq(64);
}

static void large_cq(void)
{
	create_cq(4096);
}

static void qp(void)
{
	REQUIRE(!ibv_destroy_qp(create_qp(&s)));
}

static void reg_mr(void *buf, size_t length)
{
	struct ibv_mr *m = ibv_reg_mr(s.pd, buf, length, ALL_ACCESS);
	REQUIRE(m && !ibv_dereg_mr(m));
}

static void mr(void)
{
	reg_mr(s.buf, sizeof s.buf);
}

static void large_mr(void)
{
	static char buf[1 << 20];
	reg_mr(buf, sizeof buf);
}

static void ah(void)
{
	struct ibv_ah *a = ibv_create_ah(s.pd, &address);
	REQUIRE(a && !ibv_destroy_ah(a));
}

static void scan(struct ibv_context *c)
{
	struct ibv_port_attr port;
	REQUIRE(!ibv_query_port(c, 1, &port));
	for (int i = 0; i < port.gid_tbl_len; i++) {
		union ibv_gid gid;
		REQUIRE(!ibv_query_gid(c, 1, i, &gid));
	}
}

static void open_and_scan(void)
{
	struct ibv_context *c = open_first();
	scan(c);
	REQUIRE(!ibv_close_device(c));
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static const struct {
	const char *name;
	void (*call)(void);
	int share; /* how many of these take as long as a control call */
} calls[] = {
	{"query", query, 1},	  {"cq", cq, 1},
	{"cq-4096", large_cq, 1}, {"qp", qp, 1},
	{"mr-4KiB", mr, 1},	  {"mr-1MiB", large_mr, 1},
	{"ah", ah, 20},		  {"open", open_and_scan, 1},
};

static bool is_wanted(const char *name, char **names)
{
	for (char **n = names; *n; n++)
		if (!strcmp(*n, name))
			return true;
	return false;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1;
	setup_open(&s);
	REQUIRE(!ibv_query_gid(s.context, 1, 1, &address.grh.dgid));
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		if (argc > 2 && !is_wanted(calls[i].name, argv + 2))
			continue;
		int64_t count = (int64_t)n * calls[i].share, start = now();
		for (int64_t k = 0; k < count; k++)
			calls[i].call();
		printf("%s %lld\n", calls[i].name, (long long)((now() - start) / count));
	}
	setup_close(&s);
	return 0;
}
