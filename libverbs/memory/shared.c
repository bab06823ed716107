// SPDX-License-Identifier: Apache-2.0
#include "memory/shared.h"
#include "core/cancel.h"
#include "core/softroce_abi.h"
#include "core/system.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAME "softroce-memory"

/*
 * The size of a memfd, so that mremap can extend any mapping of it. The daemon maps files of more
 * than 1 TiB in parts.
 */
#define FILE_SIZE (UINT64_C(1) << 41)

/* How many descriptors the library uses. */
#define MAX_FILES 128

/* Larger memory is not populated: the daemon does not do that either (mrtable, populateMax). */
#define MAX_POPULATED ((size_t)64 << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sr_shared *files; /* the latest first */
static struct sr_link in_process = {&in_process, &in_process};
static atomic_bool any;

/*
 * Libraries that replace mmap, such as the sanitizers and UCX, need not know of an exchange, since
 * the memory remains what it is.
 */
static void *map(void *address, size_t length, int flags, int fd)
{
	return sr_system_mmap(address, length, PROT_READ | PROT_WRITE, flags, fd, 0);
}

/*
 * With the lock held nothing may use the program's allocator, whose locks another thread may hold
 * that forks: a struct has a page of its own.
 */
static struct sr_shared *allocate(void)
{
	struct sr_shared *s = map(NULL, sizeof *s, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	return s == MAP_FAILED ? NULL : s;
}

static void release(struct sr_shared *s)
{
	sr_system_munmap(s, sizeof *s);
}

void sr_shared_lock(void)
{
	pthread_mutex_lock(&lock);
}

bool sr_shared_take_lock(bool wait)
{
	return !(wait ? pthread_mutex_lock(&lock) : pthread_mutex_trylock(&lock));
}

void sr_shared_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

bool sr_shared_any(void)
{
	return atomic_load_explicit(&any, memory_order_acquire);
}

bool sr_shared_mapping(const struct sr_mapping *m)
{
	static const char name[] = "/memfd:" NAME;
	return m->shared && !strncmp(m->name, name, sizeof name - 1);
}

static bool is_open(const struct sr_shared *s)
{
	struct stat st;
	return s->fd >= 0 && !fstat(s->fd, &st) && st.st_dev == s->device && st.st_ino == s->inode;
}

/* A descriptor that the program has closed may be one of its own now. */
static void close_file(struct sr_shared *s)
{
	if (is_open(s))
		close(s->fd);
	s->fd = -1;
}

/* Closes the file. Its memory is freed when it is unmapped. */
static void drop(struct sr_shared **p)
{
	struct sr_shared *s = *p;
	*p = s->next;
	close_file(s);
	if (!s->regions)
		release(s);
}

/* Ends the use of a file without regions: the daemon has unmapped it and cannot map it again. */
static void forget(struct sr_shared *s)
{
	struct sr_shared **p = &files;
	while (*p && *p != s)
		p = &(*p)->next;
	if (*p)
		drop(p);
	else
		release(s); /* it was dropped before */
}

void sr_shared_forget(void)
{
	while (files)
		drop(&files);
}

static unsigned int count_files(void)
{
	unsigned int n = 0;
	for (struct sr_shared *s = files; s; s = s->next)
		n++;
	return n;
}

static bool is_single_threaded(void)
{
	struct sr_lines l;
	long threads = 0;
	if (!sr_lines_open(&l, "/proc/self/status"))
		return false;
	for (char *line; !threads && (line = sr_lines_next(&l));)
		if (!strncmp(line, "Threads:", 8))
			threads = strtol(line + 8, NULL, 10);
	sr_lines_close(&l);
	return threads == 1;
}

/*
 * Mappings of io_uring, Linux AIO, GPUs and vfio. With them the kernel or a device may hold
 * references to pages of other memory, and would continue to access those pages.
 */
static bool has_direct_access(const struct sr_mapping *m)
{
	const char *n = m->name;
	if (!strncmp(n, "/dev/", 5))
		return strncmp(n, "/dev/zero", 9) && strncmp(n, "/dev/shm/", 9) &&
		       strncmp(n, "/dev/hugepages/", 15);
	return !strncmp(n, "anon_inode:", 11) || !strncmp(n, "/[aio]", 6) ||
	       !strncmp(n, "/dmabuf:", 8);
}

static bool is_accessible(const struct sr_mapping *m)
{
	return m->read && m->write && !m->execute;
}

static bool is_private(const struct sr_mapping *m)
{
	return !m->shared && !m->inode && (!*m->name || !strncmp(m->name, "[anon:", 6));
}

/*
 * The flags of a mapping whose properties an exchange keeps; see VmFlags in proc(5). Excluded are
 * mappings that are locked, MAP_NORESERVE, of huge pages, not inherited or dumped as usual, or have
 * a protection key or a userfaultfd. Advice on transparent huge pages is to be repeated.
 */
static bool has_plain_flags(const char *flags, int *advice)
{
	static const char plain[] = "rd wr sh mr mw me ms ac sd hg nh ";
	for (char flag[4] = {0}; *flags; flags += *flags ? 1 : 0) {
		if (*flags == ' ')
			continue;
		strncpy(flag, flags, 2);
		flag[2] = ' ';
		if (!strstr(plain, flag))
			return false;
		if (!strcmp(flag, "hg "))
			*advice = MADV_HUGEPAGE;
		if (!strcmp(flag, "nh "))
			*advice = MADV_NOHUGEPAGE;
		flags++;
	}
	return true;
}

/* Reads from smaps the flags and the protection key, which maps does not have. */
static bool has_plain_properties(uintptr_t start, int *advice)
{
	struct sr_lines l;
	struct sr_mapping m;
	bool found = false, plain = false;
	if (!sr_lines_open(&l, "/proc/self/smaps"))
		return false;
	for (char *line; (line = sr_lines_next(&l));) {
		if (*line >= 'A' && *line <= 'Z') {
			if (found && !strncmp(line, "VmFlags:", 8)) {
				plain = has_plain_flags(line + 8, advice);
				break;
			}
			if (found && !strncmp(line, "ProtectionKey:", 14) &&
			    strtol(line + 14, NULL, 10))
				break;
		} else if (found) {
			break;
		} else {
			found = sr_mapping_parse(&m, line) && m.start == start;
		}
	}
	sr_lines_close(&l);
	return plain;
}

/*
 * A page fault in a memfd must not fail: with strict overcommit it can. A process whose files may
 * not have any size gets a signal when it extends one.
 */
static bool may_have_memfd(void)
{
	struct rlimit limit;
	struct sr_lines l;
	bool strict = true;
	if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur != RLIM_INFINITY)
		return false;
	if (sr_lines_open(&l, "/proc/sys/vm/overcommit_memory")) {
		char *line = sr_lines_next(&l);
		strict = !line || *line == '2';
		sr_lines_close(&l);
	}
	return !strict;
}

/* The memory of a region: the bytes, and the whole pages that contain them. */
struct range {
	uintptr_t first, end;
	uintptr_t first_page, end_page;
	struct sr_mapping mapping; /* that contains it */
	int advice;		   /* that it has: MADV_HUGEPAGE, MADV_NOHUGEPAGE or none */
};

static bool contains(const struct range *r, const void *p)
{
	return (uintptr_t)p >= r->first_page && (uintptr_t)p < r->end_page;
}

/*
 * Finds the mapping, and whether there is one with direct access. It returns a reason,
 * SOFTROCE_UNSHARED_*, if there are several or the kernel does not tell.
 */
static uint32_t find_mapping(struct range *r, bool *direct_access)
{
	struct sr_lines maps;
	struct sr_mapping m;
	bool found = false;
	*direct_access = false;
	if (!sr_lines_open(&maps, "/proc/self/maps"))
		return SOFTROCE_UNSHARED_LIMIT;
	while (sr_mapping_next(&m, &maps)) {
		*direct_access |= has_direct_access(&m);
		if (m.start <= r->first && m.end >= r->end) {
			found = true;
			r->mapping = m;
		}
	}
	sr_lines_close(&maps);
	return found ? 0 : SOFTROCE_UNSHARED_KIND;
}

static bool is_accessed_in_process(const struct range *r)
{
	sr_for_each (l, &in_process) {
		const struct sr_in_process *p = sr_container(l, struct sr_in_process, link);
		if (p->first < r->end_page && p->end > r->first_page)
			return true;
	}
	return false;
}

/* Tells why memory cannot be exchanged, or 0 if it can. */
static uint32_t unshared(struct range *r, bool direct_access)
{
	const struct sr_mapping *m = &r->mapping;
	bool again = sr_shared_mapping(m); /* the file was dropped */
	if (!is_accessible(m) || (!again && !is_private(m)))
		return SOFTROCE_UNSHARED_KIND;
	/* A part of a page is exchanged only if it begins or ends the mapping, as malloc's do. */
	if ((r->first != r->first_page && r->first_page != m->start) ||
	    (r->end != r->end_page && r->end_page != m->end))
		return SOFTROCE_UNSHARED_KIND;
	/* The program runs on a stack of its own, or has the thread's control block there. */
	if (contains(r, __builtin_frame_address(0)) || contains(r, &errno) ||
	    contains(r, (void *)pthread_self()))
		return SOFTROCE_UNSHARED_KIND;
	if (direct_access || is_accessed_in_process(r))
		return SOFTROCE_UNSHARED_KERNEL;
	if (!is_single_threaded())
		return SOFTROCE_UNSHARED_THREADS;
	if (!has_plain_properties(m->start, &r->advice))
		return SOFTROCE_UNSHARED_FLAGS;
	if (!may_have_memfd())
		return SOFTROCE_UNSHARED_LIMIT;
	return 0;
}

/* Copies memory to the file, at offset. */
static bool write_pages(int fd, uintptr_t from, size_t length, uint64_t offset)
{
	while (length) {
		long n = sr_system_call(SYS_pwrite64, fd, (long)from, (long)length, (long)offset, 0,
					0);
		if (n <= 0)
			return false;
		from += (size_t)n;
		offset += (size_t)n;
		length -= (size_t)n;
	}
	return true;
}

/* Copies the pages that the memory has. */
static bool write_present(int fd, uintptr_t first, uintptr_t end)
{
	static const uint64_t present = UINT64_C(3) << 62; /* in memory or swapped */
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint64_t entries[512];
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	bool good = pagemap >= 0;
	for (uintptr_t at = first; good && at < end;) {
		size_t n = (end - at) / page;
		size_t most = sizeof entries / sizeof *entries;
		size_t size = (n < most ? n : most) * sizeof *entries;
		off_t where = (off_t)(at / page * sizeof *entries);
		ssize_t got = pread(pagemap, entries, size, where);
		good = got > 0;
		for (ssize_t i = 0; good && i < got / (ssize_t)sizeof *entries; i++, at += page)
			if (entries[i] & present)
				good = write_pages(fd, at, page, at - first);
	}
	if (pagemap >= 0)
		close(pagemap);
	return good;
}

/*
 * Copies the pages and maps the file in their place. No signal handler runs meanwhile. What is
 * mapped after mlockall would be locked; the memory is not (has_plain_flags).
 */
static bool exchange_pages(int fd, const struct range *r)
{
	size_t length = r->end_page - r->first_page;
	bool populate = length <= MAX_POPULATED;
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	bool good = populate ? write_pages(fd, r->first_page, length, 0)
			     : write_present(fd, r->first_page, r->end_page);
	int flags = MAP_SHARED | MAP_FIXED | (populate ? MAP_POPULATE : 0);
	good = good && map((void *)r->first_page, length, flags, fd) != MAP_FAILED;
	if (good)
		sr_system_call(SYS_munlock, (long)r->first_page, (long)length, 0, 0, 0, 0);
	if (good && r->advice)
		sr_system_madvise((void *)r->first_page, length, r->advice);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return good;
}

static struct sr_shared *new_file(void)
{
	if (count_files() >= MAX_FILES)
		return NULL;
	struct sr_shared *s = allocate();
	struct stat st;
	if (!s)
		return NULL;
	s->fd = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (s->fd >= 0 &&
	    s->fd <= STDERR_FILENO) { /* which the program may write to, open or not */
		int fd = fcntl(s->fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		close(s->fd);
		s->fd = fd;
	}
	if (s->fd >= 0 && !ftruncate(s->fd, FILE_SIZE) &&
	    !fcntl(s->fd, F_ADD_SEALS, F_SEAL_SHRINK) && !fstat(s->fd, &st)) {
		s->device = st.st_dev;
		s->inode = st.st_ino;
		return s;
	}
	if (s->fd >= 0)
		close(s->fd);
	release(s);
	return NULL;
}

/* Adds a file whose memory has been mapped, or closes it. */
static struct sr_shared *add_file(struct sr_shared *s, bool mapped)
{
	if (!mapped) {
		close(s->fd);
		release(s);
		return NULL;
	}
	atomic_store_explicit(&any, true, memory_order_release);
	s->next = files;
	files = s;
	return s;
}

static struct sr_shared *exchange(const struct range *r)
{
	struct sr_shared *s = new_file();
	return s ? add_file(s, exchange_pages(s->fd, r)) : NULL;
}

bool sr_shared_map(void *address, size_t length, uint64_t *inode)
{
	struct sr_shared *s = may_have_memfd() ? new_file() : NULL;
	if (!s)
		return false;
	*inode = s->inode;
	return add_file(s, map(address, length, MAP_SHARED | MAP_FIXED, s->fd) != MAP_FAILED);
}

static struct sr_shared **find_inode(uint64_t inode)
{
	struct sr_shared **p = &files;
	while (*p && (*p)->inode != inode)
		p = &(*p)->next;
	return p;
}

bool sr_shared_is_new(uint64_t inode)
{
	struct sr_shared *s = *find_inode(inode);
	return s && !s->registered && is_open(s);
}

void sr_shared_close(uint64_t inode)
{
	struct sr_shared **p = find_inode(inode);
	if (*p)
		drop(p);
}

/* Returns the file of a mapping, or NULL if it was dropped, or its descriptor closed. */
static struct sr_shared *find_file(const struct sr_mapping *m)
{
	if (!sr_shared_mapping(m))
		return NULL;
	struct sr_shared **p = find_inode(m->inode);
	if (*p && !is_open(*p))
		drop(p);
	else if (*p && is_accessible(m))
		return *p;
	return NULL;
}

static struct sr_shared *share(struct range *r, uint64_t *offset, uint32_t *reason)
{
	bool direct_access;
	*reason = find_mapping(r, &direct_access);
	if (*reason)
		return NULL;
	struct sr_shared *s = find_file(&r->mapping);
	*offset = r->mapping.offset + (r->first - r->mapping.start);
	if (s)
		return s;
	*offset = r->first - r->first_page;
	*reason = unshared(r, direct_access);
	if (*reason)
		return NULL;
	*reason = SOFTROCE_UNSHARED_LIMIT;
	return exchange(r);
}

static bool mode_is(const char *name)
{
	const char *mode = getenv("SOFTROCE_MEMORY");
	return mode && !strcmp(mode, name);
}

bool sr_shared_required(void)
{
	return mode_is("shared");
}

bool sr_shared_enabled(void)
{
	return mode_is("auto") || sr_shared_required();
}

struct sr_shared *sr_shared_get(void *address, size_t length, uint64_t *offset, uint32_t *reason)
{
	uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
	struct range r = {.first = (uintptr_t)address, .end = (uintptr_t)address + length};
	*reason = SOFTROCE_UNSHARED_DISABLED;
	if (!sr_shared_enabled())
		return NULL;
	*reason = SOFTROCE_UNSHARED_KIND;
	if (!length || r.end < r.first || r.end + mask < r.end)
		return NULL;
	r.first_page = r.first & ~mask;
	r.end_page = (r.end + mask) & ~mask;
	int state = sr_defer_cancel();
	sr_shared_lock();
	struct sr_shared *s = share(&r, offset, reason);
	if (s) {
		s->regions++;
		s->registered = true;
	}
	sr_shared_unlock();
	sr_restore_cancel(state);
	return s;
}

void sr_in_process_add(struct sr_in_process *r, const void *address, size_t length)
{
	r->first = (uintptr_t)address;
	r->end = r->first + length;
	sr_shared_lock();
	sr_list_add(&in_process, &r->link);
	sr_shared_unlock();
}

void sr_in_process_remove(struct sr_in_process *r)
{
	sr_shared_lock();
	if (r->link.next)
		sr_list_del(&r->link);
	sr_shared_unlock();
}

void sr_shared_put(struct sr_shared *s)
{
	if (!s)
		return;
	int state = sr_defer_cancel();
	sr_shared_lock();
	s->regions--;
	if (!s->regions)
		forget(s);
	sr_shared_unlock();
	sr_restore_cancel(state);
}

bool sr_shared_next_data_locked(const struct sr_mapping *m, uintptr_t *first, uintptr_t *end)
{
	struct sr_shared *s = *find_inode(m->inode);
	if (!s || !is_open(s))
		return true;
	off_t base = (off_t)m->offset - (off_t)m->start;
	off_t from = lseek(s->fd, (off_t)*first + base, SEEK_DATA);
	off_t to = from < 0 ? -1 : lseek(s->fd, from, SEEK_HOLE);
	bool data = from >= 0 ? from - base < (off_t)*end : errno != ENXIO;
	if (from >= 0 && data)
		*first = (uintptr_t)(from - base);
	if (to >= 0 && to - base < (off_t)*end)
		*end = (uintptr_t)(to - base);
	return data;
}

bool sr_shared_next_data(const struct sr_mapping *m, uintptr_t *first, uintptr_t *end)
{
	if (pthread_mutex_trylock(&lock))
		return true;
	bool data = sr_shared_next_data_locked(m, first, end);
	pthread_mutex_unlock(&lock);
	return data;
}
