// SPDX-License-Identifier: Apache-2.0
/*
 * Reading attributes from sysfs.
 */
#include "ibverbs/context.h"

#include "core/cancel.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

SR_PUBLIC const char *ibv_get_sysfs_path(void)
{
	return "/sys";
}

static int read_file(const char *dir, const char *file, char *buf, size_t size)
{
	char path[IBV_SYSFS_PATH_MAX * 2];
	if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, file) >= sizeof path)
		return -1;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t n = read(fd, buf, size);
	close(fd);
	if (n <= 0)
		return (int)n;
	if (buf[n - 1] == '\n')
		buf[--n] = 0;
	else if ((size_t)n < size)
		buf[n] = 0;
	else
		return -1;
	return (int)n;
}

SR_PUBLIC int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
	int state = sr_defer_cancel();
	int n = read_file(dir, file, buf, size);
	sr_restore_cancel(state);
	return n;
}
