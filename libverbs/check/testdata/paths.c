// SPDX-License-Identifier: Apache-2.0
/*
 * Device directories as seen by a program with the library preloaded, through each interposed
 * call, and files of the program, which must not be affected.
 */
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <wordexp.h>

#define CLASS "/sys/class/infiniband"

static int by_name(const struct dirent *e)
{
	return !strncmp(e->d_name, "nic", 3);
}

static void directories(void)
{
	struct dirent **list;
	glob_t g;
	int n = scandir(CLASS, &list, by_name, alphasort);
	CHECK(n == 2 && !strcmp(list[0]->d_name, "nic0") && !strcmp(list[1]->d_name, "nic1"));
	for (int i = 0; i < n; i++)
		free(list[i]);
	if (n >= 0)
		free(list);
	FAILS(ENOENT, scandir(CLASS "/nic0/none", &list, NULL, NULL) == -1);

	CHECK(!glob(CLASS "/*/ports/*/state", 0, NULL, &g) && g.gl_pathc == 2);
	CHECK(!strcmp(g.gl_pathv[1], CLASS "/nic1/ports/1/state"));
	globfree(&g);
	CHECK(glob(CLASS "/none*", 0, NULL, &g) == GLOB_NOMATCH);
	globfree(&g);

	DIR *d = opendir("/dev/infiniband");
	REQUIRE(d);
	int seen = 0;
	for (struct dirent *e; (e = readdir(d));) {
		struct stat st;
		if (e->d_name[0] == '.')
			continue;
		CHECK(!fstatat(dirfd(d), e->d_name, &st, 0) && S_ISCHR(st.st_mode));
		seen++;
	}
	CHECK(seen == 3);
	closedir(d);
}

/*
 * The GID table has files for all indices. The first three are of RoCE v2, those 32 behind of RoCE
 * v1. The attributes of an unused one give EINVAL.
 */
static void gid_table(void)
{
	char buf[64], path[PATH_MAX];
	for (int i = 0; i < 256; i++) {
		bool used = i % 32 < 3 && i < 64;
		snprintf(path, sizeof path, CLASS "/nic0/ports/1/gids/%d", i);
		int fd = open(path, O_RDONLY);
		CHECK(fd >= 0 && read(fd, buf, sizeof buf) == 40);
		CHECK(used || !memcmp(buf, "0000:0000:0000:0000:0000:0000:0000:0000\n", 40));
		close(fd);
		snprintf(path, sizeof path, CLASS "/nic0/ports/1/gid_attrs/types/%d", i);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		CHECK(fd >= 0);
		if (i < 3)
			CHECK(read(fd, buf, sizeof buf) == 8 && !memcmp(buf, "RoCE v2\n", 8));
		else if (used)
			CHECK(read(fd, buf, sizeof buf) == 11 && !memcmp(buf, "IB/RoCE v1\n", 11));
		else
			FAILS(EINVAL, read(fd, buf, sizeof buf) < 0);
		close(fd);
	}
	FAILS(ENOENT, access(CLASS "/nic0/ports/1/gids/256", F_OK) < 0);
	FILE *f = fopen(CLASS "/nic0/ports/1/gid_attrs/ndevs/200", "r");
	CHECK(f);
	FAILS(EINVAL, f && !fgets(buf, sizeof buf, f));
	if (f)
		fclose(f);
}

static void path_names(void)
{
	char path[PATH_MAX], here[PATH_MAX];
	struct stat st;
	struct statx stx;
	CHECK(realpath(CLASS "/nic0/../nic1/./ports", path) && !strcmp(path, CLASS "/nic1/ports"));
	FAILS(ENOENT, !realpath(CLASS "/nic7", path));
	CHECK(!access("//sys/./class//infiniband/nic0/", R_OK));
	CHECK(!eaccess(CLASS "/nic0/node_guid", R_OK));
	FAILS(ENOENT, access(CLASS "/nic7", F_OK) < 0);
	FAILS(ENOENT, access(CLASS "x", F_OK) < 0);
	/* ".." leads back to directories of the kernel. */
	CHECK(!access(CLASS "/..", F_OK) && !access(CLASS "/nic0/../../net", F_OK));
	CHECK(!stat(CLASS "/../../..", &st) && S_ISDIR(st.st_mode));

	CHECK(!stat("/dev/infiniband/uverbs1", &st) && S_ISCHR(st.st_mode));
	CHECK(st.st_rdev == makedev(231, 193));
	CHECK(!statx(AT_FDCWD, "/dev/infiniband/uverbs1", 0, STATX_BASIC_STATS, &stx));
	CHECK(S_ISCHR(stx.stx_mode) && stx.stx_rdev_minor == 193);

	REQUIRE(getcwd(here, sizeof here) && !chdir(CLASS "/nic0/ports"));
	CHECK(!access("1/gids/0", R_OK));
	FAILS(ENOENT, chdir(CLASS "/nic7") < 0);
	REQUIRE(!chdir(here));
}

/* Paths relative to directories of the kernel: the working directory or a descriptor. */
static void relative(void)
{
	char here[PATH_MAX], path[PATH_MAX];
	struct dirent **list;
	struct stat st;
	glob_t g;
	REQUIRE(getcwd(here, sizeof here) && !chdir("/sys/class"));
	CHECK(!access("infiniband/nic0/node_guid", R_OK));
	CHECK(!access("./infiniband/../infiniband/nic1", F_OK));
	CHECK(!access("infiniband/../net", F_OK));
	FAILS(ENOENT, access("infiniband/nic7", F_OK) < 0);
	CHECK(realpath("infiniband/nic1", path) && !strcmp(path, CLASS "/nic1"));
	CHECK(!glob("infiniband/nic*", 0, NULL, &g) && g.gl_pathc == 2);
	globfree(&g);
	DIR *d = opendir("infiniband");
	CHECK(d);
	if (d)
		closedir(d);
	CHECK(!chdir("infiniband/nic0") && !access("node_guid", R_OK));
	REQUIRE(!chdir("/dev"));
	CHECK(!stat("infiniband/uverbs0", &st) && S_ISCHR(st.st_mode));
	FAILS(ENXIO, open("infiniband/uverbs0", O_RDWR) < 0);
	REQUIRE(!chdir(here));
	FAILS(ENOENT, access("infiniband/nic0", F_OK) < 0);

	int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(root >= 0);
	CHECK(!faccessat(root, "sys/class/infiniband/nic0", F_OK, 0));
	int n = scandirat(root, "sys/class/infiniband", &list, by_name, alphasort);
	CHECK(n == 2);
	for (int i = 0; i < n; i++)
		free(list[i]);
	if (n >= 0)
		free(list);
	FAILS(EBADF, faccessat(999, "infiniband/nic0", F_OK, 0) < 0);
	close(root);
}

static void file_systems(void)
{
	struct statfs fs, sys;
	struct statvfs vfs;
	REQUIRE(!statfs("/sys", &sys));
	CHECK(!statfs(CLASS "/nic0", &fs) && fs.f_type == sys.f_type);
	CHECK(!statvfs(CLASS "/nic0", &vfs) && !statvfs("/dev/infiniband/uverbs0", &vfs));
	FAILS(ENOENT, statfs(CLASS "/nic7", &fs) < 0);
	CHECK(!statfs("/", &fs) && !statvfs("/", &vfs));
}

static void write_access(void)
{
	FAILS(ENXIO, open("/dev/infiniband/uverbs0", O_RDWR) < 0);
	FAILS(EACCES, open(CLASS "/nic0/node_guid", O_RDWR) < 0);
	FAILS(EACCES, open(CLASS "/nic0/node_guid", O_RDONLY | O_TRUNC) < 0);
	FAILS(EACCES, open(CLASS "/new", O_CREAT | O_RDWR, 0600) < 0);
	FAILS(EACCES, !fopen(CLASS "/nic0/node_guid", "r+"));
	FAILS(EACCES, !fopen(CLASS "/new", "w"));
	FAILS(ENOENT, !fopen(CLASS "/new", "r"));
	FAILS(ENOENT, access(CLASS "/new", F_OK) < 0);
	char text[64] = "";
	FILE *f = fopen(CLASS "/nic0/ports/1/state", "re");
	CHECK(f && fgets(text, sizeof text, f) && !strcmp(text, "4: ACTIVE\n"));
	if (f)
		fclose(f);
}

/*
 * Daemon-like programs close all descriptors. The number of the library's descriptor is then
 * reused by the program.
 */
static void closed_descriptors(void)
{
	struct stat before, after;
	FILE *f = tmpfile();
	REQUIRE(f);
	REQUIRE(!access(CLASS, F_OK));
	for (int fd = 3; fd < 64; fd++)
		if (fd != fileno(f))
			close(fd);
	int own[61];
	for (int i = 0; i < 61; i++)
		own[i] = dup(fileno(f));
	REQUIRE(!fstat(fileno(f), &before));
	usleep(60000); /* until the library asks the daemon again */
	CHECK(!access(CLASS "/nic0", F_OK));
	for (int i = 0; i < 61; i++) {
		CHECK(!fstat(own[i], &after) && after.st_ino == before.st_ino);
		close(own[i]);
	}
	CHECK(!access(CLASS "/nic0", F_OK));
	fclose(f);
}

/* What walks saw. */
static int nodes, ports, devices;

static void saw(const char *path, const struct stat *st, int base)
{
	CHECK(!strncmp(path, CLASS, strlen(CLASS)) ||
	      !strncmp(path, "/dev/infiniband", strlen("/dev/infiniband")));
	CHECK(base < 0 || (path[base - 1] == '/' && !strchr(path + base, '/')));
	nodes += !strcmp(path, CLASS "/nic1/node_guid");
	ports += !strcmp(path, CLASS "/nic0/ports/1") && S_ISDIR(st->st_mode);
	devices += S_ISCHR(st->st_mode);
}

static int saw_ftw(const char *path, const struct stat *st, int type)
{
	(void)type;
	saw(path, st, -1);
	return 0;
}

static int saw_nftw(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)type;
	saw(path, st, at->base);
	return at->level == 1 && !strcmp(path + at->base, "uverbs1") ? 7 : 0;
}

static void walks(void)
{
	char *roots[] = {"/dev/infiniband", CLASS, NULL};
	CHECK(!ftw(CLASS, saw_ftw, 8) && nodes == 1 && ports == 1);
	CHECK(!nftw(CLASS, saw_nftw, 8, FTW_PHYS) && nodes == 2 && ports == 2);
	CHECK(nftw("/dev/infiniband", saw_nftw, 8, FTW_PHYS) == 7 && devices > 0);
	FAILS(ENOENT, ftw(CLASS "/nic7", saw_ftw, 8) == -1);

	devices = 0;
	FTS *fts = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	REQUIRE(fts);
	for (FTSENT *e; (e = fts_read(fts));) {
		CHECK(e->fts_pathlen == strlen(e->fts_path));
		CHECK(e->fts_level == FTS_ROOTLEVEL ||
		      !strncmp(e->fts_path, e->fts_parent->fts_path,
			       strlen(e->fts_parent->fts_name)));
		if (e->fts_info == FTS_DP)
			continue;
		saw(e->fts_path, e->fts_statp, -1);
		if (e->fts_info == FTS_D && !strcmp(e->fts_path, CLASS "/nic1")) {
			int n = 0;
			for (FTSENT *c = fts_children(fts, 0); c; c = c->fts_link)
				n += !strcmp(c->fts_name, "node_guid");
			CHECK(n == 1);
		}
	}
	CHECK(nodes == 3 && ports == 3 && devices == 3);
	CHECK(!fts_close(fts));

	/* Files of the program */
	char dir[] = "/tmp/walkXXXXXX", *own[] = {dir, NULL};
	REQUIRE(mkdtemp(dir));
	REQUIRE((fts = fts_open(own, FTS_PHYSICAL, NULL)));
	FTSENT *e = fts_read(fts);
	CHECK(e && !strcmp(e->fts_path, dir));
	CHECK(!fts_close(fts));
	REQUIRE(!rmdir(dir));
}

static void words(void)
{
	wordexp_t w;
	CHECK(!wordexp("a " CLASS "/nic*/node_guid '" CLASS "/*' \"/dev/infiniband\"/uverbs?", &w,
		       0));
	CHECK(w.we_wordc == 6 && !strcmp(w.we_wordv[0], "a"));
	CHECK(!strcmp(w.we_wordv[2], CLASS "/nic1/node_guid"));
	CHECK(!strcmp(w.we_wordv[3], CLASS "/*"));
	CHECK(!strcmp(w.we_wordv[5], "/dev/infiniband/uverbs1"));
	wordfree(&w);
	CHECK(!wordexp(CLASS "/none*", &w, 0));
	CHECK(w.we_wordc == 1 && !strcmp(w.we_wordv[0], CLASS "/none*"));
	wordfree(&w);
	w.we_offs = 2;
	CHECK(!wordexp(CLASS "/nic0", &w, WRDE_DOOFFS));
	CHECK(w.we_wordc == 1 && !w.we_wordv[1] && !strcmp(w.we_wordv[2], CLASS "/nic0"));
	wordfree(&w);
}

static void reopened(void)
{
	char text[64] = "";
	FILE *f = fopen("/dev/null", "r");
	REQUIRE(f);
	f = freopen(CLASS "/nic0/ports/1/state", "r", f);
	CHECK(f && fgets(text, sizeof text, f) && !strcmp(text, "4: ACTIVE\n"));
	f = freopen(CLASS "/nic0/ports/1/phys_state", "re", f);
	CHECK(f && fgets(text, sizeof text, f) && fcntl(fileno(f), F_GETFD) == FD_CLOEXEC);
	f = freopen("/dev/null", "r", f);
	CHECK(f && !fgets(text, sizeof text, f));
	FAILS(EACCES, !freopen(CLASS "/nic0/node_guid", "r+", stdin)); /* it is not freed */
	fclose(f);
}

int main(void)
{
	directories();
	walks();
	words();
	reopened();
	path_names();
	gid_table();
	relative();
	file_systems();
	write_access();
	closed_descriptors();
	return failures != 0;
}
