/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mappings of this process, as the kernel describes them. No function allocates memory, so all
 * of them may be called in handlers of a fork and within an allocator.
 */
#ifndef SOFTROCE_MAPS_H
#define SOFTROCE_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sr_mapping {
	uintptr_t start, end;
	bool read, write, execute, shared;
	uint64_t offset, inode;
	char name[64]; /* the beginning of it */
};

/* A file of /proc/self that is read line by line. */
struct sr_lines {
	int fd;
	size_t at, end;
	char buf[4096];
};

/* sr_lines_open returns false if the file cannot be opened. */
bool sr_lines_open(struct sr_lines *l, const char *path);
void sr_lines_close(struct sr_lines *l);

/* sr_lines_next returns the next line, or the beginning of one that is very long, or NULL. */
char *sr_lines_next(struct sr_lines *l);

/* sr_mapping_parse reads a line of maps, or the first line of a mapping in smaps. */
bool sr_mapping_parse(struct sr_mapping *m, const char *line);

/* sr_mapping_next reads the next mapping from /proc/self/maps. False: there is none. */
bool sr_mapping_next(struct sr_mapping *m, struct sr_lines *maps);

/* sr_mapping_find finds the mapping of an address. */
bool sr_mapping_find(struct sr_mapping *m, uintptr_t address);

#endif
