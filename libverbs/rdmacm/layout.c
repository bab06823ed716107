// SPDX-License-Identifier: Apache-2.0
/*
 * The layout of librdmacm's public structs; see ibverbs/layout.c.
 */
#include <rdma/rdma_cma.h>
#include <stddef.h>

#if defined(__x86_64__) && defined(__LP64__)

#define SIZE(type, bytes)     _Static_assert(sizeof(type) == (bytes), "size of " #type)
#define AT(type, field, byte) _Static_assert(offsetof(type, field) == (byte), #type "." #field)

SIZE(struct rdma_cm_id, 416);
AT(struct rdma_cm_id, verbs, 0);
AT(struct rdma_cm_id, channel, 8);
AT(struct rdma_cm_id, context, 16);
AT(struct rdma_cm_id, qp, 24);
AT(struct rdma_cm_id, route, 32);
AT(struct rdma_cm_id, ps, 344);
AT(struct rdma_cm_id, port_num, 348);
AT(struct rdma_cm_id, event, 352);
AT(struct rdma_cm_id, send_cq_channel, 360);
AT(struct rdma_cm_id, send_cq, 368);
AT(struct rdma_cm_id, recv_cq_channel, 376);
AT(struct rdma_cm_id, recv_cq, 384);
AT(struct rdma_cm_id, srq, 392);
AT(struct rdma_cm_id, pd, 400);
AT(struct rdma_cm_id, qp_type, 408);
SIZE(struct rdma_route, 312);
AT(struct rdma_route, addr, 0);
AT(struct rdma_route, path_rec, 296);
AT(struct rdma_route, num_paths, 304);
SIZE(struct rdma_cm_event, 80);
AT(struct rdma_cm_event, id, 0);
AT(struct rdma_cm_event, listen_id, 8);
AT(struct rdma_cm_event, event, 16);
AT(struct rdma_cm_event, status, 20);
AT(struct rdma_cm_event, param, 24);
SIZE(struct rdma_conn_param, 24);
AT(struct rdma_conn_param, private_data, 0);
AT(struct rdma_conn_param, private_data_len, 8);
AT(struct rdma_conn_param, responder_resources, 9);
AT(struct rdma_conn_param, initiator_depth, 10);
AT(struct rdma_conn_param, flow_control, 11);
AT(struct rdma_conn_param, retry_count, 12);
AT(struct rdma_conn_param, rnr_retry_count, 13);
AT(struct rdma_conn_param, srq, 14);
AT(struct rdma_conn_param, qp_num, 16);
SIZE(struct rdma_ud_param, 56);
AT(struct rdma_ud_param, private_data, 0);
AT(struct rdma_ud_param, private_data_len, 8);
AT(struct rdma_ud_param, ah_attr, 16);
AT(struct rdma_ud_param, qp_num, 48);
AT(struct rdma_ud_param, qkey, 52);
SIZE(struct rdma_addrinfo, 96);
AT(struct rdma_addrinfo, ai_flags, 0);
AT(struct rdma_addrinfo, ai_family, 4);
AT(struct rdma_addrinfo, ai_src_len, 16);
AT(struct rdma_addrinfo, ai_src_addr, 24);
AT(struct rdma_addrinfo, ai_dst_canonname, 48);
AT(struct rdma_addrinfo, ai_route, 64);
AT(struct rdma_addrinfo, ai_connect, 80);
AT(struct rdma_addrinfo, ai_next, 88);
SIZE(struct rdma_event_channel, 4);
AT(struct rdma_event_channel, fd, 0);

#endif
