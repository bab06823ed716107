/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SOFTROCE_DEVICE_H
#define SOFTROCE_DEVICE_H

#include <infiniband/verbs.h>

#include "core/conn.h"

struct sr_device {
	struct ibv_device ibv; /* first */
	struct sr_device *next;
	char netdev[SOFTROCE_IF_NAME_SIZE];
	uint64_t guid;
	atomic_int index;
};

/* sr_find_device asks the daemon for its devices; NULL: none has this name. */
struct sr_device *sr_find_device(const char *name);

#endif
