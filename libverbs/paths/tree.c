// SPDX-License-Identifier: Apache-2.0
/*
 * Decides which paths are emulated, and obtains the daemon's directory.
 */
#include "paths/paths.h"

#include "core/at_fork.h"
#include "core/cancel.h"
#include "core/conn.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* For this long the directory counts as current. */
#define FRESH_NS 50000000

static pthread_mutex_t tree_lock = PTHREAD_MUTEX_INITIALIZER;
static int tree_fd = -1;
static struct stat tree_id; /* identifies what tree_fd was opened for */
static struct timespec tree_time;

static bool is_below(const char *path, const char *dir)
{
	size_t n = strlen(dir);
	return !strncmp(path, dir, n) && (!path[n] || path[n] == '/');
}

static bool has_prefix(const char *path, const char *prefix)
{
	return !strncmp(path, prefix, strlen(prefix));
}

/* The PCI domain of emulated devices: pciDomain of internal/sysfs/pci.go. */
#define PCI_DOMAIN "50ce:"

static bool has_emulated_prefix(const char *path)
{
	return path && (is_below(path, "/sys/class/infiniband") ||
			is_below(path, "/sys/class/infiniband_verbs") ||
			is_below(path, "/dev/infiniband") ||
			has_prefix(path, "/sys/devices/pci" PCI_DOMAIN) ||
			has_prefix(path, "/sys/kernel/debug/mlx5/" PCI_DOMAIN) ||
			has_prefix(path, "/sys/bus/pci/devices/" PCI_DOMAIN));
}

/*
 * The lock is held while the daemon is asked, for which fork does not wait. What it protects is
 * checked before it is used, so a child can go on with it as it is.
 */
static void after_fork_child(void)
{
	pthread_mutex_init(&tree_lock, NULL);
}

SR_AT_FORK(NULL, NULL, after_fork_child)

static int request_tree(void)
{
	struct sr_conn conn;
	int fd = -1;
	if (sr_connect(&conn))
		return -1;
	if (sr_command_fd(&conn, SOFTROCE_OP_OPEN_TREE, NULL, 0, NULL, 0, &fd))
		fd = -1;
	sr_disconnect(&conn);
	return fd;
}

static bool is_fresh(const struct timespec *now)
{
	int64_t age = (now->tv_sec - tree_time.tv_sec) * INT64_C(1000000000) +
		      (now->tv_nsec - tree_time.tv_nsec);
	return age < FRESH_NS;
}

static bool is_tree(int fd)
{
	struct stat st;
	return fd >= 0 && !fstat(fd, &st) && st.st_dev == tree_id.st_dev &&
	       st.st_ino == tree_id.st_ino;
}

/*
 * Takes over a descriptor of the directory. An earlier descriptor keeps its number, because
 * another thread may be using it.
 */
static void set_tree(int fd)
{
	if (is_tree(fd) && tree_fd >= 0) {
		close(fd);
		return;
	}
	fstat(fd, &tree_id);
	if (tree_fd >= 0) { /* the daemon was restarted */
		dup3(fd, tree_fd, O_CLOEXEC);
		close(fd);
	} else {
		tree_fd = fd;
	}
}

/*
 * Returns a descriptor of the daemon's directory, or -1 without a daemon. It stays open, because
 * another thread may be using it. If the program has closed it and its number denotes another
 * file now, that file is left alone.
 */
static int get_tree(void)
{
	struct timespec now;
	int saved = errno, state = sr_defer_cancel();
	clock_gettime(CLOCK_MONOTONIC, &now);
	pthread_mutex_lock(&tree_lock);
	if (!is_tree(tree_fd))
		tree_fd = -1;
	if (tree_fd < 0 || !is_fresh(&now)) {
		int fd = request_tree();
		if (fd >= 0) {
			set_tree(fd);
			tree_time = now;
		}
	}
	int fd = tree_fd;
	pthread_mutex_unlock(&tree_lock);
	sr_restore_cancel(state);
	errno = saved;
	return fd;
}

/*
 * Writes a path without empty components and ".", and resolves ".." below emulated directories as
 * if no component before it were a link. False: the path is too long to be emulated.
 */
static bool normalize(const char *path, char *out)
{
	size_t n = 0;
	while (*path) {
		path += strspn(path, "/");
		size_t len = strcspn(path, "/");
		if (n + 1 + len + 1 >= SR_PATH_SIZE)
			return false;
		out[n] = 0;
		if (len == 2 && !memcmp(path, "..", 2) && n && has_emulated_prefix(out)) {
			while (out[--n] != '/')
				;
		} else if (!(len == 1 && *path == '.') && (len || !n)) {
			out[n++] = '/';
			memcpy(out + n, path, len);
			n += len;
		}
		path += len;
	}
	if (n && path[-1] == '/') /* a link at the end is followed */
		out[n++] = '/';
	out[n] = 0;
	return true;
}

typedef ssize_t (*readlink_t)(const char *, char *, size_t);

/*
 * Turns a relative path into an absolute one, if it may be emulated: if dir is /, /sys, /dev or
 * below. False: it is not, or the path is too long.
 */
static bool make_absolute(int dir, const char *path, char *out)
{
	REAL("readlink", readlink_t);
	char link[32];
	int saved = errno;
	if (dir == AT_FDCWD)
		strcpy(link, "/proc/self/cwd");
	else
		snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
	ssize_t n = real(link, out, SR_PATH_SIZE - 1);
	errno = saved;
	if (n <= 0 || (size_t)n + 1 + strlen(path) >= SR_PATH_SIZE)
		return false;
	out[n] = 0;
	if (strcmp(out, "/") && !is_below(out, "/sys") && !is_below(out, "/dev"))
		return false;
	out[n] = '/';
	strcpy(out + n + 1, path);
	return true;
}

void sr_path_lookup(struct sr_path *p, int dir, const char *path)
{
	char whole[SR_PATH_SIZE];
	p->dir = dir;
	p->path = path;
	p->emulated = NULL;
	if (!path || (!strstr(path, "infiniband") && !strstr(path, PCI_DOMAIN)))
		return;
	if (path[0] != '/') {
		if (!make_absolute(dir, path, whole))
			return;
		path = whole;
	}
	if (!normalize(path, p->buf))
		return;
	if (!has_emulated_prefix(p->buf)) {
		if (has_emulated_prefix(path)) /* ".." led out of an emulated directory, which the
						 kernel may not have */
			p->path = p->buf[0] ? p->buf : "/";
		return;
	}
	int fd = get_tree();
	if (fd < 0)
		return;
	p->dir = fd;
	p->emulated = p->buf;
	p->path = p->buf + 1;
}

bool sr_path_emulated(int dir, const char *path)
{
	struct sr_path p;
	if (!path || path[0] == '/')
		return has_emulated_prefix(path);
	sr_path_lookup(&p, dir, path);
	return p.emulated;
}

bool sr_is_device_file(const struct sr_path *p)
{
	static const char dir[] = "/dev/infiniband/";
	return p->emulated && !strncmp(p->emulated, dir, sizeof dir - 1) &&
	       p->emulated[sizeof dir - 1];
}

bool sr_is_on_tree(dev_t dev)
{
	pthread_mutex_lock(&tree_lock);
	bool on = tree_fd >= 0 && tree_id.st_dev == dev;
	pthread_mutex_unlock(&tree_lock);
	return on;
}
