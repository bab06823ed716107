/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files that answer calls with paths share.
 */
#ifndef SOFTROCE_PATHS_H
#define SOFTROCE_PATHS_H

#include "softroce.h"

#include <dlfcn.h>

/* The next definition of a function: the C library's, or another preloaded library's. */
#define REAL(name, type)                                                                           \
	static type real;                                                                          \
	if (!real)                                                                                 \
	real = (type)dlsym(RTLD_NEXT, name)

/* More than any path of ours has. */
#define SR_PATH_SIZE 512

/* Where a call is to look. */
struct sr_place {
	int dir;
	const char *path; /* from dir, or wherever the program said */
	const char *full; /* of ours: the path as the program sees it, from the root; else NULL */
	char buf[SR_PATH_SIZE];
};

/*
 * sr_place finds out whether a path is one of ours: of those that stand for something in the
 * daemon's directory, while there is a daemon. Without one every path is the program's.
 */
void sr_place(struct sr_place *p, int dir, const char *path);

/* sr_may_be_ours tells, without asking the daemon, what a path or a pattern begins with. */
bool sr_may_be_ours(const char *path);

/* sr_concerns tells whether a path or a pattern, which may be relative, begins with one of ours. */
bool sr_concerns(int dir, const char *path);

/* A device file says that it is a character device, but nobody can open it. */
bool sr_is_device_file(const struct sr_place *p);

/* sr_is_on_tree tells whether a file may be of the directory, by the file system that it is on. */
bool sr_is_on_tree(dev_t dev);

#endif
