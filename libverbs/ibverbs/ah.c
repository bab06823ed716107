// SPDX-License-Identifier: Apache-2.0
/*
 * Address handles.
 */
#include "core/ah.h"
#include "ibverbs/pd.h"
#include "ibverbs/query.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

SR_PUBLIC struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	/* RoCE addresses are always global. */
	if (!attr->is_global || attr->port_num != 1)
		return sr_null(EINVAL);
	struct ibv_ah *ah = calloc(1, sizeof *ah);
	if (!ah)
		return sr_null(ENOMEM);
	struct softroce_create_ah_request req = {
		.pd = sr_base_pd(pd)->ibv.handle,
		.ah = sr_ah_to_abi(attr),
	};
	struct softroce_handle_reply reply;
	int error = sr_command(&sr_ctx(pd->context)->conn, SOFTROCE_OP_CREATE_AH, &req, sizeof req,
			       &reply, sizeof reply);
	if (error) {
		free(ah);
		return sr_null(error);
	}
	ah->context = pd->context;
	ah->pd = pd;
	ah->handle = reply.handle;
	return ah;
}

SR_PUBLIC int ibv_destroy_ah(struct ibv_ah *ah)
{
	int error = sr_destroy(&sr_ctx(ah->context)->conn, SOFTROCE_OP_DESTROY_AH, ah->handle);
	if (error)
		return error;
	free(ah);
	return 0;
}

/* A received IPv4 header is in the second half of the 40 bytes of the GRH. */
#define GRH_IPV4	    20
#define IPV4_TOS	    1
#define IPV4_SOURCE	    12
#define IPV4_DESTINATION    16
#define REPLY_HOP_LIMIT	    0xff
#define FLOW_LABEL_MASK	    0xfffff
#define TRAFFIC_CLASS_SHIFT 20

static void set_ipv4_mapped(union ibv_gid *gid, const uint8_t *ipv4)
{
	memset(gid, 0, sizeof *gid);
	gid->raw[10] = gid->raw[11] = 0xff;
	memcpy(gid->raw + 12, ipv4, 4);
}

/*
 * Reads the source of a received datagram into ah and its destination into to. IPv4 if the first
 * 4 bits are not those of an IPv6 header.
 */
static void grh_addresses(const struct ibv_grh *grh, struct ibv_ah_attr *ah, union ibv_gid *to)
{
	const uint8_t *v4 = (const uint8_t *)grh + GRH_IPV4;
	uint32_t head = ntohl(grh->version_tclass_flow);
	if (head >> 28 == 6) {
		ah->grh.dgid = grh->sgid;
		*to = grh->dgid;
		ah->grh.flow_label = head & FLOW_LABEL_MASK;
		ah->grh.traffic_class = head >> TRAFFIC_CLASS_SHIFT & 0xff;
		return;
	}
	set_ipv4_mapped(&ah->grh.dgid, v4 + IPV4_SOURCE);
	set_ipv4_mapped(to, v4 + IPV4_DESTINATION);
	ah->grh.traffic_class = v4[IPV4_TOS];
}

SR_PUBLIC int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc,
				  struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
	memset(attr, 0, sizeof *attr);
	attr->dlid = wc->slid;
	attr->sl = wc->sl;
	attr->src_path_bits = wc->dlid_path_bits;
	attr->port_num = port;
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	attr->is_global = 1;
	attr->grh.hop_limit = REPLY_HOP_LIMIT;

	union ibv_gid to;
	struct softroce_gid_entry *gids;
	uint32_t n;
	grh_addresses(grh, attr, &to);
	int error = port == 1 ? sr_query_gids(context, &gids, &n) : EINVAL;
	if (error) {
		errno = error;
		return -1;
	}
	bool found = false;
	for (uint32_t i = 0; i < n && !found; i++) {
		if (memcmp(gids[i].gid, to.raw, sizeof to.raw))
			continue;
		attr->grh.sgid_index = gids[i].index;
		found = true;
	}
	free(gids);
	if (found)
		return 0;
	errno = ENOENT; /* sent to a multicast group, or the address was removed */
	return -1;
}

SR_PUBLIC struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc,
					       struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;
	if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}
