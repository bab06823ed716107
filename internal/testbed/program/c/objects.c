/* The table of objects, by the names that the script assigned, and their destruction. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

struct object *find(enum kind kind, const char *name)
{
	for (struct object *o = objects; o; o = o->next)
		if (o->kind == kind && !strcmp(o->name, name))
			return o;
	return NULL;
}

/* must_find replies with an error if the object does not exist. */
struct object *must_find(enum kind kind, const char *name)
{
	struct object *o = find(kind, name);

	if (!o)
		fail("no object %s", name);
	return o;
}

struct object *add(enum kind kind, const char *name, void *any)
{
	struct object *o = calloc(1, sizeof(*o));

	if (!o)
		exit(2);
	o->kind = kind;
	snprintf(o->name, sizeof(o->name), "%s", name);
	o->any = any;
	o->next = objects;
	objects = o;
	return o;
}

void forget(struct object *gone)
{
	for (struct object **p = &objects; *p; p = &(*p)->next) {
		if (*p == gone) {
			*p = gone->next;
			free(gone);
			return;
		}
	}
}

struct ibv_pd *pd_named(const char *name)
{
	struct object *o = find(PD, name);
	struct ibv_pd *pd;

	if (o)
		return o->pd;
	pd = ibv_alloc_pd(ctx);
	if (pd)
		add(PD, name, pd);
	return pd;
}

/* cq_named returns the completion queue of a name, or creates an unnamed one. */
struct object *cq_named(const char *name)
{
	struct object *o = find(CQ, name);
	struct ibv_cq *own;

	if (o)
		return o;
	own = ibv_create_cq(ctx, 128, NULL, NULL, 0);
	return own ? add(CQ, "", own) : NULL;
}

/* destroy destroys an object, whatever its state. */
static int destroy(struct object *o)
{
	switch (o->kind) {
	case QP:
		errno = ibv_destroy_qp(o->qp);
		if (o->ah)
			ibv_destroy_ah(o->ah);
		break;
	case SRQ:
		errno = ibv_destroy_srq(o->srq);
		break;
	case CQ:
		errno = ibv_destroy_cq(o->cq);
		break;
	case MW:
		errno = ibv_dealloc_mw(o->mw);
		break;
	case MR:
		errno = o->mr ? ibv_dereg_mr(o->mr) : 0;
		if (!o->shared)
			free(o->mem);
		break;
	case PD:
		errno = ibv_dealloc_pd(o->pd);
		break;
	case XRCD:
		errno = ibv_close_xrcd(o->xrcd);
		break;
	}
	return errno;
}

/* reset: destroys all objects. */
void do_reset(void)
{
	static const enum kind order[] = {QP, SRQ, CQ, MW, MR, XRCD, PD};
	struct ibv_async_event e;
	int failed = 0;

	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		for (struct object *o = objects, *next; o; o = next) {
			next = o->next;
			if (o->kind != order[i])
				continue;
			if (destroy(o) && !failed)
				failed = errno;
			forget(o);
		}
	}
	while (!ibv_get_async_event(ctx, &e))
		ibv_ack_async_event(&e);
	errno = failed;
	if (failed)
		fail_errno("reset");
	else
		printf("ok\n");
}
