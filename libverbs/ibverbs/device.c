// SPDX-License-Identifier: Apache-2.0
/*
 * The list of devices. A device stays in memory once it was listed, because a program may use
 * its address after it has freed the list.
 */
#include "ibverbs/device.h"
#include "ibverbs/context.h"

#include "core/at_fork.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sr_device *devices; /* all that were ever listed */

static void lock_devices(void)
{
	pthread_mutex_lock(&devices_lock);
}

static void unlock_devices(void)
{
	pthread_mutex_unlock(&devices_lock);
}

/* A child would wait forever for a thread that it does not have. */
SR_AT_FORK(lock_devices, unlock_devices, unlock_devices)

static struct sr_device *find_known(const struct softroce_device_entry *e)
{
	for (struct sr_device *d = devices; d; d = d->next)
		if (!strcmp(d->ibv.name, (const char *)e->name) && d->guid == e->node_guid &&
		    !strcmp(d->netdev, (const char *)e->netdev))
			return d;
	return NULL;
}

static struct sr_device *add_device(struct softroce_device_entry *e, int index)
{
	e->name[sizeof e->name - 1] = 0;
	e->netdev[sizeof e->netdev - 1] = 0;
	struct sr_device *d = find_known(e);
	if (d) {
		d->index = index;
		return d;
	}
	d = calloc(1, sizeof *d);
	if (!d)
		return NULL;
	d->ibv.node_type = IBV_NODE_CA;
	d->ibv.transport_type = IBV_TRANSPORT_IB;
	memcpy(d->ibv.name, e->name, sizeof d->ibv.name);
	memcpy(d->netdev, e->netdev, sizeof d->netdev);
	snprintf(d->ibv.dev_name, sizeof d->ibv.dev_name, "uverbs%d", index);
	snprintf(d->ibv.dev_path, sizeof d->ibv.dev_path, "/sys/class/infiniband_verbs/uverbs%d",
		 index);
	snprintf(d->ibv.ibdev_path, sizeof d->ibv.ibdev_path, "/sys/class/infiniband/%s",
		 d->ibv.name);
	d->guid = e->node_guid;
	d->index = index;
	d->next = devices;
	devices = d;
	return d;
}

/*
 * Keeps the devices named in SOFTROCE_DEVICE, a list of names separated by commas, in its order,
 * and returns their number. Without the variable all devices are kept.
 */
static size_t select_devices(struct sr_device **list, size_t n)
{
	const char *names = getenv("SOFTROCE_DEVICE");
	if (!names || !*names)
		return n;
	size_t kept = 0;
	for (const char *end; *names; names = *end ? end + 1 : end) {
		end = names + strcspn(names, ",");
		size_t len = end - names;
		for (size_t i = kept; i < n; i++) {
			struct sr_device *d = list[i];
			if (strlen(d->ibv.name) != len || memcmp(d->ibv.name, names, len) != 0)
				continue;
			memmove(&list[kept + 1], &list[kept], (i - kept) * sizeof *list);
			list[kept++] = d;
			break;
		}
	}
	list[kept] = NULL;
	return kept;
}

/* Lists the daemon's devices in an array that ends with NULL. The caller frees it. */
static int list_devices(struct sr_device ***list, int *count)
{
	struct sr_conn conn;
	int error = sr_connect(&conn);
	if (error)
		return error;
	struct softroce_list_reply *reply = NULL;
	size_t len = 0;
	struct sr_request r = {
		.op = SOFTROCE_OP_LIST_DEVICES,
		.reply_len = 0,
		.whole_reply = (void **)&reply,
		.whole_reply_len = &len,
	};
	error = sr_call(&conn, &r);
	sr_disconnect(&conn);
	if (error)
		return error;
	size_t n = 0;
	if (len >= sizeof *reply) {
		n = (len - sizeof *reply) / sizeof(struct softroce_device_entry);
		if (n > reply->count)
			n = reply->count;
	}
	struct sr_device **found = calloc(n + 1, sizeof *found);
	struct softroce_device_entry *e = (struct softroce_device_entry *)(reply + 1);
	lock_devices();
	for (size_t i = 0; found && i < n; i++) {
		found[i] = add_device(&e[i], (int)i);
		if (!found[i]) {
			free(found);
			found = NULL;
		}
	}
	unlock_devices();
	free(reply);
	if (!found)
		return ENOMEM;
	*list = found;
	*count = (int)select_devices(found, n);
	return 0;
}

struct sr_device *sr_find_device(const char *name)
{
	struct sr_device **list, *found = NULL;
	int n;
	if (list_devices(&list, &n))
		return NULL;
	for (int i = 0; i < n && !found; i++)
		if (!strcmp(list[i]->ibv.name, name))
			found = list[i];
	free(list);
	return found;
}

SR_PUBLIC struct ibv_device **ibv_get_device_list(int *num_devices)
{
	struct sr_device **list;
	int n = 0;
	if (num_devices)
		*num_devices = 0;
	int error = list_devices(&list, &n);
	if (error == ENOENT || error == ECONNREFUSED)
		error = ENOSYS; /* as on a kernel without RDMA */
	if (error)
		return sr_null(error);
	if (num_devices)
		*num_devices = n;
	return (struct ibv_device **)list; /* ibv is the first member */
}

SR_PUBLIC void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

SR_PUBLIC const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

SR_PUBLIC __be64 ibv_get_device_guid(struct ibv_device *device)
{
	return htobe64(((struct sr_device *)device)->guid);
}

SR_PUBLIC int ibv_get_device_index(struct ibv_device *device)
{
	return ((struct sr_device *)device)->index;
}
