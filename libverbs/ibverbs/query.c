// SPDX-License-Identifier: Apache-2.0
/*
 * Queries of a device and its port: attributes, GIDs, P_Keys and the clock.
 */
#include "ibverbs/query.h"

#include <endian.h>
#include <net/if.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static int query(struct ibv_context *context, uint16_t op, void *reply, size_t len)
{
	return sr_command(&sr_ctx(context)->conn, op, NULL, 0, reply, len);
}

static int clamp_int(uint32_t v)
{
	return v > INT32_MAX ? INT32_MAX : (int)v;
}

static void fill_device_attr(struct ibv_device_attr *a, const struct softroce_device_attr *d)
{
	memset(a, 0, sizeof *a);
	memcpy(a->fw_ver, d->fw_ver, sizeof a->fw_ver);
	a->fw_ver[sizeof a->fw_ver - 1] = 0;
	a->node_guid = htobe64(d->node_guid);
	a->sys_image_guid = htobe64(d->sys_image_guid);
	a->max_mr_size = d->max_mr_size;
	a->page_size_cap = d->page_size_cap;
	a->vendor_id = d->vendor_id;
	a->vendor_part_id = d->vendor_part_id;
	a->hw_ver = d->hw_ver;
	a->max_qp = clamp_int(d->max_qp);
	a->max_qp_wr = clamp_int(d->max_qp_wr);
	a->device_cap_flags = d->device_cap_flags;
	a->max_sge = clamp_int(d->max_sge);
	a->max_sge_rd = clamp_int(d->max_sge_rd);
	a->max_cq = clamp_int(d->max_cq);
	a->max_cqe = clamp_int(d->max_cqe);
	a->max_mr = clamp_int(d->max_mr);
	a->max_pd = clamp_int(d->max_pd);
	a->max_qp_rd_atom = clamp_int(d->max_qp_rd_atom);
	a->max_ee_rd_atom = clamp_int(d->max_ee_rd_atom);
	a->max_res_rd_atom = clamp_int(d->max_res_rd_atom);
	a->max_qp_init_rd_atom = clamp_int(d->max_qp_init_rd_atom);
	a->max_ee_init_rd_atom = clamp_int(d->max_ee_init_rd_atom);
	a->atomic_cap = d->atomic_cap;
	a->max_ee = clamp_int(d->max_ee);
	a->max_rdd = clamp_int(d->max_rdd);
	a->max_mw = clamp_int(d->max_mw);
	a->max_raw_ipv6_qp = clamp_int(d->max_raw_ipv6_qp);
	a->max_raw_ethy_qp = clamp_int(d->max_raw_ethy_qp);
	a->max_mcast_grp = clamp_int(d->max_mcast_grp);
	a->max_mcast_qp_attach = clamp_int(d->max_mcast_qp_attach);
	a->max_total_mcast_qp_attach = clamp_int(d->max_total_mcast_qp_attach);
	a->max_ah = clamp_int(d->max_ah);
	a->max_fmr = clamp_int(d->max_fmr);
	a->max_map_per_fmr = clamp_int(d->max_map_per_fmr);
	a->max_srq = clamp_int(d->max_srq);
	a->max_srq_wr = clamp_int(d->max_srq_wr);
	a->max_srq_sge = clamp_int(d->max_srq_sge);
	a->max_pkeys = d->max_pkeys;
	a->local_ca_ack_delay = d->local_ca_ack_delay;
	a->phys_port_cnt = d->phys_port_cnt;
}

SR_PUBLIC int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	struct softroce_device_attr d;
	int error = query(context, SOFTROCE_OP_QUERY_DEVICE, &d, sizeof d);
	if (!error)
		fill_device_attr(attr, &d);
	return error;
}

/* All memory supports on-demand paging: it is accessed through the page tables of the process. */
static void set_odp_caps(struct ibv_device_attr_ex *a)
{
	const uint32_t datagrams = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV;
	const uint32_t srq = a->orig_attr.max_srq ? IBV_ODP_SUPPORT_SRQ_RECV : 0;
	const uint32_t uc = datagrams | IBV_ODP_SUPPORT_WRITE;
	const uint32_t atomic = a->orig_attr.atomic_cap ? IBV_ODP_SUPPORT_ATOMIC : 0;
	const uint32_t rc = uc | IBV_ODP_SUPPORT_READ | atomic;
	a->odp_caps.general_caps = IBV_ODP_SUPPORT;
	a->odp_caps.per_transport_caps.rc_odp_caps = rc | srq;
	a->odp_caps.per_transport_caps.uc_odp_caps = uc | srq;
	a->odp_caps.per_transport_caps.ud_odp_caps = datagrams | srq;
	a->xrc_odp_caps = rc | srq;
}

int sr_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
		       struct ibv_device_attr_ex *attr, size_t size)
{
	if ((input && input->comp_mask) || size < sizeof attr->orig_attr)
		return sr_error(EINVAL);
	struct softroce_device_attr d;
	int error = query(context, SOFTROCE_OP_QUERY_DEVICE, &d, sizeof d);
	if (error)
		return error;
	struct ibv_device_attr_ex a;
	memset(&a, 0, sizeof a);
	fill_device_attr(&a.orig_attr, &d);
	a.completion_timestamp_mask = d.timestamp_mask;
	a.hca_core_clock = d.hca_core_clock;
	a.device_cap_flags_ex = d.device_cap_flags_ex;
	if (d.on_demand_paging)
		set_odp_caps(&a);
	a.phys_port_cnt_ex = d.phys_port_cnt;
	a.max_dm_size = d.max_dm_size;
	a.packet_pacing_caps.qp_rate_limit_min = 1;
	a.packet_pacing_caps.qp_rate_limit_max = UINT32_MAX; /* the port's rate limits it too */
	a.packet_pacing_caps.supported_qpts =
		1 << IBV_QPT_RC | 1 << IBV_QPT_UC | 1 << IBV_QPT_UD | 1 << IBV_QPT_XRC_SEND;
	memset(attr, 0, size);
	memcpy(attr, &a, size < sizeof a ? size : sizeof a);
	return 0;
}

static int query_port(struct ibv_context *context, uint32_t port, struct softroce_port_attr *p)
{
	struct softroce_query_port_request r = {.port = port};
	return sr_command(&sr_ctx(context)->conn, SOFTROCE_OP_QUERY_PORT, &r, sizeof r, p,
			  sizeof *p);
}

/* 0 or an errno, EINVAL if the device does not have the port. */
static int check_port(struct ibv_context *context, uint32_t port)
{
	struct softroce_port_attr p;
	return port == 1 ? 0 : query_port(context, port, &p);
}

/* The newest member of struct ibv_port_attr, active_speed_ex, which this build may not have. */
#define ACTIVE_SPEED_EX 52

int sr_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
		  size_t size)
{
	struct softroce_port_attr p;
	int error = query_port(context, port, &p);
	if (error)
		return error;
	struct ibv_port_attr a = {
		.state = p.state,
		.max_mtu = p.max_mtu,
		.active_mtu = p.active_mtu,
		.gid_tbl_len = clamp_int(p.gid_tbl_len),
		.port_cap_flags = p.port_cap_flags,
		.max_msg_sz = p.max_msg_size,
		.bad_pkey_cntr = p.bad_pkey_cntr,
		.qkey_viol_cntr = p.qkey_viol_cntr,
		.pkey_tbl_len = p.pkey_tbl_len,
		.lid = p.lid,
		.sm_lid = p.sm_lid,
		.lmc = p.lmc,
		.max_vl_num = p.max_vl_num,
		.sm_sl = p.sm_sl,
		.subnet_timeout = p.subnet_timeout,
		.init_type_reply = p.init_type_reply,
		.active_width = p.active_width,
		.active_speed = p.active_speed,
		.phys_state = p.phys_state,
		.link_layer = p.link_layer,
		.flags = p.flags,
	};
	memset(attr, 0, size);
	memcpy(attr, &a, size < sizeof a ? size : sizeof a);
	if (size >= ACTIVE_SPEED_EX + sizeof p.active_speed_ex)
		memcpy((char *)attr + ACTIVE_SPEED_EX, &p.active_speed_ex,
		       sizeof p.active_speed_ex);
	return 0;
}

/* In 100 Mb/s. The headers of rdma-core before 62 do not declare it. */
int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed);

SR_PUBLIC int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed)
{
	struct softroce_port_attr p;
	int error = query_port(context, port, &p);
	if (!error)
		*speed = p.rate;
	return error;
}

/* Programs that call this symbol were built before the struct grew. */
SR_PUBLIC int ibv_query_port(struct ibv_context *context, uint8_t port,
			     struct _compat_ibv_port_attr *attr)
{
	return sr_query_port(context, port, (struct ibv_port_attr *)attr,
			     offsetof(struct ibv_port_attr, port_cap_flags2));
}

/* Copies the table of the context; NULL if it must be read, or there is no memory. */
static struct softroce_gid_entry *copy_gids(struct sr_context *ctx, uint32_t *count)
{
	struct softroce_gid_entry *copy = NULL;
	pthread_mutex_lock(&ctx->lock);
	struct sr_gid_table *t = &ctx->gids;
	if (t->entries && sr_copies_valid(ctx) && t->changes == sr_address_changes(ctx)) {
		copy = malloc((t->count + 1) * sizeof *copy);
		if (copy)
			memcpy(copy, t->entries, t->count * sizeof *copy);
		*count = t->count;
	}
	pthread_mutex_unlock(&ctx->lock);
	return copy;
}

static void keep_gids(struct sr_context *ctx, const struct softroce_gid_entry *gids, uint32_t count,
		      uint32_t changes)
{
	struct softroce_gid_entry *copy = malloc((count + 1) * sizeof *copy);
	if (!copy)
		return;
	memcpy(copy, gids, count * sizeof *copy);
	pthread_mutex_lock(&ctx->lock);
	struct sr_gid_table *t = &ctx->gids;
	free(t->entries);
	t->entries = copy;
	t->count = count;
	t->changes = changes;
	pthread_mutex_unlock(&ctx->lock);
}

int sr_query_gids(struct ibv_context *context, struct softroce_gid_entry **gids, uint32_t *count)
{
	struct sr_context *ctx = sr_ctx(context);
	*gids = copy_gids(ctx, count);
	if (*gids)
		return 0;
	uint32_t changes = sr_address_changes(ctx);
	struct softroce_list_reply *reply = NULL;
	size_t len = 0;
	struct sr_request r = {
		.op = SOFTROCE_OP_QUERY_GIDS,
		.whole_reply = (void **)&reply,
		.whole_reply_len = &len,
	};
	int error = sr_call(&ctx->conn, &r);
	if (error)
		return error;
	if (len < sizeof *reply) {
		free(reply);
		return EPROTO;
	}
	size_t n = (len - sizeof *reply) / sizeof **gids;
	*count = n < reply->count ? n : reply->count;
	memmove(reply, reply + 1, *count * sizeof **gids);
	*gids = (struct softroce_gid_entry *)reply;
	keep_gids(ctx, *gids, *count, changes);
	return 0;
}

/* ENODATA if the index is not in use. Only port 1 has GIDs. */
static int find_gid(struct ibv_context *context, uint32_t port, uint32_t index,
		    struct softroce_gid_entry *found)
{
	struct softroce_gid_entry *gids;
	uint32_t n;
	int error = check_port(context, port);
	if (!error && port != 1)
		error = ENODATA;
	if (error)
		return error;
	error = sr_query_gids(context, &gids, &n);
	if (error)
		return error;
	error = ENODATA;
	for (uint32_t i = 0; i < n; i++) {
		if (gids[i].index == index) {
			*found = gids[i];
			error = 0;
		}
	}
	free(gids);
	return error;
}

static int gid_table_length(struct ibv_context *context, uint32_t *n)
{
	struct sr_context *ctx = sr_ctx(context);
	struct softroce_port_attr p;
	pthread_mutex_lock(&ctx->lock);
	*n = ctx->gids.length;
	pthread_mutex_unlock(&ctx->lock);
	if (*n)
		return 0;
	int error = query_port(context, 1, &p);
	if (error)
		return error;
	pthread_mutex_lock(&ctx->lock);
	*n = ctx->gids.length = p.gid_tbl_len;
	pthread_mutex_unlock(&ctx->lock);
	return 0;
}

/* An unused index has the zero GID. */
SR_PUBLIC int ibv_query_gid(struct ibv_context *context, uint8_t port, int index,
			    union ibv_gid *gid)
{
	struct softroce_gid_entry e;
	uint32_t n = 0;
	int error = index >= 0 ? find_gid(context, port, index, &e) : EINVAL;
	if (error == ENODATA) {
		memset(&e, 0, sizeof e);
		error = gid_table_length(context, &n);
		if (!error && (uint32_t)index >= n)
			error = EINVAL;
	}
	if (error) {
		errno = error;
		return -1;
	}
	memcpy(gid->raw, e.gid, sizeof gid->raw);
	return 0;
}

static void fill_gid_entry(struct ibv_gid_entry *out, const struct softroce_gid_entry *e)
{
	char netdev[sizeof e->netdev + 1] = {0};
	memcpy(netdev, e->netdev, sizeof e->netdev);
	memset(out, 0, sizeof *out);
	memcpy(out->gid.raw, e->gid, sizeof out->gid.raw);
	out->gid_index = e->index;
	out->port_num = 1;
	out->gid_type = e->type;
	out->ndev_ifindex = netdev[0] ? if_nametoindex(netdev) : 0;
}

static void copy_entry(void *to, const struct ibv_gid_entry *e, size_t size)
{
	memset(to, 0, size);
	memcpy(to, e, size < sizeof *e ? size : sizeof *e);
}

SR_PUBLIC int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
				struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
	if (flags)
		return sr_error(EOPNOTSUPP);
	struct softroce_gid_entry found;
	struct ibv_gid_entry e;
	uint32_t n = 0;
	int error = find_gid(context, port, index, &found);
	if (error == ENODATA && !gid_table_length(context, &n) && index >= n)
		error = EINVAL;
	if (error)
		return sr_error(error);
	fill_gid_entry(&e, &found);
	copy_entry(entry, &e, size);
	return 0;
}

SR_PUBLIC ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
				       size_t max, uint32_t flags, size_t size)
{
	if (flags)
		return -sr_error(EOPNOTSUPP);
	struct softroce_gid_entry *gids;
	uint32_t n;
	int error = sr_query_gids(context, &gids, &n);
	if (error)
		return -sr_error(error);
	if (n > max) {
		free(gids);
		return -sr_error(EINVAL);
	}
	for (uint32_t i = 0; i < n; i++) {
		struct ibv_gid_entry e;
		fill_gid_entry(&e, &gids[i]);
		copy_entry((char *)entries + i * size, &e, size);
	}
	free(gids);
	return n;
}

/* The type is private to rdma-core: 0 is RoCE v1, 1 is RoCE v2. */
int sr_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index,
		      unsigned int *type)
{
	struct softroce_gid_entry e;
	int error = find_gid(context, port, index, &e);
	if (error == ENODATA)
		e.type = IBV_GID_TYPE_ROCE_V2;
	else if (error) {
		errno = error;
		return -1;
	}
	*type = e.type == IBV_GID_TYPE_ROCE_V2;
	return 0;
}

/* An unused index has the P_Key 0. */
SR_PUBLIC int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
	struct {
		struct softroce_list_reply list;
		uint16_t keys[SOFTROCE_MAX_PKEYS];
	} *reply = NULL;
	size_t len = 0;
	struct sr_request r = {
		.op = SOFTROCE_OP_QUERY_PKEYS,
		.whole_reply = (void **)&reply,
		.whole_reply_len = &len,
	};
	int error = index >= 0 ? check_port(context, port) : EINVAL;
	if (!error)
		error = sr_call(&sr_ctx(context)->conn, &r);
	if (!error && (len < sizeof reply->list + ((size_t)index + 1) * sizeof *reply->keys ||
		       (uint32_t)index >= reply->list.count))
		error = EINVAL;
	if (!error)
		*pkey = htobe16(reply->keys[index]);
	free(reply);
	if (!error)
		return 0;
	errno = error;
	return -1;
}

SR_PUBLIC int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey)
{
	__be16 have;
	for (int i = 0; !ibv_query_pkey(context, port, i, &have); i++)
		if (have == pkey)
			return i;
	return -1;
}

int sr_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
	uint32_t wanted = values->comp_mask;
	values->comp_mask = 0;
	struct softroce_clock_reply now;
	/* Also if the program wants nothing: the NIC may have no clock. */
	int error = query(context, SOFTROCE_OP_QUERY_CLOCK, &now, sizeof now);
	if (error || !(wanted & IBV_VALUES_MASK_RAW_CLOCK))
		return error;
	values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
	/* The raw clock counts ticks of hca_core_clock; here a tick is a nanosecond. */
	values->raw_clock.tv_sec = (time_t)(now.clock / 1000000000);
	values->raw_clock.tv_nsec = (long)(now.clock % 1000000000);
	return 0;
}
