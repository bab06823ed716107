/* Memory regions, their contents, and memory windows. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

/* mr NAME SIZE FILL ACCESS PD */
void do_mr(void)
{
	struct ibv_pd *pd = pd_named(text(5));
	size_t size = number(2), whole = (size + 4095) & ~(size_t)4095;
	struct object *of = find(MR, text(6)), *o;
	uint8_t *mem = of ? of->mem : NULL;
	struct ibv_mr *mr;

	if (!pd || (!of && posix_memalign((void **)&mem, 4096, whole ? whole : 4096))) {
		fail_errno("mr");
		return;
	}
	if (!of)
		memset(mem, number(3), whole);
	mr = ibv_reg_mr(pd, mem, size, number(4));
	if (!mr) {
		fail_errno("ibv_reg_mr");
		if (!of)
			free(mem);
		return;
	}
	o = add(MR, text(1), mr);
	o->mem = mem;
	o->shared = !!of;
	printf("ok %lu %u %u\n", (unsigned long)(uintptr_t)mem, mr->lkey, mr->rkey);
}

/* dereg NAME: the memory remains, to detect writes to it. */
void do_dereg(void)
{
	struct object *o = must_find(MR, text(1));

	if (!o)
		return;
	errno = o->mr ? ibv_dereg_mr(o->mr) : EINVAL;
	if (errno) {
		fail_errno("ibv_dereg_mr");
		return;
	}
	o->mr = NULL;
	printf("ok\n");
}

/* read NAME OFFSET LENGTH */
void do_read(void)
{
	struct object *o = must_find(MR, text(1));
	uint64_t n = number(3);

	if (!o)
		return;
	printf("ok ");
	for (uint64_t i = 0; i < n; i++)
		printf("%02x", o->mem[number(2) + i]);
	printf("\n");
}

size_t parse_hex(const char *hex, uint8_t *to, size_t room)
{
	size_t n = 0;
	unsigned byte;

	if (!strcmp(hex, "-"))
		return 0;
	for (; n < room && sscanf(hex + 2 * n, "%2x", &byte) == 1; n++)
		to[n] = byte;
	return n;
}

/* write NAME OFFSET HEX */
void do_write(void)
{
	struct object *o = must_find(MR, text(1));

	if (!o)
		return;
	parse_hex(text(3), o->mem + number(2), strlen(text(3)) / 2);
	printf("ok\n");
}

/* mw NAME TYPE PD */
void do_mw(void)
{
	struct ibv_pd *pd = pd_named(text(3));
	struct ibv_mw *mw = pd ? ibv_alloc_mw(pd, number(2)) : NULL;

	if (!mw) {
		fail_errno("ibv_alloc_mw");
		return;
	}
	add(MW, text(1), mw);
	printf("ok %u\n", mw->rkey);
}

/* free NAME */
void do_free(void)
{
	struct object *o = must_find(MW, text(1));

	if (!o)
		return;
	errno = ibv_dealloc_mw(o->mw);
	if (errno) {
		fail_errno("ibv_dealloc_mw");
		return;
	}
	forget(o);
	printf("ok\n");
}
