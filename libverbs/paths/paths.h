/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path interposer. If the library is preloaded, or precedes the C library in a program's search
 * order, calls with paths below /dev/infiniband and /sys/class/infiniband are redirected to a
 * directory that the daemon maintains. These paths are called emulated here. All other paths reach
 * the C library unchanged.
 */
#ifndef SOFTROCE_PATHS_H
#define SOFTROCE_PATHS_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "core/export.h"
#include "core/interpose.h"

/* Longer than any emulated path. */
#define SR_PATH_SIZE 512

/* Where a call looks for a file: at path, relative to dir. */
struct sr_path {
	int dir;
	const char *path;
	const char *emulated; /* the absolute path as the program sees it; NULL: not emulated */
	char buf[SR_PATH_SIZE];
};

/* sr_path_lookup decides whether a path is emulated. Without a daemon no path is. */
void sr_path_lookup(struct sr_path *p, int dir, const char *path);

/*
 * sr_path_emulated reports whether a path or pattern, possibly relative to dir, begins with an
 * emulated directory. An absolute path is decided without asking the daemon.
 */
bool sr_path_emulated(int dir, const char *path);

/* sr_is_device_file: such a path looks like a character device, but cannot be opened. */
bool sr_is_device_file(const struct sr_path *p);

/* sr_is_on_tree reports whether dev is the file system of the daemon's directory. */
bool sr_is_on_tree(dev_t dev);

#endif
