// SPDX-License-Identifier: Apache-2.0
/*
 * Calls with the path of a file: open, stat, readlink and the like. Emulated files are
 * read-only. A device file looks like a character device but cannot be opened, since a program
 * would talk to the kernel's uverbs interface through it.
 */
#include "paths/paths.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DEVICE_MAJOR  231 /* of the kernel's uverbs devices */
#define FIRST_MINOR   192
#define RDMA_CM_MINOR 0xfff /* above those of all devices */

/* The minor number of a device file. */
static unsigned int minor_of(const char *path)
{
	const char *name = strrchr(path, '/');
	unsigned int index;
	if (sscanf(name ? name + 1 : path, "uverbs%u", &index) == 1)
		return FIRST_MINOR + index;
	return RDMA_CM_MINOR;
}

/* The mode is an argument of open and openat only if they may create a file. */
#define MODE(flags, last)                                                                          \
	mode_t mode = 0;                                                                           \
	if ((flags)&O_CREAT || ((flags)&O_TMPFILE) == O_TMPFILE) {                                 \
		va_list args;                                                                      \
		va_start(args, last);                                                              \
		mode = va_arg(args, mode_t);                                                       \
		va_end(args);                                                                      \
	}

typedef int (*openat_t)(int, const char *, int, ...);

/* Returns the errno with which opening an emulated file fails, or 0. */
static int open_error(const struct sr_path *p, int flags)
{
	bool writes = (flags & O_ACCMODE) != O_RDONLY ||
		      flags & (O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY));
	if (flags & O_PATH || (!writes && !sr_is_device_file(p)))
		return 0;
	if (faccessat(AT_FDCWD, p->emulated, F_OK, 0))
		return flags & O_CREAT ? EACCES : ENOENT;
	return sr_is_device_file(p) ? ENXIO : EACCES;
}

/*
 * The attributes of an unused GID exist but cannot be read: their emulated files are empty.
 * Replaces the descriptor of such a file by one that reads as EINVAL, as the kernel's does: an
 * epoll instance has no data to read.
 */
static int unreadable_if_empty(int fd, int flags)
{
	struct stat st;
	if (fd < 0 || flags & O_PATH || fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size)
		return fd;
	close(fd);
	return epoll_create1(flags & O_CLOEXEC ? EPOLL_CLOEXEC : 0);
}

static int open_at(int dir, const char *path, int flags, mode_t mode)
{
	REAL("openat", openat_t);
	struct sr_path p;
	sr_path_lookup(&p, dir, path);
	int error = p.emulated ? open_error(&p, flags) : 0;
	if (error) {
		errno = error;
		return -1;
	}
	int fd = real(p.dir, p.path, flags, mode);
	return p.emulated ? unreadable_if_empty(fd, flags) : fd;
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

/* Called by programs built with _FORTIFY_SOURCE. Without a mode, nothing is created. */
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

/* The C library's fopen would not call the interposed open. */
static int open_for(const char *path, const char *mode)
{
	int flags = mode[0] == 'r' ? 0 : O_CREAT;
	flags |= mode[0] != 'r' || strchr(mode, '+') ? O_RDWR : O_RDONLY;
	return open_at(AT_FDCWD, path, flags | O_CLOEXEC, 0);
}

static FILE *open_stream(const char *path, const char *mode)
{
	int fd = open_for(path, mode);
	return fd < 0 ? NULL : fdopen(fd, "r");
}

static bool is_emulated(const char *path)
{
	struct sr_path p;
	sr_path_lookup(&p, AT_FDCWD, path);
	return p.emulated;
}

SR_PUBLIC FILE *fopen(const char *path, const char *mode)
{
	REAL("fopen", fopen_t);
	return is_emulated(path) ? open_stream(path, mode) : real(path, mode);
}

SR_PUBLIC FILE *fopen64(const char *path, const char *mode)
{
	REAL("fopen64", fopen_t);
	return is_emulated(path) ? open_stream(path, mode) : real(path, mode);
}

static void close_quietly(int fd)
{
	int saved = errno;
	close(fd);
	errno = saved;
}

typedef FILE *(*freopen_t)(const char *, const char *, FILE *);

/* The stream is opened on another file, whose descriptor is replaced. If it fails, it is closed. */
static FILE *reopen_stream(freopen_t real, const char *path, const char *mode, FILE *stream)
{
	int fd = open_for(path, mode), error = errno;
	FILE *f = real(fd < 0 ? "" : "/dev/null", strchr(mode, 'e') ? "re" : "r", stream);
	if (f)
		dup3(fd, fileno(f), strchr(mode, 'e') ? O_CLOEXEC : 0);
	if (fd < 0)
		errno = error;
	else
		close_quietly(fd);
	return f;
}

SR_PUBLIC FILE *freopen(const char *path, const char *mode, FILE *stream)
{
	REAL("freopen", freopen_t);
	return is_emulated(path) ? reopen_stream(real, path, mode, stream)
				 : real(path, mode, stream);
}

SR_PUBLIC FILE *freopen64(const char *path, const char *mode, FILE *stream)
{
	REAL("freopen64", freopen_t);
	return is_emulated(path) ? reopen_stream(real, path, mode, stream)
				 : real(path, mode, stream);
}

/*
 * Decides whether an empty file, named relative to a descriptor and located on file system on,
 * is an emulated device file.
 */
static bool is_device_in(int dir, const char *name, dev_t on)
{
	struct stat have, want;
	if (!name || !*name || strchr(name, '/') || !sr_is_on_tree(on))
		return false;
	return !fstatat(dir, "", &have, AT_EMPTY_PATH) && S_ISDIR(have.st_mode) &&
	       !stat("/dev/infiniband", &want) && have.st_dev == want.st_dev &&
	       have.st_ino == want.st_ino;
}

typedef int (*fstatat_t)(int, const char *, struct stat *, int);

static int stat_at(int dir, const char *path, struct stat *st, int flags)
{
	REAL("fstatat", fstatat_t);
	struct sr_path p;
	sr_path_lookup(&p, dir, path);
	int rc = real(p.dir, p.path, st, flags);
	if (rc || !S_ISREG(st->st_mode) || st->st_size)
		return rc;
	if (sr_is_device_file(&p) || (!p.emulated && is_device_in(dir, path, st->st_dev))) {
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

_Static_assert(sizeof(struct stat) == sizeof(struct stat64),
	       "the 64-bit variant has the same layout");

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

/* Called by programs built before glibc 2.33. */
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
	struct sr_path p;
	sr_path_lookup(&p, dir, path);
	int rc = real(p.dir, p.path, flags, mask, st);
	if (rc || !S_ISREG(st->stx_mode) || st->stx_size)
		return rc;
	dev_t on = makedev(st->stx_dev_major, st->stx_dev_minor);
	if (sr_is_device_file(&p) || (!p.emulated && is_device_in(dir, path, on))) {
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
	struct sr_path p;
	sr_path_lookup(&p, dir, path);
	if (sr_is_device_file(&p))
		mode = F_OK; /* its mode is 0666 */
	return real(p.dir, p.path, mode, flags);
}

SR_PUBLIC int access(const char *path, int mode)
{
	return faccessat(AT_FDCWD, path, mode, 0);
}

SR_PUBLIC int euidaccess(const char *path, int mode)
{
	return faccessat(AT_FDCWD, path, mode, AT_EACCESS);
}

SR_PUBLIC int eaccess(const char *path, int mode)
{
	return faccessat(AT_FDCWD, path, mode, AT_EACCESS);
}

typedef ssize_t (*readlinkat_t)(int, const char *, char *, size_t);

SR_PUBLIC ssize_t readlinkat(int dir, const char *path, char *buf, size_t size)
{
	REAL("readlinkat", readlinkat_t);
	struct sr_path p;
	sr_path_lookup(&p, dir, path);
	return real(p.dir, p.path, buf, size);
}

SR_PUBLIC ssize_t readlink(const char *path, char *buf, size_t size)
{
	return readlinkat(AT_FDCWD, path, buf, size);
}

/* Called by programs built with _FORTIFY_SOURCE; room is the size of the buffer. */
ssize_t __readlink_chk(const char *path, char *buf, size_t size, size_t room);
ssize_t __readlinkat_chk(int dir, const char *path, char *buf, size_t size, size_t room);

SR_PUBLIC ssize_t __readlinkat_chk(int dir, const char *path, char *buf, size_t size, size_t room)
{
	if (size > room)
		abort();
	return readlinkat(dir, path, buf, size);
}

SR_PUBLIC ssize_t __readlink_chk(const char *path, char *buf, size_t size, size_t room)
{
	return __readlinkat_chk(AT_FDCWD, path, buf, size, room);
}

typedef int (*statfs_t)(const char *, struct statfs *);
typedef int (*statvfs_t)(const char *, struct statvfs *);

/* Opens an emulated file for a call that has no variant relative to a directory. */
static int open_path_fd(const struct sr_path *p)
{
	return open_at(p->dir, p->path, O_PATH | O_CLOEXEC, 0);
}

/* Some programs check that a path below /sys is on sysfs. */
SR_PUBLIC int statfs(const char *path, struct statfs *st)
{
	REAL("statfs", statfs_t);
	struct sr_path p;
	sr_path_lookup(&p, AT_FDCWD, path);
	if (!p.emulated)
		return real(p.path, st);
	int fd = open_path_fd(&p);
	if (fd < 0)
		return -1;
	int rc = fstatfs(fd, st);
	close_quietly(fd);
	if (!rc && !strncmp(p.emulated, "/sys/", 5))
		st->f_type = SYSFS_MAGIC;
	return rc;
}

SR_PUBLIC int statvfs(const char *path, struct statvfs *st)
{
	REAL("statvfs", statvfs_t);
	struct sr_path p;
	sr_path_lookup(&p, AT_FDCWD, path);
	if (!p.emulated)
		return real(p.path, st);
	int fd = open_path_fd(&p);
	if (fd < 0)
		return -1;
	int rc = fstatvfs(fd, st);
	close_quietly(fd);
	return rc;
}

_Static_assert(sizeof(struct statfs) == sizeof(struct statfs64) &&
		       sizeof(struct statvfs) == sizeof(struct statvfs64),
	       "the 64-bit variant has the same layout");
int statfs64(const char *path, struct statfs64 *st)
	__attribute__((alias("statfs"), visibility("default")));
int statvfs64(const char *path, struct statvfs64 *st)
	__attribute__((alias("statvfs"), visibility("default")));

/* ls -l reads access control lists; emulated files have none. */
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
	return is_emulated(path) ? no_attribute() : real(path, name, value, size);
}

SR_PUBLIC ssize_t lgetxattr(const char *path, const char *name, void *value, size_t size)
{
	REAL("lgetxattr", getxattr_t);
	return is_emulated(path) ? no_attribute() : real(path, name, value, size);
}
