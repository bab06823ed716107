/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks. Each that fails prints a line on standard error and makes the exit status nonzero.
 */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failures;

#define CHECK(claim)                                                                               \
	do {                                                                                       \
		errno = 0;                                                                         \
		if (!(claim)) {                                                                    \
			const char *why_ = errno ? strerror(errno) : "no errno";                   \
			fprintf(stderr, "%s:%d: check failed: %s (%s)\n", __FILE__, __LINE__,      \
				#claim, why_);                                                     \
			failures++;                                                                \
		}                                                                                  \
	} while (0)

/* For calls that return an errno, and set it as well unless they succeed. */
#define RETURNS(want, call)                                                                        \
	do {                                                                                       \
		errno = 0;                                                                         \
		int got_ = (call), set_ = errno;                                                   \
		if (got_ != (want)) {                                                              \
			fprintf(stderr, "%s:%d: %s returned %d (%s), want %s\n", __FILE__,         \
				__LINE__, #call, got_, strerror(got_ < 0 ? -got_ : got_), #want);  \
			failures++;                                                                \
		} else if (got_ > 0 && set_ != got_) {                                             \
			fprintf(stderr, "%s:%d: %s returned %d, but errno is %d\n", __FILE__,      \
				__LINE__, #call, got_, set_);                                      \
			failures++;                                                                \
		}                                                                                  \
	} while (0)

/* For calls that set errno; failed is the condition that the result must satisfy. */
#define FAILS(want, failed)                                                                        \
	do {                                                                                       \
		errno = 0;                                                                         \
		if (!(failed)) {                                                                   \
			fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #failed); \
			failures++;                                                                \
		} else if (errno != (want)) {                                                      \
			fprintf(stderr, "%s:%d: %s: errno is %d (%s), want %s\n", __FILE__,        \
				__LINE__, #failed, errno, strerror(errno), #want);                 \
			failures++;                                                                \
		}                                                                                  \
	} while (0)

/* A condition without which the program cannot continue. */
#define REQUIRE(claim)                                                                             \
	do {                                                                                       \
		errno = 0;                                                                         \
		if (!(claim)) {                                                                    \
			fprintf(stderr, "%s:%d: required: %s (%s)\n", __FILE__, __LINE__, #claim,  \
				strerror(errno));                                                  \
			exit(2);                                                                   \
		}                                                                                  \
	} while (0)

static inline void abort_hang(int signal)
{
	(void)signal;
	abort(); /* the sanitizer prints the stack */
}

/* Ends the program if it hangs. */
static inline void limit_time(unsigned int seconds)
{
	signal(SIGALRM, abort_hang);
	alarm(seconds);
}

#endif
