// SPDX-License-Identifier: Apache-2.0
/*
 * Symbols that must exist for programs to start, but do nothing here:
 *
 * - Functions of IBVERBS_1.0, the ABI of 2006, which had other structs.
 * - Functions of later releases for features that this NIC does not have.
 * - Private functions that kernel drivers' providers import. perftest and others are linked against
 *   libmlx5 and libefa, which find no device of theirs here.
 *
 * They fail with EOPNOTSUPP.
 */
#include "ibverbs/context.h"
#include "ibverbs/query.h"

#define SR_STUB __attribute__((used, visibility("default")))

/* For functions that return an errno. */
SR_STUB int sr_stub(void)
{
	return sr_error(EOPNOTSUPP);
}

/* For functions that return a pointer. */
SR_STUB void *sr_stub_null(void)
{
	return sr_null(EOPNOTSUPP);
}

/* For functions that return -1 on failure. */
SR_STUB int sr_stub_negative(void)
{
	errno = EOPNOTSUPP;
	return -1;
}

/*
 * For functions without a result. A provider may register itself; it is never asked for a
 * device.
 */
SR_STUB void sr_stub_void(void)
{
}

SR_STUB int sr_read_ibdev_sysfs_file(char *buf, size_t size, struct ibv_device *device,
				     const char *format, ...)
{
	(void)buf, (void)size, (void)device, (void)format;
	return sr_stub_negative();
}

/* A private function that is implemented. */
SR_STUB int sr_private_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index,
				      unsigned int *type)
{
	return sr_query_gid_type(context, port, index, type);
}

SR_STUB bool sr_allow_disassociate_destroy;

#define VERSION(own, name, node) __asm__(".symver " #own "," #name "@IBVERBS_" #node)

/* Gives a private function the private versions of all releases. */
#define PRIVATE(own, name)                                                                         \
	VERSION(own, name, PRIVATE_34);                                                            \
	VERSION(own, name, PRIVATE_57);                                                            \
	VERSION(own, name, PRIVATE_59);                                                            \
	VERSION(own, name, PRIVATE_64);                                                            \
	VERSION(own, name, PRIVATE_65)

VERSION(sr_stub_void, ibv_ack_async_event, 1.0);
VERSION(sr_stub_void, ibv_ack_cq_events, 1.0);
VERSION(sr_stub_null, ibv_alloc_pd, 1.0);
VERSION(sr_stub, ibv_attach_mcast, 1.0);
VERSION(sr_stub, ibv_close_device, 1.0);
VERSION(sr_stub_null, ibv_create_ah, 1.0);
VERSION(sr_stub_null, ibv_create_cq, 1.0);
VERSION(sr_stub_null, ibv_create_qp, 1.0);
VERSION(sr_stub_null, ibv_create_srq, 1.0);
VERSION(sr_stub, ibv_dealloc_pd, 1.0);
VERSION(sr_stub, ibv_dereg_mr, 1.0);
VERSION(sr_stub, ibv_destroy_ah, 1.0);
VERSION(sr_stub, ibv_destroy_cq, 1.0);
VERSION(sr_stub, ibv_destroy_qp, 1.0);
VERSION(sr_stub, ibv_destroy_srq, 1.0);
VERSION(sr_stub, ibv_detach_mcast, 1.0);
VERSION(sr_stub_void, ibv_free_device_list, 1.0);
VERSION(sr_stub_negative, ibv_get_async_event, 1.0);
VERSION(sr_stub_negative, ibv_get_cq_event, 1.0);
VERSION(sr_stub, ibv_get_device_guid, 1.0);
VERSION(sr_stub_null, ibv_get_device_list, 1.0);
VERSION(sr_stub_null, ibv_get_device_name, 1.0);
VERSION(sr_stub, ibv_modify_qp, 1.0);
VERSION(sr_stub, ibv_modify_srq, 1.0);
VERSION(sr_stub_null, ibv_open_device, 1.0);
VERSION(sr_stub, ibv_query_device, 1.0);
VERSION(sr_stub_negative, ibv_query_gid, 1.0);
VERSION(sr_stub_negative, ibv_query_pkey, 1.0);
VERSION(sr_stub, ibv_query_port, 1.0);
VERSION(sr_stub, ibv_query_qp, 1.0);
VERSION(sr_stub, ibv_query_srq, 1.0);
VERSION(sr_stub_null, ibv_reg_mr, 1.0);
VERSION(sr_stub, ibv_resize_cq, 1.0);
VERSION(sr_stub_void, ibv_register_driver, 1.1);

VERSION(sr_stub_null, ibv_alloc_dmah, 1.15);
VERSION(sr_stub, ibv_dealloc_dmah, 1.15);
VERSION(sr_stub_null, ibv_reg_mr_ex, 1.15);
VERSION(sr_stub_negative, ibv_dm_export_dmabuf_fd, 1.16);
VERSION(sr_stub_null, ibv_alloc_buf, 1.17);
VERSION(sr_stub, ibv_free_buf, 1.17);
VERSION(sr_stub_null, ibv_reg_buf_mr, 1.17);
VERSION(sr_stub, _ibv_query_comp_cntr_caps, 1.18);
VERSION(sr_stub_null, ibv_create_comp_cntr, 1.18);
VERSION(sr_stub, ibv_destroy_comp_cntr, 1.18);
VERSION(sr_stub_negative, ibv_export_buf_dmabuf_fd, 1.18);
VERSION(sr_stub, ibv_inc_comp_cntr, 1.18);
VERSION(sr_stub, ibv_inc_err_comp_cntr, 1.18);
VERSION(sr_stub, ibv_qp_attach_comp_cntr, 1.18);
VERSION(sr_stub, ibv_read_comp_cntr, 1.18);
VERSION(sr_stub, ibv_read_err_comp_cntr, 1.18);
VERSION(sr_stub, ibv_set_comp_cntr, 1.18);
VERSION(sr_stub, ibv_set_err_comp_cntr, 1.18);

PRIVATE(sr_stub, __ioctl_final_num_attrs);
PRIVATE(sr_stub, execute_ioctl);
PRIVATE(sr_stub, ibv_cmd_advise_mr);
PRIVATE(sr_stub, ibv_cmd_alloc_dm);
PRIVATE(sr_stub, ibv_cmd_alloc_dmah);
PRIVATE(sr_stub, ibv_cmd_alloc_mw);
PRIVATE(sr_stub, ibv_cmd_alloc_pd);
PRIVATE(sr_stub, ibv_cmd_attach_mcast);
PRIVATE(sr_stub, ibv_cmd_close_xrcd);
PRIVATE(sr_stub, ibv_cmd_create_ah);
PRIVATE(sr_stub, ibv_cmd_create_comp_cntr);
PRIVATE(sr_stub, ibv_cmd_create_counters);
PRIVATE(sr_stub, ibv_cmd_create_cq);
PRIVATE(sr_stub, ibv_cmd_create_cq_ex);
PRIVATE(sr_stub, ibv_cmd_create_cq_ex2);
PRIVATE(sr_stub, ibv_cmd_create_flow);
PRIVATE(sr_stub, ibv_cmd_create_flow_action_esp);
PRIVATE(sr_stub, ibv_cmd_create_qp);
PRIVATE(sr_stub, ibv_cmd_create_qp_ex);
PRIVATE(sr_stub, ibv_cmd_create_qp_ex2);
PRIVATE(sr_stub, ibv_cmd_create_rwq_ind_table);
PRIVATE(sr_stub, ibv_cmd_create_srq);
PRIVATE(sr_stub, ibv_cmd_create_srq_ex);
PRIVATE(sr_stub, ibv_cmd_create_wq);
PRIVATE(sr_stub, ibv_cmd_dealloc_mw);
PRIVATE(sr_stub, ibv_cmd_dealloc_pd);
PRIVATE(sr_stub, ibv_cmd_dereg_mr);
PRIVATE(sr_stub, ibv_cmd_destroy_ah);
PRIVATE(sr_stub, ibv_cmd_destroy_comp_cntr);
PRIVATE(sr_stub, ibv_cmd_destroy_counters);
PRIVATE(sr_stub, ibv_cmd_destroy_cq);
PRIVATE(sr_stub, ibv_cmd_destroy_flow);
PRIVATE(sr_stub, ibv_cmd_destroy_flow_action);
PRIVATE(sr_stub, ibv_cmd_destroy_qp);
PRIVATE(sr_stub, ibv_cmd_destroy_rwq_ind_table);
PRIVATE(sr_stub, ibv_cmd_destroy_srq);
PRIVATE(sr_stub, ibv_cmd_destroy_wq);
PRIVATE(sr_stub, ibv_cmd_detach_mcast);
PRIVATE(sr_stub, ibv_cmd_export_dmabuf_fd);
PRIVATE(sr_stub, ibv_cmd_free_dm);
PRIVATE(sr_stub, ibv_cmd_free_dmah);
PRIVATE(sr_stub, ibv_cmd_get_context);
PRIVATE(sr_stub, ibv_cmd_inc_comp_cntr);
PRIVATE(sr_stub, ibv_cmd_inc_err_comp_cntr);
PRIVATE(sr_stub, ibv_cmd_modify_cq);
PRIVATE(sr_stub, ibv_cmd_modify_flow_action_esp);
PRIVATE(sr_stub, ibv_cmd_modify_qp);
PRIVATE(sr_stub, ibv_cmd_modify_qp_ex);
PRIVATE(sr_stub, ibv_cmd_modify_srq);
PRIVATE(sr_stub, ibv_cmd_modify_wq);
PRIVATE(sr_stub, ibv_cmd_open_qp);
PRIVATE(sr_stub, ibv_cmd_open_xrcd);
PRIVATE(sr_stub, ibv_cmd_poll_cq);
PRIVATE(sr_stub, ibv_cmd_post_recv);
PRIVATE(sr_stub, ibv_cmd_post_send);
PRIVATE(sr_stub, ibv_cmd_post_srq_recv);
PRIVATE(sr_stub, ibv_cmd_qp_attach_comp_cntr);
PRIVATE(sr_stub, ibv_cmd_query_comp_cntr_caps);
PRIVATE(sr_stub, ibv_cmd_query_context);
PRIVATE(sr_stub, ibv_cmd_query_device_any);
PRIVATE(sr_stub, ibv_cmd_query_mr);
PRIVATE(sr_stub, ibv_cmd_query_port);
PRIVATE(sr_stub, ibv_cmd_query_port_speed);
PRIVATE(sr_stub, ibv_cmd_query_qp);
PRIVATE(sr_stub, ibv_cmd_query_srq);
PRIVATE(sr_stub, ibv_cmd_read_comp_cntr);
PRIVATE(sr_stub, ibv_cmd_read_counters);
PRIVATE(sr_stub, ibv_cmd_read_err_comp_cntr);
PRIVATE(sr_stub, ibv_cmd_reg_dm_mr);
PRIVATE(sr_stub, ibv_cmd_reg_dmabuf_mr);
PRIVATE(sr_stub, ibv_cmd_reg_mr);
PRIVATE(sr_stub, ibv_cmd_reg_mr_ex);
PRIVATE(sr_stub, ibv_cmd_req_notify_cq);
PRIVATE(sr_stub, ibv_cmd_rereg_mr);
PRIVATE(sr_stub, ibv_cmd_resize_cq);
PRIVATE(sr_stub, ibv_cmd_set_comp_cntr);
PRIVATE(sr_stub, ibv_cmd_set_err_comp_cntr);
PRIVATE(sr_stub, ibv_dmabuf_heap_cc_shared_init);
PRIVATE(sr_stub, ibv_dmabuf_heap_destroy);
PRIVATE(sr_stub, ibv_dmabuf_heap_free);
PRIVATE(sr_stub_null, ibv_wr_opcode_str);
PRIVATE(sr_stub_null, _verbs_init_and_alloc_context);
PRIVATE(sr_stub_null, ibv_dmabuf_heap_alloc);
PRIVATE(sr_stub_null, verbs_open_device);
PRIVATE(sr_stub_void, __verbs_log);
PRIVATE(sr_stub_void, verbs_init_cq);
PRIVATE(sr_stub_void, verbs_set_ops);
PRIVATE(sr_stub_void, verbs_uninit_context);
PRIVATE(sr_read_ibdev_sysfs_file, ibv_read_ibdev_sysfs_file);
PRIVATE(sr_allow_disassociate_destroy, verbs_allow_disassociate_destroy);
PRIVATE(sr_private_query_gid_type, ibv_query_gid_type);
VERSION(sr_stub_void, verbs_register_driver_34, PRIVATE_34);
VERSION(sr_stub_void, verbs_register_driver_57, PRIVATE_57);
VERSION(sr_stub_void, verbs_register_driver_59, PRIVATE_59);
VERSION(sr_stub_void, verbs_register_driver_64, PRIVATE_64);
VERSION(sr_stub_void, verbs_register_driver_65, PRIVATE_65);
