// SPDX-License-Identifier: Apache-2.0
/*
 * Finds NICs and uses one as the network plugins of collective communication libraries do:
 * libibverbs is loaded at run time, by versioned symbols; the PCI device, its NUMA node and the
 * speed of its slot come from sysfs; the GID is the first of RoCE v2 with an IPv4 address, by the
 * types in sysfs. Prints a line for each port, and one for the transfer between the first two.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REQUIRE(claim)                                                                             \
	do {                                                                                       \
		if (!(claim)) {                                                                    \
			fprintf(stderr, "%d: required: %s (%m)\n", __LINE__, #claim);              \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static void *library;

static void *symbol(const char *name, const char *version)
{
	void *p = dlvsym(library, name, version);
	if (!p) {
		fprintf(stderr, "%s@%s is missing\n", name, version);
		exit(1);
	}
	return p;
}

#define CALL(version, name) ((typeof(&name))symbol(#name, version))

/* Reads a file of a directory without its newline, or "-" if it does not exist. */
static const char *file_in(const char *dir, const char *name)
{
	static char texts[8][64];
	static int next;
	char path[2 * PATH_MAX], *text = texts[next++ % 8];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	FILE *f = fopen(path, "r");
	if (!f || !fgets(text, sizeof texts[0], f))
		strcpy(text, "-");
	if (f)
		fclose(f);
	text[strcspn(text, "\n")] = 0;
	return text;
}

static int find_gid(struct ibv_context *c, const struct ibv_port_attr *port, union ibv_gid *gid)
{
	char dir[PATH_MAX], name[64];
	snprintf(dir, sizeof dir, "/sys/class/infiniband/%s/ports/1", c->device->name);
	for (int i = 0; i < port->gid_tbl_len; i++) {
		snprintf(name, sizeof name, "gid_attrs/types/%d", i);
		if (CALL("IBVERBS_1.1", ibv_query_gid)(c, 1, i, gid) ||
		    strcmp(file_in(dir, name), "RoCE v2"))
			continue;
		if (IN6_IS_ADDR_V4MAPPED((struct in6_addr *)gid->raw))
			return i;
	}
	return -1;
}

struct nic {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_port_attr port;
	union ibv_gid gid;
	int gid_index;
	char *buf;
};

static void open_nic(struct nic *n, struct ibv_device *device)
{
	struct ibv_device_attr attr;
	char path[PATH_MAX], *pci;
	const char *name = CALL("IBVERBS_1.1", ibv_get_device_name)(device);
	REQUIRE((n->context = CALL("IBVERBS_1.1", ibv_open_device)(device)));
	REQUIRE(!CALL("IBVERBS_1.1", ibv_query_device)(n->context, &attr));
	/* ibv_query_port is a macro of newer headers, and the function is what libraries load. */
	int (*query_port)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *) =
		(int (*)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *))symbol(
			"ibv_query_port", "IBVERBS_1.1");
	memset(&n->port, 0, sizeof n->port);
	REQUIRE(!query_port(n->context, 1, (struct _compat_ibv_port_attr *)&n->port));
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/device", name);
	REQUIRE((pci = realpath(path, NULL)));
	n->gid_index = find_gid(n->context, &n->port, &n->gid);
	printf("%s pci %s class %s vendor %s device %s numa %s slot %s x%s ports %d state %s layer "
	       "%s speed "
	       "%d width %d part %u gid %d\n",
	       name, strrchr(pci, '/') + 1, file_in(pci, "class"), file_in(pci, "vendor"),
	       file_in(pci, "device"), file_in(pci, "numa_node"), file_in(pci, "max_link_speed"),
	       file_in(pci, "max_link_width"), attr.phys_port_cnt,
	       n->port.state == IBV_PORT_ACTIVE ? "active" : "down",
	       n->port.link_layer == IBV_LINK_LAYER_ETHERNET ? "ethernet" : "infiniband",
	       n->port.active_speed, n->port.active_width, attr.vendor_part_id, n->gid_index);
	free(pci);
}

static void create_queue_pair(struct nic *n)
{
	REQUIRE((n->pd = CALL("IBVERBS_1.1", ibv_alloc_pd)(n->context)));
	n->buf = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(n->buf != MAP_FAILED);
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int) =
		(struct ibv_mr * (*)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int))
			symbol("ibv_reg_mr_iova2", "IBVERBS_1.8");
	REQUIRE((n->mr = reg(n->pd, n->buf, 4096, (uintptr_t)n->buf,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING)));
	REQUIRE((n->cq = CALL("IBVERBS_1.1", ibv_create_cq)(n->context, 64, NULL, NULL, 0)));
	struct ibv_qp_init_attr init = {.send_cq = n->cq,
					.recv_cq = n->cq,
					.qp_type = IBV_QPT_RC,
					.cap = {64, 64, 1, 1, 0}};
	REQUIRE((n->qp = CALL("IBVERBS_1.1", ibv_create_qp)(n->pd, &init)));
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
				   .port_num = 1,
				   .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	REQUIRE(!CALL("IBVERBS_1.1", ibv_modify_qp)(n->qp, &attr,
						    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
							    IBV_QP_ACCESS_FLAGS));
}

static void connect_to(struct nic *n, const struct nic *peer)
{
	struct ibv_ece ece = {0};
	if (CALL("IBVERBS_1.10", ibv_query_ece)(n->qp, &ece) == 0)
		CALL("IBVERBS_1.10", ibv_set_ece)(n->qp, &ece); /* either may be unsupported */
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = n->port.active_mtu < peer->port.active_mtu ? n->port.active_mtu
								       : peer->port.active_mtu,
		.dest_qp_num = peer->qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.dgid = peer->gid,
				    .sgid_index = (uint8_t)n->gid_index,
				    .hop_limit = 255}},
	};
	REQUIRE(!CALL("IBVERBS_1.1", ibv_modify_qp)(
		n->qp, &attr,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
				  .timeout = 20,
				  .retry_cnt = 7,
				  .rnr_retry = 7,
				  .max_rd_atomic = 1};
	REQUIRE(!CALL("IBVERBS_1.1", ibv_modify_qp)(
		n->qp, &rts,
		IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* A WRITE and a WRITE with immediate, as a collective's data and its end are sent. */
static void transfer(struct nic *from, struct nic *to)
{
	struct ibv_recv_wr recv = {.wr_id = 1}, *bad_recv;
	struct ibv_sge sge = {(uintptr_t)from->buf, 512, from->mr->lkey};
	struct ibv_send_wr last = {.wr_id = 3,
				   .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				   .send_flags = IBV_SEND_SIGNALED,
				   .imm_data = htonl(512)},
			   first = {.wr_id = 2,
				    .next = &last,
				    .sg_list = &sge,
				    .num_sge = 1,
				    .opcode = IBV_WR_RDMA_WRITE,
				    .wr.rdma = {(uintptr_t)to->buf, to->mr->rkey}},
			   *bad;
	struct ibv_wc sent = {0}, received = {0};
	memset(from->buf, 7, 512);
	REQUIRE(!ibv_post_recv(to->qp, &recv, &bad_recv) && !ibv_post_send(from->qp, &first, &bad));
	while (!ibv_poll_cq(from->cq, 1, &sent))
		;
	while (!ibv_poll_cq(to->cq, 1, &received))
		;
	REQUIRE(sent.status == IBV_WC_SUCCESS && received.status == IBV_WC_SUCCESS);
	REQUIRE(ntohl(received.imm_data) == 512 && !memcmp(from->buf, to->buf, 512));
	printf("transferred %u bytes\n", ntohl(received.imm_data));
}

int main(void)
{
	struct nic nics[16] = {0};
	int n = 0;
	REQUIRE((library = dlopen("libibverbs.so.1", RTLD_NOW)));
	CALL("IBVERBS_1.1", ibv_fork_init)();
	struct ibv_device **list = CALL("IBVERBS_1.1", ibv_get_device_list)(&n);
	REQUIRE(list && n >= 2 && n <= 16);
	for (int i = 0; i < n; i++)
		open_nic(&nics[i], list[i]);
	CALL("IBVERBS_1.1", ibv_free_device_list)(list);
	create_queue_pair(&nics[0]);
	create_queue_pair(&nics[1]);
	connect_to(&nics[0], &nics[1]);
	connect_to(&nics[1], &nics[0]);
	transfer(&nics[0], &nics[1]);
	for (int i = 0; i < n; i++) {
		if (nics[i].qp) {
			REQUIRE(!CALL("IBVERBS_1.1", ibv_destroy_qp)(nics[i].qp));
			REQUIRE(!CALL("IBVERBS_1.1", ibv_destroy_cq)(nics[i].cq));
			REQUIRE(!CALL("IBVERBS_1.1", ibv_dereg_mr)(nics[i].mr));
			REQUIRE(!CALL("IBVERBS_1.1", ibv_dealloc_pd)(nics[i].pd));
		}
		REQUIRE(!CALL("IBVERBS_1.1", ibv_close_device)(nics[i].context));
	}
	return 0;
}
