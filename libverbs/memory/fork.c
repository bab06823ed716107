// SPDX-License-Identifier: Apache-2.0
/*
 * A child of a fork gets private copies of exchanged memory. They are made in the parent before the
 * fork, so neither process waits for the other, and they show the memory as the forking thread left
 * it. In the child they replace the mappings that it has inherited. If the parent has no room for
 * all of them, as after mlockall, the child makes the others, and the fork waits for it: if it has
 * two descriptors, and what other threads write meanwhile may be in the copies. vfork and
 * posix_spawn need nothing: their children share all memory until they execute a program.
 *
 * What forks without the handlers of pthread_atfork (_Fork, and system calls that a program makes
 * itself) shares exchanged memory with its child.
 */
#include "core/cancel.h"
#include "memory/shared.h"
#include "core/system.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* A mapping of exchanged memory, and its copy or NULL. */
struct part {
	struct sr_mapping mapping;
	void *copy;
};

static struct {
	struct part *parts;
	size_t count, most;
	bool complete; /* every mapping has a copy */
	bool awaited;  /* the parent waits until the child has the others */
	int ends[2];   /* of the connection by which the child says so: parent, child */
} snapshot;

static void *allocate(size_t length)
{
	void *p = sr_system_mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				 -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

static void release(void *p, size_t length)
{
	if (p)
		sr_system_munmap(p, length);
}

static size_t length_of(const struct sr_mapping *m)
{
	return m->end - m->start;
}

/* As memcpy, which the sanitizers would make check the program's memory. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static void
copy_words(volatile uint64_t *to, const volatile uint64_t *from, size_t length)
{
	for (size_t i = 0; i < length / sizeof *to; i++)
		to[i] = from[i];
}

/*
 * Copies what a mapping shows. Another thread may unmap it, or the program may not be allowed to
 * read it, so it is read through a mapping of its own. NULL: it is gone, or there is no memory.
 */
static void *copy_of(const struct sr_mapping *m)
{
	size_t length = length_of(m);
	void *view = sr_system_view((void *)m->start, length);
	if (view == MAP_FAILED)
		return NULL;
	char *copy = allocate(length);
	uintptr_t from = m->start, to = m->end;
	if (copy && !sr_system_mprotect(view, length, PROT_READ))
		while (from < m->end && sr_shared_next_data_locked(m, &from, &to)) {
			size_t at = from - m->start;
			copy_words((void *)(copy + at), (void *)((char *)view + at), to - from);
			from = to;
			to = m->end;
		}
	release(view, length);
	return copy;
}

/* Moves the copy to where the memory is, with the protection that it has there. */
static bool place(const struct sr_mapping *m, void *copy)
{
	int protection = (m->read ? PROT_READ : 0) | (m->write ? PROT_WRITE : 0) |
			 (m->execute ? PROT_EXEC : 0);
	size_t length = length_of(m);
	return copy && !sr_system_mprotect(copy, length, protection) &&
	       !sr_system_move(copy, length, (void *)m->start);
}

/* Lists the mappings, as many as have room, and returns how many there are, or -1. */
static long list_parts(void)
{
	struct sr_lines maps;
	struct sr_mapping m;
	long n = 0;
	if (!sr_lines_open(&maps, "/proc/self/maps"))
		return -1;
	for (snapshot.count = 0; sr_mapping_next(&m, &maps);) {
		if (!sr_shared_mapping(&m))
			continue;
		if (snapshot.count < snapshot.most)
			snapshot.parts[snapshot.count++] = (struct part){.mapping = m};
		n++;
	}
	sr_lines_close(&maps);
	return n;
}

/* Lists all of them: while there is no room for some, other threads may split more. */
static bool list_all(void)
{
	long n;
	while ((n = list_parts()) > (long)snapshot.count) {
		release(snapshot.parts, snapshot.most * sizeof *snapshot.parts);
		snapshot.count = 0;
		snapshot.most = (size_t)n + 16;
		snapshot.parts = allocate(snapshot.most * sizeof *snapshot.parts);
		if (!snapshot.parts)
			return false;
	}
	return n >= 0;
}

/* The program may write to the standard descriptors, open or not, so the ends are others. */
static bool connect_ends(void)
{
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return false;
	for (int i = 0; i < 2; i++) {
		snapshot.ends[i] = fcntl(pair[i], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		close(pair[i]);
	}
	if (snapshot.ends[0] >= 0 && snapshot.ends[1] >= 0)
		return true;
	for (int i = 0; i < 2; i++)
		if (snapshot.ends[i] >= 0)
			close(snapshot.ends[i]);
	return false;
}

static void take_snapshot(void)
{
	snapshot.complete = list_all();
	for (size_t i = 0; i < snapshot.count; i++) {
		snapshot.parts[i].copy = copy_of(&snapshot.parts[i].mapping);
		snapshot.complete &= snapshot.parts[i].copy != NULL;
	}
	snapshot.awaited = !snapshot.complete && connect_ends();
}

/* A child that ends, or does not exist, is not waited for. */
static void wait_for_child(void)
{
	char c;
	if (!snapshot.awaited)
		return;
	close(snapshot.ends[1]);
	while (recv(snapshot.ends[0], &c, 1, 0) < 0 && errno == EINTR)
		;
	close(snapshot.ends[0]);
}

static void let_parent_go_on(void)
{
	if (!snapshot.awaited)
		return;
	send(snapshot.ends[1], "", 1, MSG_NOSIGNAL);
	close(snapshot.ends[0]);
	close(snapshot.ends[1]);
}

static void free_snapshot(void)
{
	for (size_t i = 0; i < snapshot.count; i++)
		release(snapshot.parts[i].copy, length_of(&snapshot.parts[i].mapping));
	release(snapshot.parts, snapshot.most * sizeof *snapshot.parts);
	snapshot.parts = NULL;
	snapshot.count = snapshot.most = 0;
	snapshot.awaited = false;
}

/* Takes the copy of a mapping from the snapshot. NULL: there is none, since threads have gone on.
 */
static void *take_copy(const struct sr_mapping *m)
{
	for (size_t i = 0; i < snapshot.count; i++) {
		struct part *p = &snapshot.parts[i];
		void *copy = p->copy;
		if (p->mapping.start != m->start || p->mapping.end != m->end ||
		    p->mapping.inode != m->inode || p->mapping.offset != m->offset)
			continue;
		p->copy = NULL;
		return copy;
	}
	return NULL;
}

/* Replaces the mappings that the child has inherited. */
static bool replace_inherited(void)
{
	struct sr_lines maps;
	struct sr_mapping m;
	bool good = true;
	if (!sr_lines_open(&maps, "/proc/self/maps"))
		return false;
	while (good && sr_mapping_next(&m, &maps)) {
		if (!sr_shared_mapping(&m))
			continue;
		void *copy = take_copy(&m);
		good = place(&m, copy ? copy : copy_of(&m));
	}
	sr_lines_close(&maps);
	return good;
}

/* Without a descriptor for the list of mappings: replaces those of the snapshot. */
static bool replace_listed(void)
{
	bool good = snapshot.complete;
	for (size_t i = 0; good && i < snapshot.count; i++) {
		good = place(&snapshot.parts[i].mapping, snapshot.parts[i].copy);
		snapshot.parts[i].copy = NULL;
	}
	return good;
}

static void before_fork(void)
{
	int saved = errno, cancel = sr_defer_cancel();
	sr_shared_lock();
	if (sr_shared_any())
		take_snapshot();
	sr_restore_cancel(cancel);
	errno = saved;
}

static void after_fork_parent(void)
{
	int saved = errno, cancel = sr_defer_cancel();
	wait_for_child();
	free_snapshot();
	sr_shared_unlock();
	sr_restore_cancel(cancel);
	errno = saved;
}

static void after_fork_child(void)
{
	int saved = errno, cancel = sr_defer_cancel();
	if (sr_shared_any()) {
		sr_shared_forget();
		if (!replace_inherited() && !replace_listed()) {
			fputs("libibverbs: softroce: no memory for a child's copy of registered "
			      "memory\n",
			      stderr);
			abort();
		}
		let_parent_go_on();
	}
	free_snapshot();
	sr_shared_unlock();
	sr_restore_cancel(cancel);
	errno = saved;
}

/*
 * The handlers of the first registration run last before a fork, and first after it: while they
 * run, those of the program and of SR_AT_FORK hold their locks. 101 is the first priority that a
 * program may use.
 */
__attribute__((constructor(101))) static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}
