// SPDX-License-Identifier: Apache-2.0
/*
 * The layout of the public structs, which is compiled into programs: that of rdma-core 44 on
 * x86-64. Headers of later releases may add members at the end; the offsets of these stay.
 */
#include <infiniband/verbs.h>
#include <stddef.h>

#if defined(__x86_64__) && defined(__LP64__)

#define SIZE(type, bytes)     _Static_assert(sizeof(type) == (bytes), "size of " #type)
#define AT(type, field, byte) _Static_assert(offsetof(type, field) == (byte), #type "." #field)

/* verbs_context grows at its front, so members are identified by their distance to the context. */
#define BEFORE(field, bytes)                                                                       \
	_Static_assert(offsetof(struct verbs_context, context) -                                   \
				       offsetof(struct verbs_context, field) ==                    \
			       (bytes),                                                            \
		       "verbs_context." #field)

SIZE(struct ibv_device, 664);
AT(struct ibv_device, node_type, 16);
AT(struct ibv_device, transport_type, 20);
AT(struct ibv_device, name, 24);
AT(struct ibv_device, dev_name, 88);
AT(struct ibv_device, dev_path, 152);
AT(struct ibv_device, ibdev_path, 408);
SIZE(struct ibv_context, 328);
AT(struct ibv_context, device, 0);
AT(struct ibv_context, ops, 8);
AT(struct ibv_context, cmd_fd, 264);
AT(struct ibv_context, async_fd, 268);
AT(struct ibv_context, num_comp_vectors, 272);
AT(struct ibv_context, mutex, 280);
AT(struct ibv_context, abi_compat, 320);
SIZE(struct ibv_context_ops, 256);
AT(struct ibv_context_ops, alloc_mw, 56);
AT(struct ibv_context_ops, bind_mw, 64);
AT(struct ibv_context_ops, dealloc_mw, 72);
AT(struct ibv_context_ops, poll_cq, 88);
AT(struct ibv_context_ops, req_notify_cq, 96);
AT(struct ibv_context_ops, post_srq_recv, 160);
AT(struct ibv_context_ops, post_send, 200);
AT(struct ibv_context_ops, post_recv, 208);
SIZE(struct ibv_qp, 160);
AT(struct ibv_qp, context, 0);
AT(struct ibv_qp, qp_context, 8);
AT(struct ibv_qp, pd, 16);
AT(struct ibv_qp, send_cq, 24);
AT(struct ibv_qp, recv_cq, 32);
AT(struct ibv_qp, srq, 40);
AT(struct ibv_qp, handle, 48);
AT(struct ibv_qp, qp_num, 52);
AT(struct ibv_qp, state, 56);
AT(struct ibv_qp, qp_type, 60);
AT(struct ibv_qp, mutex, 64);
AT(struct ibv_qp, cond, 104);
AT(struct ibv_qp, events_completed, 152);
AT(struct ibv_qp_ex, comp_mask, 160);
AT(struct ibv_qp_ex, wr_id, 168);
AT(struct ibv_qp_ex, wr_flags, 176);
AT(struct ibv_qp_ex, wr_atomic_cmp_swp, 184);
AT(struct ibv_qp_ex, wr_send, 240);
AT(struct ibv_qp_ex, wr_set_ud_addr, 272);
AT(struct ibv_qp_ex, wr_set_sge, 304);
AT(struct ibv_qp_ex, wr_start, 320);
AT(struct ibv_qp_ex, wr_complete, 328);
AT(struct ibv_qp_ex, wr_abort, 336);
AT(struct ibv_qp_ex, wr_atomic_write, 344);
SIZE(struct ibv_cq, 128);
AT(struct ibv_cq, context, 0);
AT(struct ibv_cq, channel, 8);
AT(struct ibv_cq, cq_context, 16);
AT(struct ibv_cq, handle, 24);
AT(struct ibv_cq, cqe, 28);
AT(struct ibv_cq, mutex, 32);
AT(struct ibv_cq, cond, 72);
AT(struct ibv_cq, comp_events_completed, 120);
AT(struct ibv_cq, async_events_completed, 124);
AT(struct ibv_cq_ex, comp_mask, 128);
AT(struct ibv_cq_ex, status, 132);
AT(struct ibv_cq_ex, wr_id, 136);
AT(struct ibv_cq_ex, start_poll, 144);
AT(struct ibv_cq_ex, next_poll, 152);
AT(struct ibv_cq_ex, end_poll, 160);
AT(struct ibv_cq_ex, read_opcode, 168);
AT(struct ibv_cq_ex, read_completion_ts, 248);
AT(struct ibv_cq_ex, read_completion_wallclock_ns, 280);
SIZE(struct ibv_srq, 128);
AT(struct ibv_srq, context, 0);
AT(struct ibv_srq, srq_context, 8);
AT(struct ibv_srq, pd, 16);
AT(struct ibv_srq, handle, 24);
AT(struct ibv_srq, mutex, 32);
AT(struct ibv_srq, cond, 72);
AT(struct ibv_srq, events_completed, 120);
SIZE(struct ibv_pd, 16);
AT(struct ibv_pd, context, 0);
AT(struct ibv_pd, handle, 8);
SIZE(struct ibv_mr, 48);
AT(struct ibv_mr, context, 0);
AT(struct ibv_mr, pd, 8);
AT(struct ibv_mr, addr, 16);
AT(struct ibv_mr, length, 24);
AT(struct ibv_mr, handle, 32);
AT(struct ibv_mr, lkey, 36);
AT(struct ibv_mr, rkey, 40);
SIZE(struct ibv_dm, 32);
AT(struct ibv_dm, context, 0);
AT(struct ibv_dm, memcpy_to_dm, 8);
AT(struct ibv_dm, memcpy_from_dm, 16);
AT(struct ibv_dm, comp_mask, 24);
AT(struct ibv_dm, handle, 28);
SIZE(struct ibv_alloc_dm_attr, 16);
SIZE(struct ibv_mw, 32);
AT(struct ibv_mw, context, 0);
AT(struct ibv_mw, pd, 8);
AT(struct ibv_mw, rkey, 16);
AT(struct ibv_mw, handle, 20);
AT(struct ibv_mw, type, 24);
SIZE(struct ibv_ah, 24);
AT(struct ibv_ah, context, 0);
AT(struct ibv_ah, pd, 8);
AT(struct ibv_ah, handle, 16);
SIZE(struct ibv_comp_channel, 16);
AT(struct ibv_comp_channel, context, 0);
AT(struct ibv_comp_channel, fd, 8);
AT(struct ibv_comp_channel, refcnt, 12);
SIZE(struct ibv_wc, 48);
AT(struct ibv_wc, wr_id, 0);
AT(struct ibv_wc, status, 8);
AT(struct ibv_wc, opcode, 12);
AT(struct ibv_wc, vendor_err, 16);
AT(struct ibv_wc, byte_len, 20);
AT(struct ibv_wc, imm_data, 24);
AT(struct ibv_wc, qp_num, 28);
AT(struct ibv_wc, src_qp, 32);
AT(struct ibv_wc, wc_flags, 36);
AT(struct ibv_wc, pkey_index, 40);
AT(struct ibv_wc, slid, 42);
AT(struct ibv_wc, sl, 44);
AT(struct ibv_wc, dlid_path_bits, 45);
SIZE(struct ibv_send_wr, 128);
AT(struct ibv_send_wr, wr_id, 0);
AT(struct ibv_send_wr, next, 8);
AT(struct ibv_send_wr, sg_list, 16);
AT(struct ibv_send_wr, num_sge, 24);
AT(struct ibv_send_wr, opcode, 28);
AT(struct ibv_send_wr, send_flags, 32);
AT(struct ibv_send_wr, imm_data, 36);
AT(struct ibv_send_wr, wr, 40);
AT(struct ibv_send_wr, qp_type, 72);
AT(struct ibv_send_wr, bind_mw, 80);
SIZE(struct ibv_recv_wr, 32);
AT(struct ibv_recv_wr, wr_id, 0);
AT(struct ibv_recv_wr, next, 8);
AT(struct ibv_recv_wr, sg_list, 16);
AT(struct ibv_recv_wr, num_sge, 24);
SIZE(struct ibv_qp_attr, 144);
AT(struct ibv_qp_attr, qp_state, 0);
AT(struct ibv_qp_attr, cap, 36);
AT(struct ibv_qp_attr, ah_attr, 56);
AT(struct ibv_qp_attr, alt_ah_attr, 88);
AT(struct ibv_qp_attr, pkey_index, 120);
AT(struct ibv_qp_attr, port_num, 129);
AT(struct ibv_qp_attr, alt_timeout, 134);
AT(struct ibv_qp_attr, rate_limit, 136);
SIZE(struct ibv_device_attr, 232);
AT(struct ibv_device_attr, node_guid, 64);
AT(struct ibv_device_attr, max_qp, 108);
AT(struct ibv_device_attr, atomic_cap, 164);
AT(struct ibv_device_attr, phys_port_cnt, 227);
AT(struct ibv_port_attr, state, 0);
AT(struct ibv_port_attr, gid_tbl_len, 12);
AT(struct ibv_port_attr, pkey_tbl_len, 32);
AT(struct ibv_port_attr, link_layer, 46);
AT(struct ibv_port_attr, flags, 47);
AT(struct ibv_port_attr, port_cap_flags2, 48);
SIZE(struct ibv_gid_entry, 32);
AT(struct ibv_gid_entry, gid, 0);
AT(struct ibv_gid_entry, gid_index, 16);
AT(struct ibv_gid_entry, port_num, 20);
AT(struct ibv_gid_entry, gid_type, 24);
AT(struct ibv_gid_entry, ndev_ifindex, 28);

BEFORE(query_port, 320);
BEFORE(advise_mr, 312);
BEFORE(alloc_null_mr, 304);
BEFORE(reg_dm_mr, 264);
BEFORE(alloc_dm, 256);
BEFORE(free_dm, 248);
BEFORE(create_counters, 280);
BEFORE(alloc_parent_domain, 208);
BEFORE(alloc_td, 192);
BEFORE(modify_cq, 184);
BEFORE(post_srq_ops, 176);
BEFORE(create_wq, 136);
BEFORE(query_rt_values, 128);
BEFORE(create_cq_ex, 120);
BEFORE(query_device_ex, 104);
BEFORE(ibv_create_flow, 80);
BEFORE(open_qp, 64);
BEFORE(create_qp_ex, 56);
BEFORE(get_srq_num, 48);
BEFORE(create_srq_ex, 40);
BEFORE(open_xrcd, 32);
BEFORE(close_xrcd, 24);
BEFORE(sz, 8);

#endif
