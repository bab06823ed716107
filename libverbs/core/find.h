/* SPDX-License-Identifier: Apache-2.0 */
/* Where a daemon is looked for if no socket is named. */
#ifndef SOFTROCE_FIND_H
#define SOFTROCE_FIND_H

#include <sys/un.h>

typedef char sr_socket_path[sizeof(((struct sockaddr_un *)0)->sun_path)];

#define SR_MAX_SOCKETS 12

/* Lists the paths in the order in which they are tried, and returns their number. */
int sr_sockets(sr_socket_path list[SR_MAX_SOCKETS]);

#endif
