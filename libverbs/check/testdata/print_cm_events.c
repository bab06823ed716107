// SPDX-License-Identifier: Apache-2.0
/*
 * Listens at an address and prints each event until the channel reports an error.
 */
#include "check.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_event *e;
	struct sockaddr_in addr = {.sin_family = AF_INET};
	REQUIRE(argc == 2 && inet_pton(AF_INET, argv[1], &addr.sin_addr) == 1);
	REQUIRE(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	REQUIRE(!rdma_bind_addr(id, (struct sockaddr *)&addr) && !rdma_listen(id, 0));
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("listening");
	while (!rdma_get_cm_event(channel, &e)) {
		CHECK(e->id == id && e->status == 0);
		puts(rdma_event_str(e->event));
		rdma_ack_cm_event(e);
	}
	puts(strerror(errno));
	RETURNS(0, rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	return failures != 0;
}
