// SPDX-License-Identifier: Apache-2.0
/*
 * Calls that read directories or resolve a path component by component. Their implementations in
 * the C library do not call the interposed functions, so they are implemented here for emulated
 * paths.
 */
#include "paths/paths.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef DIR *(*opendir_t)(const char *);

static DIR *open_dir(int dir, const char *path)
{
	int fd = openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? NULL : fdopendir(fd);
}

SR_PUBLIC DIR *opendir(const char *path)
{
	REAL("opendir", opendir_t);
	return sr_path_emulated(AT_FDCWD, path) ? open_dir(AT_FDCWD, path) : real(path);
}

typedef int (*filter_t)(const struct dirent *);
typedef int (*compare_t)(const struct dirent **, const struct dirent **);
typedef int (*scandir_t)(const char *, struct dirent ***, filter_t, compare_t);
typedef int (*scandirat_t)(int, const char *, struct dirent ***, filter_t, compare_t);

/* Appends a copy of an entry to a list of n. */
static int append_entry(struct dirent ***list, int n, const struct dirent *e)
{
	struct dirent **longer = realloc(*list, ((size_t)n + 1) * sizeof *longer);
	if (!longer)
		return ENOMEM;
	*list = longer;
	longer[n] = malloc(e->d_reclen);
	if (!longer[n])
		return ENOMEM;
	memcpy(longer[n], e, e->d_reclen);
	return 0;
}

static int compare_entries(const void *a, const void *b, void *compare)
{
	compare_t f = *(compare_t *)compare;
	return f((const struct dirent **)a, (const struct dirent **)b);
}

static int read_all(DIR *d, struct dirent ***list, filter_t filter)
{
	int n = 0, error = 0;
	*list = NULL;
	while (!error) {
		errno = 0;
		struct dirent *e = readdir(d);
		if (!e) {
			error = errno;
			break;
		}
		if (filter && !filter(e))
			continue;
		error = append_entry(list, n, e);
		if (!error)
			n++;
	}
	if (!error && !*list) /* the caller frees an empty list too */
		*list = malloc(sizeof **list);
	if (!error)
		return n;
	while (n)
		free((*list)[--n]);
	free(*list);
	errno = error;
	return -1;
}

static int scan_dir(int dir, const char *path, struct dirent ***out, filter_t filter,
		    compare_t compare)
{
	struct dirent **list;
	DIR *d = open_dir(dir, path);
	if (!d)
		return -1;
	int saved = errno, n = read_all(d, &list, filter), error = errno;
	closedir(d);
	errno = n < 0 ? error : saved;
	if (n < 0)
		return -1;
	if (compare && n)
		qsort_r(list, (size_t)n, sizeof *list, compare_entries, &compare);
	*out = list;
	return n;
}

SR_PUBLIC int scandir(const char *path, struct dirent ***list, filter_t filter, compare_t compare)
{
	REAL("scandir", scandir_t);
	return sr_path_emulated(AT_FDCWD, path) ? scan_dir(AT_FDCWD, path, list, filter, compare)
						: real(path, list, filter, compare);
}

SR_PUBLIC int scandirat(int dir, const char *path, struct dirent ***list, filter_t filter,
			compare_t compare)
{
	REAL("scandirat", scandirat_t);
	return sr_path_emulated(dir, path) ? scan_dir(dir, path, list, filter, compare)
					   : real(dir, path, list, filter, compare);
}

_Static_assert(sizeof(struct dirent) == sizeof(struct dirent64) &&
		       offsetof(struct dirent, d_name) == offsetof(struct dirent64, d_name),
	       "the 64-bit variant has the same layout");
int scandir64(const char *path, struct dirent64 ***list, int (*filter)(const struct dirent64 *),
	      int (*compare)(const struct dirent64 **, const struct dirent64 **))
	__attribute__((alias("scandir"), visibility("default")));
int scandirat64(int dir, const char *path, struct dirent64 ***list,
		int (*filter)(const struct dirent64 *),
		int (*compare)(const struct dirent64 **, const struct dirent64 **))
	__attribute__((alias("scandirat"), visibility("default")));

typedef int (*error_fn_t)(const char *, int);
typedef int (*glob_t_)(const char *, int, error_fn_t, glob_t *);

static void *glob_open(const char *path)
{
	return opendir(path);
}

static struct dirent *glob_read(void *d)
{
	return readdir(d);
}

static void glob_close(void *d)
{
	closedir(d);
}

/* With GLOB_ALTDIRFUNC the C library accesses files through the functions it is given. */
SR_PUBLIC int glob(const char *pattern, int flags, error_fn_t error_fn, glob_t *g)
{
	REAL("glob", glob_t_);
	if (!sr_path_emulated(AT_FDCWD, pattern) || flags & GLOB_ALTDIRFUNC)
		return real(pattern, flags, error_fn, g);
	g->gl_opendir = glob_open;
	g->gl_readdir = glob_read;
	g->gl_closedir = glob_close;
	g->gl_stat = stat;
	g->gl_lstat = lstat;
	return real(pattern, flags | GLOB_ALTDIRFUNC, error_fn, g);
}

_Static_assert(sizeof(glob_t) == sizeof(glob64_t), "the 64-bit variant has the same layout");
int glob64(const char *pattern, int flags, error_fn_t error_fn, glob64_t *g)
	__attribute__((alias("glob"), visibility("default")));

typedef int (*chdir_t)(const char *);

/* Afterwards, relative paths lead to the daemon's directory without redirection. */
SR_PUBLIC int chdir(const char *path)
{
	REAL("chdir", chdir_t);
	struct sr_path p;
	sr_path_lookup(&p, AT_FDCWD, path);
	if (!p.emulated)
		return real(p.path);
	int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	int rc = fchdir(fd), error = errno;
	close(fd);
	errno = error;
	return rc;
}

typedef char *(*realpath_t)(const char *, char *);
typedef char *(*realpath_chk_t)(const char *, char *, size_t);

/*
 * Shortens the path of a link to the directory where its target begins, and returns the target
 * from there. Emulated links are absolute paths of the kernel, or have ".." only at the beginning.
 */
static const char *link_target(char *path, const char *link)
{
	if (link[0] == '/') {
		*path = 0;
		return link;
	}
	strrchr(path, '/')[0] = 0;
	for (; !strncmp(link, "../", 3) && *path; link += 3)
		strrchr(path, '/')[0] = 0;
	if (strcmp(link, "..")) {
		strcat(path, "/");
		return link;
	}
	if (*path)
		strrchr(path, '/')[0] = 0;
	return "";
}

/*
 * Resolves the first symbolic link in a path and appends the rest of the path. False: there is
 * none.
 */
static bool follow_link(const char *path, char *to, size_t size)
{
	char step[SR_PATH_SIZE], link[SR_PATH_SIZE];
	for (const char *end = path; *end;) {
		end += 1 + strcspn(end + 1, "/");
		memcpy(step, path, (size_t)(end - path));
		step[end - path] = 0;
		ssize_t n = readlink(step, link, sizeof link - 1);
		if (n <= 0)
			continue;
		link[n] = 0;
		const char *target = link_target(step, link);
		if (snprintf(to, size, "%s%s%s", step, target, end) < (int)size)
			return true;
	}
	return false;
}

static char *resolve(const struct sr_path *p, char *out)
{
	char to[PATH_MAX];
	struct stat st;
	if (follow_link(p->emulated, to, sizeof to))
		return realpath(to, out);
	if (stat(p->emulated, &st))
		return NULL;
	return out ? strcpy(out, p->emulated) : strdup(p->emulated);
}

SR_PUBLIC char *realpath(const char *path, char *out)
{
	REAL("realpath", realpath_t);
	struct sr_path p;
	sr_path_lookup(&p, AT_FDCWD, path);
	return p.emulated ? resolve(&p, out) : real(p.path, out);
}

SR_PUBLIC char *canonicalize_file_name(const char *path)
{
	return realpath(path, NULL);
}

/* Called by programs built with _FORTIFY_SOURCE; room is the size of the buffer. */
char *__realpath_chk(const char *path, char *out, size_t room);

SR_PUBLIC char *__realpath_chk(const char *path, char *out, size_t room)
{
	if (room < PATH_MAX)
		abort();
	return realpath(path, out);
}
