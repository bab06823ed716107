package fault

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// VerbNames are the control verbs that rules can name, as libibverbs (without the prefix ibv_) and
// librdmacm call them.
var VerbNames = []string{
	"open_device", "query_device", "query_port",
	"query_gid", "query_pkey", "query_rt_values",
	"alloc_pd", "dealloc_pd",
	"reg_mr", "rereg_mr", "import_mr", "dereg_mr",
	"alloc_mw", "dealloc_mw",
	"alloc_dm", "import_dm", "memcpy_to_dm", "memcpy_from_dm", "free_dm",
	"open_xrcd", "close_xrcd",
	"create_ah", "destroy_ah",
	"create_comp_channel", "destroy_comp_channel",
	"create_cq", "resize_cq", "destroy_cq",
	"create_srq", "modify_srq", "query_srq", "destroy_srq",
	"create_qp", "modify_qp", "query_qp", "destroy_qp",
	"attach_mcast", "detach_mcast",

	"rdma_create_event_channel", "rdma_destroy_event_channel",
	"rdma_create_id", "rdma_destroy_id", "rdma_migrate_id",
	"rdma_bind_addr", "rdma_resolve_addr", "rdma_resolve_route",
	"rdma_listen", "rdma_connect", "rdma_accept", "rdma_reject",
	"rdma_establish", "rdma_disconnect", "rdma_notify",
	"rdma_init_qp_attr", "rdma_set_option", "rdma_join_multicast", "rdma_leave_multicast",
}

// errnos has the error numbers of Linux by name.
var errnos = func() map[string]syscall.Errno {
	m := map[string]syscall.Errno{}
	for e := syscall.Errno(1); e < 134; e++ {
		if name := unix.ErrnoName(e); name != "" {
			m[name] = e
		}
	}
	return m
}()
