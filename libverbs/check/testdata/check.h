/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs of this folder say of what they find: each claim that does not hold is a line
 * on standard error, and the exit status says whether there was one.
 */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CHECK(claim)                                                                               \
	do {                                                                                       \
		errno = 0;                                                                         \
		if (!(claim)) {                                                                    \
			const char *why_ = errno ? strerror(errno) : "no errno";                   \
			fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #claim,    \
				why_);                                                             \
			failures++;                                                                \
		}                                                                                  \
	} while (0)

/* A call that returns an errno. */
#define RETURNS(want, call)                                                                        \
	do {                                                                                       \
		int got_ = (call);                                                                 \
		if (got_ != (want)) {                                                              \
			fprintf(stderr, "%s:%d: %s gives %d (%s), not %s\n", __FILE__, __LINE__,   \
				#call, got_, strerror(got_ < 0 ? -got_ : got_), #want);            \
			failures++;                                                                \
		}                                                                                  \
	} while (0)

/* A call that returns what condition holds for, and sets errno. */
#define FAILS(want, failed)                                                                        \
	do {                                                                                       \
		errno = 0;                                                                         \
		if (!(failed)) {                                                                   \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #failed);       \
			failures++;                                                                \
		} else if (errno != (want)) {                                                      \
			fprintf(stderr, "%s:%d: %s with errno %d (%s), not %s\n", __FILE__,        \
				__LINE__, #failed, errno, strerror(errno), #want);                 \
			failures++;                                                                \
		}                                                                                  \
	} while (0)

/* What a program cannot go on without. */
#define NEED(claim)                                                                                \
	do {                                                                                       \
		errno = 0;                                                                         \
		if (!(claim)) {                                                                    \
			fprintf(stderr, "%s:%d: cannot go on: %s (%s)\n", __FILE__, __LINE__,      \
				#claim, strerror(errno));                                          \
			exit(2);                                                                   \
		}                                                                                  \
	} while (0)

#endif
