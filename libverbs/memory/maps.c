// SPDX-License-Identifier: Apache-2.0
#include "memory/maps.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool sr_lines_open(struct sr_lines *l, const char *path)
{
	l->at = l->end = 0;
	l->fd = open(path, O_RDONLY | O_CLOEXEC);
	return l->fd >= 0;
}

void sr_lines_close(struct sr_lines *l)
{
	close(l->fd);
}

/* Moves what is left to the beginning of the buffer and reads more. */
static bool read_more(struct sr_lines *l)
{
	ssize_t n;
	memmove(l->buf, l->buf + l->at, l->end - l->at);
	l->end -= l->at;
	l->at = 0;
	do {
		n = read(l->fd, l->buf + l->end, sizeof l->buf - 1 - l->end);
	} while (n < 0 && errno == EINTR);
	if (n > 0)
		l->end += (size_t)n;
	return n > 0;
}

char *sr_lines_next(struct sr_lines *l)
{
	for (;;) {
		char *line = l->buf + l->at, *newline = memchr(line, '\n', l->end - l->at);
		if (newline) {
			*newline = 0;
			l->at = (size_t)(newline + 1 - l->buf);
			return line;
		}
		if (l->at == 0 && l->end == sizeof l->buf - 1) { /* the rest is another line */
			l->buf[l->end] = 0;
			l->at = l->end;
			return l->buf;
		}
		if (!read_more(l))
			return NULL;
	}
}

/* Skips fields that are separated by one space each. */
static char *skip_field(char *s)
{
	while (*s && *s != ' ')
		s++;
	return *s ? s + 1 : s;
}

bool sr_mapping_parse(struct sr_mapping *m, const char *line)
{
	char *s;
	m->start = strtoul(line, &s, 16);
	if (s == line || *s != '-')
		return false;
	m->end = strtoul(s + 1, &s, 16);
	if (strlen(s) < 6)
		return false;
	s++;
	m->read = s[0] == 'r';
	m->write = s[1] == 'w';
	m->execute = s[2] == 'x';
	m->shared = s[3] == 's';
	m->offset = strtoull(skip_field(s), &s, 16);
	s = skip_field(*s ? s + 1 : s); /* the device */
	m->inode = strtoull(s, &s, 10);
	while (*s == ' ')
		s++;
	strncpy(m->name, s, sizeof m->name - 1);
	m->name[sizeof m->name - 1] = 0;
	return true;
}

bool sr_mapping_next(struct sr_mapping *m, struct sr_lines *maps)
{
	for (char *line; (line = sr_lines_next(maps));)
		if (sr_mapping_parse(m, line))
			return true;
	return false;
}

bool sr_mapping_find(struct sr_mapping *m, uintptr_t address)
{
	struct sr_lines maps;
	bool found = false;
	if (!sr_lines_open(&maps, "/proc/self/maps"))
		return false;
	while (!found && sr_mapping_next(m, &maps) && m->start <= address)
		found = address < m->end;
	sr_lines_close(&maps);
	return found;
}
