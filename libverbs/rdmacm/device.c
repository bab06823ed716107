// SPDX-License-Identifier: Apache-2.0
/*
 * The NICs that identifiers are bound to. Each is opened once and stays open, because programs
 * use id->verbs after the identifier was destroyed.
 */
#include "rdmacm/rdmacm.h"

#include "core/at_fork.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cm_device *devices;

/*
 * A child cannot use its parent's contexts. It opens its own and leaves the parent's as they are.
 * The lock is held while a device is opened, for which fork does not wait.
 */
static void after_fork_child(void)
{
	devices = NULL;
	pthread_mutex_init(&devices_lock, NULL);
}

SR_AT_FORK(NULL, NULL, after_fork_child)

static void lock_devices(void)
{
	pthread_mutex_lock(&devices_lock);
}

static uint8_t to_byte(int n)
{
	return n < 0 ? 0 : n > UINT8_MAX ? UINT8_MAX : (uint8_t)n;
}

static struct cm_device *open_device(struct ibv_device *ibv)
{
	struct cm_device *d = calloc(1, sizeof *d);
	if (!d)
		return NULL;
	d->verbs = ibv_open_device(ibv);
	struct ibv_device_attr attr;
	if (!d->verbs || ibv_query_device(d->verbs, &attr)) {
		if (d->verbs)
			ibv_close_device(d->verbs);
		free(d);
		return NULL;
	}
	const char *name = ibv_get_device_name(ibv);
	memcpy(d->name, name, strnlen(name, sizeof d->name - 1));
	d->max_responder_resources = to_byte(attr.max_qp_rd_atom);
	d->max_initiator_depth = to_byte(attr.max_qp_init_rd_atom);
	d->next = devices;
	devices = d;
	return d;
}

static struct cm_device *find_device(const char *name)
{
	for (struct cm_device *d = devices; d; d = d->next)
		if (!d->gone && !strcmp(d->name, name))
			return d;
	return NULL;
}

/*
 * Marks the devices whose daemon is gone, so that they are not used again. The caller holds the
 * lock.
 */
static void mark_gone(void)
{
	struct ibv_device_attr attr;
	for (struct cm_device *d = devices; d; d = d->next)
		if (!d->gone && ibv_query_device(d->verbs, &attr) == EIO)
			d->gone = true;
}

/*
 * Returns the device with this name, opened if necessary; NULL with errno if it cannot be
 * opened. The caller holds the lock.
 */
static struct cm_device *get_device(const char *name, unsigned int generation)
{
	static unsigned int last_generation; /* of the session of the last call */
	if (generation != last_generation)
		mark_gone();
	last_generation = generation;
	struct cm_device *d = find_device(name);
	if (d)
		return d;
	struct ibv_device **list = ibv_get_device_list(NULL);
	if (!list)
		return NULL;
	errno = ENODEV;
	for (int i = 0; list[i] && !d; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			d = open_device(list[i]);
	int error = errno;
	ibv_free_device_list(list);
	errno = error;
	return d;
}

int cm_use_device(struct cm_id *id, const char *name)
{
	if (id->device)
		return strcmp(id->device->name, name) ? EINVAL : 0;
	lock_devices();
	int error = 0;
	struct cm_device *d = get_device(name, id->generation);
	if (d && !d->pd)
		d->pd = ibv_alloc_pd(d->verbs);
	if (!d || !d->pd) {
		error = errno ? errno : ENODEV;
	} else {
		d->users++;
		id->device = d;
		id->id.verbs = d->verbs;
		if (!id->id.pd)
			id->id.pd = d->pd;
	}
	pthread_mutex_unlock(&devices_lock);
	return error;
}

void cm_release_device(struct cm_id *id)
{
	struct cm_device *d = id->device;
	if (!d)
		return;
	id->device = NULL;
	lock_devices();
	/*
	 * If the program still has objects in the domain, deallocation fails with EBUSY and it
	 * stays.
	 */
	if (--d->users == 0) {
		if (d->xrcd && !ibv_close_xrcd(d->xrcd))
			d->xrcd = NULL;
		if (d->pd && !ibv_dealloc_pd(d->pd))
			d->pd = NULL;
	}
	pthread_mutex_unlock(&devices_lock);
}

struct ibv_xrcd *cm_xrcd(struct cm_device *d)
{
	lock_devices();
	if (!d->xrcd) {
		struct ibv_xrcd_init_attr attr = {
			.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
			.fd = -1,
			.oflags = O_CREAT,
		};
		d->xrcd = ibv_open_xrcd(d->verbs, &attr);
	}
	struct ibv_xrcd *x = d->xrcd;
	pthread_mutex_unlock(&devices_lock);
	return x;
}

SR_PUBLIC struct ibv_context **rdma_get_devices(int *num_devices)
{
	int n = 0, found = 0;
	struct ibv_context **all = NULL;
	if (num_devices)
		*num_devices = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	if (!list)
		return NULL;
	lock_devices();
	mark_gone();
	all = calloc((size_t)n + 1, sizeof *all);
	for (int i = 0; all && i < n; i++) {
		const char *name = ibv_get_device_name(list[i]);
		struct cm_device *d = find_device(name);
		if (!d)
			d = open_device(list[i]);
		if (d)
			all[found++] = d->verbs;
	}
	pthread_mutex_unlock(&devices_lock);
	ibv_free_device_list(list);
	if (num_devices)
		*num_devices = found;
	if (!all)
		errno = ENOMEM;
	return all;
}

SR_PUBLIC void rdma_free_devices(struct ibv_context **list)
{
	free(list);
}
