// SPDX-License-Identifier: Apache-2.0
/*
 * Writes to remote memory, flushes and reads it with librpma: "rpma listen ADDR PORT" has the
 * memory, "rpma connect ADDR PORT" writes to it and says so in a message with immediate data. Both
 * compare the contents.
 */
#include <librpma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	SIZE = 1 << 20,
	FLAG = SIZE - 8,
	IMM = 4711
};

#define REQUIRE(claim)                                                                             \
	do {                                                                                       \
		if (!(claim)) {                                                                    \
			fprintf(stderr, "%d: required: %s\n", __LINE__, #claim);                   \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define CALL(name, ...)                                                                            \
	do {                                                                                       \
		int status = name(__VA_ARGS__);                                                    \
		if (status) {                                                                      \
			fprintf(stderr, "%s: %s\n", #name, rpma_err_2str(status));                 \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static struct rpma_peer *peer;
static struct rpma_mr_local *mr;
static unsigned char *memory;

static void expect_event(struct rpma_conn *conn, enum rpma_conn_event want)
{
	enum rpma_conn_event event;
	CALL(rpma_conn_next_event, conn, &event);
	REQUIRE(event == want);
}

/* Waits for a completion, which must be a success. */
static struct ibv_wc completion(struct rpma_conn *conn)
{
	struct rpma_cq *cq;
	struct ibv_wc wc;
	CALL(rpma_conn_get_cq, conn, &cq);
	CALL(rpma_cq_wait, cq);
	CALL(rpma_cq_get_wc, cq, 1, &wc, NULL);
	if (wc.status) {
		fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
	return wc;
}

static unsigned char pattern(size_t i)
{
	return (unsigned char)(i * 7 + i / 251);
}

static void expect_pattern(void)
{
	for (size_t i = 0; i < FLAG; i++)
		REQUIRE(memory[i] == pattern(i));
	REQUIRE(!memcmp(memory + FLAG, "written!", 8));
}

static void serve(const char *addr, const char *port)
{
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	unsigned char descriptor[128];
	struct rpma_conn_private_data data = {descriptor, 0};
	size_t size;

	CALL(rpma_mr_get_descriptor_size, mr, &size);
	REQUIRE(size <= sizeof(descriptor));
	CALL(rpma_mr_get_descriptor, mr, descriptor);
	data.len = (uint8_t)size;

	CALL(rpma_ep_listen, peer, addr, port, &ep);
	CALL(rpma_ep_next_conn_req, ep, NULL, &req);
	CALL(rpma_conn_req_recv, req, mr, 0, 0, NULL);
	CALL(rpma_conn_req_connect, &req, &data, &conn);
	expect_event(conn, RPMA_CONN_ESTABLISHED);

	struct ibv_wc wc = completion(conn);
	REQUIRE(wc.opcode == IBV_WC_RECV && wc.wc_flags & IBV_WC_WITH_IMM &&
		wc.imm_data == htobe32(IMM));
	expect_pattern();
	expect_event(conn, RPMA_CONN_CLOSED);
	CALL(rpma_conn_disconnect, conn);
	CALL(rpma_conn_delete, &conn);
	CALL(rpma_ep_shutdown, &ep);
}

static void use(const char *addr, const char *port)
{
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	struct rpma_conn_private_data data;
	struct rpma_mr_remote *remote;

	CALL(rpma_conn_req_new, peer, addr, port, NULL, &req);
	CALL(rpma_conn_req_connect, &req, NULL, &conn);
	expect_event(conn, RPMA_CONN_ESTABLISHED);
	CALL(rpma_conn_get_private_data, conn, &data);
	CALL(rpma_mr_remote_from_descriptor, data.ptr, data.len, &remote);

	for (size_t i = 0; i < SIZE; i++)
		memory[i] = pattern(i);
	CALL(rpma_write, conn, remote, 0, mr, 0, FLAG, RPMA_F_COMPLETION_ON_ERROR, NULL);
	CALL(rpma_atomic_write, conn, remote, FLAG, "written!", RPMA_F_COMPLETION_ON_ERROR, NULL);
	CALL(rpma_flush, conn, remote, 0, SIZE, RPMA_FLUSH_TYPE_VISIBILITY,
	     RPMA_F_COMPLETION_ALWAYS, NULL);
	completion(conn);

	memset(memory, 0, SIZE);
	CALL(rpma_read, conn, mr, 0, remote, 0, SIZE, RPMA_F_COMPLETION_ALWAYS, NULL);
	completion(conn);
	expect_pattern();

	CALL(rpma_send_with_imm, conn, NULL, 0, 0, RPMA_F_COMPLETION_ALWAYS, IMM, NULL);
	completion(conn);
	CALL(rpma_mr_remote_delete, &remote);
	CALL(rpma_conn_disconnect, conn);
	expect_event(conn, RPMA_CONN_CLOSED);
	CALL(rpma_conn_delete, &conn);
}

int main(int argc, char **argv)
{
	struct ibv_context *context;
	REQUIRE(argc == 4);
	int listens = !strcmp(argv[1], "listen");
	CALL(rpma_utils_get_ibv_context, argv[2],
	     listens ? RPMA_UTIL_IBV_CONTEXT_LOCAL : RPMA_UTIL_IBV_CONTEXT_REMOTE, &context);
	CALL(rpma_peer_new, context, &peer);
	REQUIRE(memory = aligned_alloc(4096, SIZE));
	memset(memory, 0, SIZE);
	CALL(rpma_mr_reg, peer, memory, SIZE,
	     RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC |
		     RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY |
		     RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV,
	     &mr);
	(listens ? serve : use)(argv[2], argv[3]);
	CALL(rpma_mr_dereg, &mr);
	CALL(rpma_peer_delete, &peer);
	free(memory);
	printf("%s: %d bytes are as expected\n", argv[1], SIZE);
}
