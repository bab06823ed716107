// SPDX-License-Identifier: Apache-2.0
/*
 * Calls that walk a directory tree or expand patterns: ftw, nftw, fts_* and wordexp. The C library
 * walks the daemon's directory by its real path, /proc/self/fd/N/sys/class/infiniband/…, and the
 * program sees what follows the prefix /proc/self/fd/N.
 */
#include "paths/paths.h"

#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <wordexp.h>

struct real_path {
	char path[SR_PATH_SIZE + 32];
	size_t prefix; /* its length */
};

/* Finds the real path of an emulated one; false if path is not emulated. */
static bool find_real(struct real_path *r, const char *path)
{
	struct sr_path p;
	sr_path_lookup(&p, AT_FDCWD, path);
	if (!p.emulated)
		return false;
	r->prefix = (size_t)sprintf(r->path, "/proc/self/fd/%d", p.dir);
	strcpy(r->path + r->prefix, p.emulated);
	return true;
}

/* Corrects the attributes of a device file, which the C library took from the empty file. */
static void correct_stat(const char *path, struct stat *st)
{
	if (S_ISREG(st->st_mode) && !st->st_size)
		lstat(path, st);
}

typedef int (*ftw_fn)(const char *, const struct stat *, int);
typedef int (*ftw_t)(const char *, ftw_fn, int);
typedef int (*nftw_fn)(const char *, const struct stat *, int, struct FTW *);
typedef int (*nftw_t)(const char *, nftw_fn, int, int);

/* The walk of this thread, whose function the C library calls without an argument of ours. */
static _Thread_local struct walk {
	size_t prefix;
	ftw_fn visit;
	nftw_fn nvisit;
} walk;

static int visit(const char *path, const struct stat *st, int type)
{
	struct walk mine = walk; /* the program's function may walk too */
	struct stat seen = *st;
	correct_stat(path + mine.prefix, &seen);
	int rc = mine.visit(path + mine.prefix, &seen, type);
	walk = mine;
	return rc;
}

static int nvisit(const char *path, const struct stat *st, int type, struct FTW *at)
{
	struct walk mine = walk;
	struct FTW from = {.base = at->base - (int)mine.prefix, .level = at->level};
	struct stat seen = *st;
	correct_stat(path + mine.prefix, &seen);
	int rc = mine.nvisit(path + mine.prefix, &seen, type, &from);
	walk = mine;
	return rc;
}

SR_PUBLIC int ftw(const char *path, ftw_fn fn, int fds)
{
	REAL("ftw", ftw_t);
	struct real_path r;
	if (!find_real(&r, path))
		return real(path, fn, fds);
	walk = (struct walk){.prefix = r.prefix, .visit = fn};
	return real(r.path, visit, fds);
}

SR_PUBLIC int nftw(const char *path, nftw_fn fn, int fds, int flags)
{
	REAL("nftw", nftw_t);
	struct real_path r;
	if (!find_real(&r, path))
		return real(path, fn, fds, flags);
	walk = (struct walk){.prefix = r.prefix, .nvisit = fn};
	return real(r.path, nvisit, fds, flags);
}

_Static_assert(sizeof(struct stat) == sizeof(struct stat64) && sizeof(FTS) == sizeof(FTS64) &&
		       sizeof(FTSENT) == sizeof(FTSENT64),
	       "the 64-bit variants have the same layout");
int ftw64(const char *path, int (*fn)(const char *, const struct stat64 *, int), int fds)
	__attribute__((alias("ftw"), visibility("default")));
int nftw64(const char *path, int (*fn)(const char *, const struct stat64 *, int, struct FTW *),
	   int fds, int flags) __attribute__((alias("nftw"), visibility("default")));

typedef int (*compare_t)(const FTSENT **, const FTSENT **);
typedef FTS *(*fts_open_t)(char *const *, int, compare_t);
typedef FTSENT *(*fts_read_t)(FTS *);
typedef FTSENT *(*fts_children_t)(FTS *, int);
typedef int (*fts_close_t)(FTS *);

enum {
	MAX_TRAVERSALS = 16,
	PREFIX_SIZE = 32,
};

/* The traversals with an emulated root. fts is NULL in those that are not in use. */
static struct traversal {
	_Atomic(FTS *) fts;
	char prefix[PREFIX_SIZE];
	FTSENT *shown; /* of fts_read: its path and those of its parents are without the prefix */
	FTSENT *children; /* of fts_children: those of the list are, too */
} traversals[MAX_TRAVERSALS];

/* With NULL, it finds a traversal that is not in use and gives it to by. */
static struct traversal *find_traversal(FTS *fts, FTS *by)
{
	for (struct traversal *t = traversals; t < traversals + MAX_TRAVERSALS; t++) {
		FTS *want = fts;
		if (atomic_compare_exchange_strong(&t->fts, &want, by))
			return t;
	}
	return NULL;
}

/*
 * Removes n bytes from the beginning of an entry's path, if it has the prefix of an emulated one.
 * The C library must find it unchanged.
 */
static void shift_path(FTSENT *e, long n)
{
	e->fts_path += n;
	e->fts_pathlen = (unsigned short)(e->fts_pathlen - n);
}

static void shift_parents(FTSENT *e, long n)
{
	for (; e && e->fts_level >= FTS_ROOTLEVEL; e = e->fts_parent)
		shift_path(e, n);
}

static void shift_list(FTSENT *e, long n)
{
	for (; e; e = e->fts_link)
		shift_path(e, n);
}

/* Begins a call of the C library. NULL: no root of the traversal is emulated. */
static struct traversal *enter(FTS *fts)
{
	struct traversal *t = find_traversal(fts, fts);
	if (!t)
		return NULL;
	long n = (long)strlen(t->prefix);
	shift_parents(t->shown, -n);
	shift_list(t->children, -n);
	t->shown = t->children = NULL;
	return t;
}

static bool has_prefix(const struct traversal *t, const FTSENT *e)
{
	return t && e && e->fts_path && !strncmp(e->fts_path, t->prefix, strlen(t->prefix));
}

static void free_roots(char **roots)
{
	for (char **p = roots; p && *p; p++)
		free(*p);
	free(roots);
}

/* Copies the roots, with the real paths of those that are emulated, whose prefix it stores. */
static char **real_roots(char *const *paths, char *prefix)
{
	size_t n = 0;
	while (paths[n])
		n++;
	char **roots = calloc(n + 1, sizeof *roots);
	for (size_t i = 0; roots && i < n; i++) {
		struct real_path r;
		bool emulated = find_real(&r, paths[i]);
		roots[i] = strdup(emulated ? r.path : paths[i]);
		if (emulated)
			snprintf(prefix, PREFIX_SIZE, "%.*s", (int)r.prefix, r.path);
		if (!roots[i]) {
			free_roots(roots);
			return NULL;
		}
	}
	return roots;
}

SR_PUBLIC FTS *fts_open(char *const *paths, int options, compare_t compare)
{
	REAL("fts_open", fts_open_t);
	char prefix[PREFIX_SIZE] = "";
	char **roots = real_roots(paths, prefix);
	FTS *fts = roots ? real(roots, options, compare) : NULL;
	free_roots(roots);
	if (!fts || !prefix[0])
		return fts;
	struct traversal *t = find_traversal(NULL, fts);
	if (!t) {
		fts_close(fts);
		errno = EMFILE;
		return NULL;
	}
	memcpy(t->prefix, prefix, sizeof prefix);
	return fts;
}

SR_PUBLIC FTSENT *fts_read(FTS *fts)
{
	REAL("fts_read", fts_read_t);
	struct traversal *t = enter(fts);
	FTSENT *e = real(fts);
	if (!has_prefix(t, e))
		return e;
	t->shown = e;
	shift_parents(e, (long)strlen(t->prefix));
	if (e->fts_info == FTS_F) {
		correct_stat(e->fts_path, e->fts_statp);
		if (!S_ISREG(e->fts_statp->st_mode))
			e->fts_info = FTS_DEFAULT;
	}
	return e;
}

SR_PUBLIC FTSENT *fts_children(FTS *fts, int options)
{
	REAL("fts_children", fts_children_t);
	struct traversal *t = enter(fts);
	FTSENT *list = real(fts, options);
	if (!has_prefix(t, list))
		return list;
	t->children = list;
	shift_list(list, (long)strlen(t->prefix));
	return list;
}

SR_PUBLIC int fts_close(FTS *fts)
{
	REAL("fts_close", fts_close_t);
	enter(fts);
	find_traversal(fts, NULL);
	return real(fts);
}

FTS64 *fts64_open(char *const *paths, int options,
		  int (*compare)(const FTSENT64 **, const FTSENT64 **))
	__attribute__((alias("fts_open"), visibility("default")));
FTSENT64 *fts64_read(FTS64 *fts) __attribute__((alias("fts_read"), visibility("default")));
FTSENT64 *fts64_children(FTS64 *fts, int options)
	__attribute__((alias("fts_children"), visibility("default")));
int fts64_close(FTS64 *fts) __attribute__((alias("fts_close"), visibility("default")));

typedef int (*wordexp_fn)(const char *, wordexp_t *, int);

/* Where a word ends, as far as it matters for its beginning. */
#define WORD_END " \t\n\"'"

/*
 * Copies words, with the real paths of those that are emulated, whose prefix it stores. NULL: there
 * is none, or no memory. What a shell executes is left alone: it sees emulated paths itself.
 */
static char *real_words(const char *words, char *prefix)
{
	if (!strstr(words, "infiniband") || strchr(words, '`') || strstr(words, "$("))
		return NULL;
	char *out = NULL;
	size_t size;
	FILE *f = open_memstream(&out, &size);
	if (!f)
		return NULL;
	for (const char *w = words; *w; w++) {
		struct real_path r;
		char start[SR_PATH_SIZE];
		snprintf(start, sizeof start, "%.*s", (int)strcspn(w, WORD_END), w);
		if (*w == '/' && (w == words || strchr(WORD_END, w[-1])) && find_real(&r, start)) {
			snprintf(prefix, PREFIX_SIZE, "%.*s", (int)r.prefix, r.path);
			fputs(prefix, f);
		}
		fputc(*w, f);
	}
	if (!fclose(f) && prefix[0])
		return out;
	free(out);
	return NULL;
}

/* The C library's wordexp would not call the interposed glob. */
SR_PUBLIC int wordexp(const char *words, wordexp_t *w, int flags)
{
	REAL("wordexp", wordexp_fn);
	char prefix[PREFIX_SIZE] = "";
	char *changed = real_words(words, prefix);
	int rc = real(changed ? changed : words, w, flags);
	free(changed);
	size_t n = strlen(prefix), first = flags & WRDE_DOOFFS ? w->we_offs : 0;
	for (size_t i = first; !rc && n && i < first + w->we_wordc; i++) {
		char *word = w->we_wordv[i];
		if (!strncmp(word, prefix, n))
			memmove(word, word + n, strlen(word + n) + 1);
	}
	return rc;
}
