// SPDX-License-Identifier: Apache-2.0
/*
 * Paths below /dev/infiniband and /sys/class/infiniband. Where this library is preloaded, or comes
 * before the C library in a program's search order, these calls are answered from a directory that
 * the daemon keeps, and opens for whoever asks; all other paths go on to the C library unchanged.
 * A device file says that it is a character device, but nobody can open it: what would be written
 * to it is for the kernel.
 */
#include "softroce.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define DEVICE_MAJOR 231 /* those of the kernel's verbs devices */
#define FIRST_MINOR  192

/* How long the directory counts as up to date. */
#define FRESH_NS 50000000

static pthread_mutex_t tree_lock = PTHREAD_MUTEX_INITIALIZER;
static int tree_fd = -1;
static struct timespec tree_time;

/* The next definition of a function: the C library's, or another preloaded library's. */
#define REAL(name, type)                                                                           \
	static type real;                                                                          \
	if (!real)                                                                                 \
	real = (type)dlsym(RTLD_NEXT, name)

static bool below(const char *path, const char *dir)
{
	size_t n = strlen(dir);
	return !strncmp(path, dir, n) && (!path[n] || path[n] == '/');
}

static bool is_ours(const char *path)
{
	if (!path || path[0] != '/')
		return false;
	return below(path, "/sys/class/infiniband") || below(path, "/sys/class/infiniband_verbs") ||
	       below(path, "/dev/infiniband");
}

static int ask_tree(void)
{
	struct sr_conn conn;
	int fd = -1;
	if (sr_connect(&conn))
		return -1;
	struct sr_request r = {.op = SOFTROCE_OP_OPEN_TREE, .got = &fd, .want = 1};
	if (sr_call(&conn, &r))
		fd = -1;
	sr_disconnect(&conn);
	return fd;
}

static bool is_fresh(const struct timespec *now)
{
	int64_t age = (now->tv_sec - tree_time.tv_sec) * INT64_C(1000000000) +
		      (now->tv_nsec - tree_time.tv_nsec);
	return tree_fd >= 0 && age < FRESH_NS;
}

/*
 * The directory, as a descriptor that stays open: another thread may be using it. It is always the
 * same one, unless the daemon was started anew. -1: there is no daemon.
 */
static int tree(void)
{
	struct timespec now;
	int saved = errno;
	clock_gettime(CLOCK_MONOTONIC, &now);
	pthread_mutex_lock(&tree_lock);
	if (!is_fresh(&now)) {
		int fd = ask_tree();
		if (fd >= 0 && tree_fd >= 0) {
			/* The number stays, also for those who use it right now. */
			dup3(fd, tree_fd, O_CLOEXEC);
			close(fd);
		} else if (fd >= 0) {
			tree_fd = fd;
		}
		if (fd >= 0)
			tree_time = now;
	}
	int fd = tree_fd;
	pthread_mutex_unlock(&tree_lock);
	errno = saved;
	return fd;
}

/*
 * Gives the directory and the path in it that stand for a path, where it is one of ours and there
 * is a daemon; else both as they are.
 */
static const char *place(int *dir, const char *path)
{
	if (!is_ours(path))
		return path;
	int fd = tree();
	if (fd < 0)
		return path;
	*dir = fd;
	return path + 1;
}

static bool is_device_file(const char *path)
{
	static const char dir[] = "/dev/infiniband/";
	return path && !strncmp(path, dir, sizeof dir - 1) && path[sizeof dir - 1];
}

/* The minor number of a device file; that of rdma_cm is above those of all devices. */
static unsigned int minor_of(const char *path)
{
	unsigned int index;
	if (sscanf(path, "/dev/infiniband/uverbs%u", &index) == 1)
		return FIRST_MINOR + index;
	return 0xfff;
}

/* open and its kin: the mode follows where a file may be created. */
#define MODE(flags, last)                                                                          \
	mode_t mode = 0;                                                                           \
	if ((flags) & (O_CREAT | O_TMPFILE)) {                                                     \
		va_list args;                                                                      \
		va_start(args, last);                                                              \
		mode = va_arg(args, mode_t);                                                       \
		va_end(args);                                                                      \
	}

typedef int (*openat_t)(int, const char *, int, ...);

static int open_at(int dir, const char *path, int flags, mode_t mode)
{
	REAL("openat", openat_t);
	const char *there = place(&dir, path);
	if (there != path && is_device_file(path)) {
		if (!faccessat(dir, there, F_OK, 0))
			errno = ENXIO;
		return -1;
	}
	return real(dir, there, flags, mode);
}

SR_PUBLIC int open(const char *path, int flags, ...)
{
	MODE(flags, flags);
	return open_at(AT_FDCWD, path, flags, mode);
}

SR_PUBLIC int open64(const char *path, int flags, ...)
{
	MODE(flags, flags);
	return open_at(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

SR_PUBLIC int openat(int dir, const char *path, int flags, ...)
{
	MODE(flags, flags);
	return open_at(dir, path, flags, mode);
}

SR_PUBLIC int openat64(int dir, const char *path, int flags, ...)
{
	MODE(flags, flags);
	return open_at(dir, path, flags | O_LARGEFILE, mode);
}

/* What programs that were built with _FORTIFY_SOURCE call; no mode, so nothing is created. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);

SR_PUBLIC int __open_2(const char *path, int flags)
{
	return open_at(AT_FDCWD, path, flags, 0);
}

SR_PUBLIC int __open64_2(const char *path, int flags)
{
	return open_at(AT_FDCWD, path, flags | O_LARGEFILE, 0);
}

SR_PUBLIC int __openat_2(int dir, const char *path, int flags)
{
	return open_at(dir, path, flags, 0);
}

SR_PUBLIC int __openat64_2(int dir, const char *path, int flags)
{
	return open_at(dir, path, flags | O_LARGEFILE, 0);
}

typedef FILE *(*fopen_t)(const char *, const char *);

/* Files of the tree are for reading alone. */
static FILE *open_stream(const char *path)
{
	int fd = open_at(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	return fd < 0 ? NULL : fdopen(fd, "r");
}

SR_PUBLIC FILE *fopen(const char *path, const char *mode)
{
	REAL("fopen", fopen_t);
	return is_ours(path) && mode[0] == 'r' ? open_stream(path) : real(path, mode);
}

SR_PUBLIC FILE *fopen64(const char *path, const char *mode)
{
	REAL("fopen64", fopen_t);
	return is_ours(path) && mode[0] == 'r' ? open_stream(path) : real(path, mode);
}

typedef DIR *(*opendir_t)(const char *);

SR_PUBLIC DIR *opendir(const char *path)
{
	REAL("opendir", opendir_t);
	if (!is_ours(path))
		return real(path);
	int fd = open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	return fd < 0 ? NULL : fdopendir(fd);
}

typedef int (*fstatat_t)(int, const char *, struct stat *, int);

static int stat_at(int dir, const char *path, struct stat *st, int flags)
{
	REAL("fstatat", fstatat_t);
	const char *there = place(&dir, path);
	int rc = real(dir, there, st, flags);
	if (!rc && there != path && is_device_file(path)) {
		st->st_mode = S_IFCHR | 0666;
		st->st_rdev = makedev(DEVICE_MAJOR, minor_of(path));
	}
	return rc;
}

SR_PUBLIC int stat(const char *path, struct stat *st)
{
	return stat_at(AT_FDCWD, path, st, 0);
}

SR_PUBLIC int lstat(const char *path, struct stat *st)
{
	return stat_at(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

SR_PUBLIC int fstatat(int dir, const char *path, struct stat *st, int flags)
{
	return stat_at(dir, path, st, flags);
}

_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "one stands for the other");

SR_PUBLIC int stat64(const char *path, struct stat64 *st)
{
	return stat_at(AT_FDCWD, path, (struct stat *)st, 0);
}

SR_PUBLIC int lstat64(const char *path, struct stat64 *st)
{
	return stat_at(AT_FDCWD, path, (struct stat *)st, AT_SYMLINK_NOFOLLOW);
}

SR_PUBLIC int fstatat64(int dir, const char *path, struct stat64 *st, int flags)
{
	return stat_at(dir, path, (struct stat *)st, flags);
}

/* What programs call that were built before glibc 2.33. */
int __xstat(int version, const char *path, struct stat *st);
int __lxstat(int version, const char *path, struct stat *st);
int __fxstatat(int version, int dir, const char *path, struct stat *st, int flags);
int __xstat64(int version, const char *path, struct stat64 *st);
int __lxstat64(int version, const char *path, struct stat64 *st);
int __fxstatat64(int version, int dir, const char *path, struct stat64 *st, int flags);

SR_PUBLIC int __xstat(int version, const char *path, struct stat *st)
{
	(void)version;
	return stat_at(AT_FDCWD, path, st, 0);
}

SR_PUBLIC int __lxstat(int version, const char *path, struct stat *st)
{
	(void)version;
	return stat_at(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

SR_PUBLIC int __fxstatat(int version, int dir, const char *path, struct stat *st, int flags)
{
	(void)version;
	return stat_at(dir, path, st, flags);
}

SR_PUBLIC int __xstat64(int version, const char *path, struct stat64 *st)
{
	return __xstat(version, path, (struct stat *)st);
}

SR_PUBLIC int __lxstat64(int version, const char *path, struct stat64 *st)
{
	return __lxstat(version, path, (struct stat *)st);
}

SR_PUBLIC int __fxstatat64(int version, int dir, const char *path, struct stat64 *st, int flags)
{
	return __fxstatat(version, dir, path, (struct stat *)st, flags);
}

typedef int (*statx_t)(int, const char *, int, unsigned int, struct statx *);

SR_PUBLIC int statx(int dir, const char *path, int flags, unsigned int mask, struct statx *st)
{
	REAL("statx", statx_t);
	const char *there = place(&dir, path);
	int rc = real(dir, there, flags, mask, st);
	if (!rc && there != path && is_device_file(path)) {
		st->stx_mode = S_IFCHR | 0666;
		st->stx_rdev_major = DEVICE_MAJOR;
		st->stx_rdev_minor = minor_of(path);
	}
	return rc;
}

typedef int (*faccessat_t)(int, const char *, int, int);

SR_PUBLIC int faccessat(int dir, const char *path, int mode, int flags)
{
	REAL("faccessat", faccessat_t);
	const char *there = place(&dir, path);
	if (there != path && is_device_file(path))
		mode = F_OK; /* everybody may read and write it */
	return real(dir, there, mode, flags);
}

SR_PUBLIC int access(const char *path, int mode)
{
	return faccessat(AT_FDCWD, path, mode, 0);
}

typedef ssize_t (*readlinkat_t)(int, const char *, char *, size_t);

SR_PUBLIC ssize_t readlinkat(int dir, const char *path, char *buf, size_t size)
{
	REAL("readlinkat", readlinkat_t);
	const char *there = place(&dir, path);
	return real(dir, there, buf, size);
}

SR_PUBLIC ssize_t readlink(const char *path, char *buf, size_t size)
{
	return readlinkat(AT_FDCWD, path, buf, size);
}

/* ls -l asks for access lists, of which there are none. */
ssize_t getxattr(const char *path, const char *name, void *value, size_t size);
ssize_t lgetxattr(const char *path, const char *name, void *value, size_t size);
typedef ssize_t (*getxattr_t)(const char *, const char *, void *, size_t);

static ssize_t no_attribute(void)
{
	errno = ENODATA;
	return -1;
}

SR_PUBLIC ssize_t getxattr(const char *path, const char *name, void *value, size_t size)
{
	REAL("getxattr", getxattr_t);
	return is_ours(path) ? no_attribute() : real(path, name, value, size);
}

SR_PUBLIC ssize_t lgetxattr(const char *path, const char *name, void *value, size_t size)
{
	REAL("lgetxattr", getxattr_t);
	return is_ours(path) ? no_attribute() : real(path, name, value, size);
}
