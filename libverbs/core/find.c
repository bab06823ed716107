// SPDX-License-Identifier: Apache-2.0
/*
 * The places where internal/control/find.go looks, in the same order and with the same checks: the
 * daemon of every user's programs, then one of this user alone, whose directory no other user can
 * have made or can replace.
 *
 * System calls that libverbs/paths redirects are made directly: it may be the caller.
 */
#include "core/find.h"
#include "core/system.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEFAULT_SOCKET "/run/softroce/softroce.sock"
#define USER_DIR_NAMES 10 /* another user may have taken the first ones */

/* What a user's socket adds to the directory for temporary files, at most. */
#define SOCKET_ROOM (sizeof "/softroce-4294967295.9/socket" - 1)

static int open_directory(int at, const char *path)
{
	return (int)sr_system_call(SYS_openat, at, (long)path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0,
				   0, 0);
}

static bool inspect(int dir, const char *path, int flags, struct statx *st)
{
	return !sr_system_call(SYS_statx, dir, (long)path, flags, STATX_BASIC_STATS, (long)st, 0);
}

/* Whether no other user can replace what is in a directory, or where a link leads. */
static bool safe(const struct statx *st)
{
	bool link = S_ISLNK(st->stx_mode);
	bool sticky = S_ISDIR(st->stx_mode) && st->stx_mode & S_ISVTX;
	return (!st->stx_uid || st->stx_uid == geteuid()) &&
	       (link || sticky || !(st->stx_mode & S_IWOTH));
}

/* Whether a path and the directories and links of which it consists are safe. */
static bool safe_names(const char *path)
{
	char name[PATH_MAX];
	struct statx st;
	if (snprintf(name, sizeof name, "%s", path) >= (int)sizeof name)
		return false;
	while (inspect(AT_FDCWD, name, AT_SYMLINK_NOFOLLOW, &st) && safe(&st)) {
		char *slash = strrchr(name, '/');
		if (!name[1])
			return true;
		slash[slash == name] = 0;
	}
	return false;
}

/* Whether a directory and those above it are safe, however its path leads there. */
static bool safe_directories(const char *path)
{
	struct statx st, above;
	int fd = open_directory(AT_FDCWD, path);
	bool ok = fd >= 0 && inspect(fd, "", AT_EMPTY_PATH, &st) && safe(&st);
	while (ok) {
		int up = open_directory(fd, "..");
		close(fd);
		fd = up;
		ok = fd >= 0 && inspect(fd, "", AT_EMPTY_PATH, &above) && safe(&above);
		if (ok && above.stx_ino == st.stx_ino && above.stx_dev_major == st.stx_dev_major &&
		    above.stx_dev_minor == st.stx_dev_minor)
			break; /* the root */
		st = above;
	}
	if (fd >= 0)
		close(fd);
	return ok;
}

static bool trusted(const char *path)
{
	return *path == '/' && safe_names(path) && safe_directories(path);
}

/* The directory for temporary files in which this user's directory is. */
static const char *temporary(void)
{
	const char *dir = getenv("TMPDIR");
	if (dir && strlen(dir) + SOCKET_ROOM < sizeof(sr_socket_path) && trusted(dir) &&
	    !sr_system_call(SYS_faccessat, AT_FDCWD, (long)dir, W_OK | X_OK, 0, 0, 0))
		return dir;
	return "/tmp";
}

/* Adds the socket in a directory that only this user has access to. */
static int add(sr_socket_path list[], int n, const char *dir)
{
	struct statx st;
	if (snprintf(list[n], sizeof list[n], "%s/socket", dir) >= (int)sizeof list[n])
		return n;
	bool private = inspect(AT_FDCWD, dir, AT_SYMLINK_NOFOLLOW, &st) && S_ISDIR(st.stx_mode) &&
		       st.stx_uid == geteuid() && !(st.stx_mode & (S_IRWXG | S_IRWXO));
	return n + private;
}

int sr_sockets(sr_socket_path list[SR_MAX_SOCKETS])
{
	char dir[sizeof *list];
	struct statx st;
	int n = 0;
	strcpy(list[n++], DEFAULT_SOCKET);
	const char *session = getenv("XDG_RUNTIME_DIR");
	if (session && trusted(session) && inspect(AT_FDCWD, session, 0, &st) &&
	    st.stx_uid == geteuid() &&
	    snprintf(dir, sizeof dir, "%s/softroce", session) < (int)sizeof dir)
		n = add(list, n, dir);
	const char *tmp = temporary();
	int usual = snprintf(dir, sizeof dir, "%s/softroce-%u", tmp, geteuid());
	n = add(list, n, dir);
	for (int i = 1; i < USER_DIR_NAMES; i++) {
		snprintf(dir + usual, sizeof dir - usual, ".%d", i);
		n = add(list, n, dir);
	}
	return n;
}
