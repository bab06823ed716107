/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the test that runs a program. Each is a line on standard output, which the test
 * answers with an empty line: a fault program that replaces the last one, or "fire" with an event
 * and the number of its object. 0 stands for the only object of its kind.
 */
#ifndef FAULTS_H
#define FAULTS_H

#include "check.h"

#include <stdarg.h>

__attribute__((format(printf, 1, 2))) static inline void request(const char *format, ...)
{
	char line[8];
	va_list args;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	REQUIRE(fgets(line, sizeof line, stdin));
}

/* Checks a call of a verb while a rule lets it fail with EXDEV, which no verb fails with else. */
#define FAILING(verb, check)                                                                       \
	do {                                                                                       \
		request("fail " verb " EXDEV");                                                    \
		check;                                                                             \
		request("# no rule");                                                              \
	} while (0)

#endif
