/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attach ABI of softroce: what a client and the daemon share.
 *
 * Code generated from package internal/abi. DO NOT EDIT.
 * docs/reference/attach-abi.md explains it.
 */
#ifndef SOFTROCE_ABI_H
#define SOFTROCE_ABI_H

#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the attach ABI is for little-endian machines"
#endif

/*
 * Offsets in the header of every ring.
 */
#define SOFTROCE_RING_PRODUCER 0 /* u32, written by the producer */
#define SOFTROCE_RING_CONSUMER 64 /* u32, written by the consumer */
#define SOFTROCE_CQ_ARMED 128 /* u32, CQ rings: written by the client: SOFTROCE_CQ_ARM_*; the daemon resets it to 0 with each event */
#define SOFTROCE_CQ_EVENTS 192 /* u32, CQ rings: written by the daemon: number of completion events */
#define SOFTROCE_RECV_DOORBELL 128 /* u32, receive rings: written by the daemon: not 0 if posting a receive must ring the doorbell */
#define SOFTROCE_RING_SLOTS 256

/*
 * Values of SOFTROCE_CQ_ARMED.
 */
#define SOFTROCE_CQ_ARM_NONE 0
#define SOFTROCE_CQ_ARM_SOLICITED 1
#define SOFTROCE_CQ_ARM_NEXT 2

/*
 * Offsets in the doorbell page of a context. The client stores the producer index of a
 * send queue, sets the queue's bit in SOFTROCE_DOORBELL_BITS with an atomic OR, then
 * (after a full fence) loads SOFTROCE_DOORBELL_ASLEEP; if that is not 0 it writes 1 to
 * the context's doorbell eventfd. Bit n modulo 64 of the 64-bit word at
 * SOFTROCE_DOORBELL_BITS + 8*(n/64) belongs to the QP with doorbell number n. After
 * posting a receive and a fence, the client does the same if SOFTROCE_RECV_DOORBELL is
 * not 0: the QP is in error, and the receive must be flushed. The words from
 * SOFTROCE_DOORBELL_LENT to SOFTROCE_DOORBELL_MOVE are hints, for when more threads run
 * than there are processors. After each post of sends, the client stores the number of
 * its processor plus 1, if it knows the number, in the lower half of
 * SOFTROCE_DOORBELL_PROCESSOR. The upper half counts the time that it has spent polling
 * for completions that did not come. If SOFTROCE_DOORBELL_LENT is not 0 after a post, the
 * client yields the processor: an engine on the same one may have lent it to the client,
 * for a reply to a message. Before it yields for lack of completions, the client clears
 * SOFTROCE_DOORBELL_MOVE. If that was not 0 and the thread is on the processor of
 * SOFTROCE_DOORBELL_ENGINE, it moves to that of SOFTROCE_DOORBELL_MOVE, if it may run
 * there.
 */
#define SOFTROCE_DOORBELL_ASLEEP 0 /* u32, written by the daemon */
#define SOFTROCE_DOORBELL_ADDRESSES 4 /* u32, written by the daemon: another value when the GID table has changed */
#define SOFTROCE_DOORBELL_LENT 8 /* u32, written by the daemon: not 0 if a post should yield the processor */
#define SOFTROCE_DOORBELL_PROCESSOR 12 /* u32, written by the client: its processor, plus 1, and the time */
#define SOFTROCE_DOORBELL_ENGINE 16 /* u32, written by the daemon: processor of the engine, plus 1, or 0 */
#define SOFTROCE_DOORBELL_MOVE 20 /* u32, written by both: processor to move to, plus 1 */
#define SOFTROCE_DOORBELL_BITS 64 /* u64 words */
#define SOFTROCE_DOORBELL_SIZE 16384
#define SOFTROCE_MAX_DOORBELLS 130560

/*
 * The halves of SOFTROCE_DOORBELL_PROCESSOR.
 */
#define SOFTROCE_PROCESSOR_MASK 65535
#define SOFTROCE_PROCESSOR_WAITED 65536 /* one unit of time */
#define SOFTROCE_WAITED_UNIT 1024 /* ns */

/*
 * struct softroce_sge is a scatter/gather element: struct ibv_sge.
 */
struct softroce_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};
_Static_assert(sizeof(struct softroce_sge) == 16, "layout");

/*
 * struct softroce_send_wqe is the start of a send slot. num_sge elements of struct
 * softroce_sge follow it, or with SOFTROCE_SEND_INLINE the data. A bind and a FLUSH lay
 * these bytes out as struct softroce_bind_wqe and struct softroce_flush_wqe.
 */
struct softroce_send_wqe {
	uint64_t wr_id;
	uint32_t opcode; /* ibv_wr_opcode */
	uint32_t flags; /* ibv_send_flags */
	uint32_t imm; /* immediate data in network byte order, or the R_Key to invalidate */
	uint32_t num_sge; /* number of elements, or with SOFTROCE_SEND_INLINE bytes of data */
	uint64_t remote_addr;
	uint32_t rkey;
	uint32_t ah_or_srq; /* UD: handle of the address handle; XRC: number of the peer's shared receive queue */
	uint64_t compare_add;
	uint64_t swap;
	uint32_t remote_qp_num; /* UD */
	uint32_t remote_qkey; /* UD */
};
_Static_assert(sizeof(struct softroce_send_wqe) == 64, "layout");

/*
 * struct softroce_bind_wqe is struct softroce_send_wqe of a work request that binds a
 * memory window.
 */
struct softroce_bind_wqe {
	uint64_t wr_id;
	uint32_t opcode;
	uint32_t flags;
	uint64_t reserved0;
	uint64_t addr; /* of the window's first byte, as the memory region counts addresses */
	uint32_t rkey; /* the new R_Key: all but its low 8 bits name the window */
	uint32_t reserved1;
	uint64_t length;
	uint64_t reserved2;
	uint32_t lkey; /* of the memory region */
	uint32_t access; /* ibv_access_flags */
};
_Static_assert(sizeof(struct softroce_bind_wqe) == 64, "layout");

/*
 * struct softroce_flush_wqe is struct softroce_send_wqe of a FLUSH.
 */
struct softroce_flush_wqe {
	uint64_t wr_id;
	uint32_t opcode;
	uint32_t flags;
	uint64_t reserved0;
	uint64_t remote_addr;
	uint32_t rkey;
	uint32_t reserved1;
	uint32_t length;
	uint32_t reserved2;
	uint64_t reserved3;
	uint8_t placement; /* ibv_placement_type */
	uint8_t reserved4[3];
	uint8_t selectivity; /* ibv_selectivity_level */
	uint8_t reserved5[3];
};
_Static_assert(sizeof(struct softroce_flush_wqe) == 64, "layout");

/*
 * struct softroce_recv_wqe is the start of a receive slot. num_sge elements of struct
 * softroce_sge follow it.
 */
struct softroce_recv_wqe {
	uint64_t wr_id;
	uint32_t num_sge;
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_recv_wqe) == 16, "layout");

/*
 * struct softroce_cqe is a slot of a completion queue. Values are those of struct ibv_wc,
 * and of the readers of struct ibv_cq_ex. There are no flow tags, and there is no tag
 * matching.
 */
struct softroce_cqe {
	uint64_t wr_id;
	uint32_t status; /* ibv_wc_status */
	uint32_t opcode; /* ibv_wc_opcode */
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm; /* immediate data in network byte order, or the R_Key that was invalidated */
	uint32_t qp_num;
	uint32_t src_qp;
	uint32_t flags; /* ibv_wc_flags */
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t path_bits;
	uint16_t vlan; /* receives: the VLAN tag with its priority (TCI), 0 for none */
	uint64_t timestamp; /* device clock: ns since the daemon's engine started */
	uint64_t wallclock; /* ns since 1970 */
};
_Static_assert(sizeof(struct softroce_cqe) == 64, "layout");

/*
 * struct softroce_async_event is a slot of the ring of asynchronous events. Events that
 * find the ring full wait: see SOFTROCE_EVENTS_WAITING.
 */
struct softroce_async_event {
	uint32_t type; /* ibv_event_type */
	uint32_t handle; /* of the queue pair, completion queue or shared receive queue, or 0 */
	uint32_t port;
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_async_event) == 16, "layout");

/*
 * Sizes of the slots' structs, in bytes.
 */
#define SOFTROCE_SGE_SIZE 16
#define SOFTROCE_SEND_WQE_SIZE 64
#define SOFTROCE_RECV_WQE_SIZE 16
#define SOFTROCE_CQE_SIZE 64
#define SOFTROCE_ASYNC_EVENT_SIZE 16

/*
 * Bits of struct softroce_send_wqe's Flags: those of ibv_send_flags.
 */
#define SOFTROCE_SEND_FENCE 1
#define SOFTROCE_SEND_SIGNALED 2
#define SOFTROCE_SEND_SOLICITED 4
#define SOFTROCE_SEND_INLINE 8

/*
 * SOFTROCE_VERSION of the ABI. A client and a daemon must have the same.
 */
#define SOFTROCE_VERSION 5

/*
 * Sizes of messages, in bytes.
 */
#define SOFTROCE_MAX_MESSAGE 65536 /* including the header */
#define SOFTROCE_MAX_FDS 8 /* descriptors per message */
#define SOFTROCE_NAME_SIZE 64 /* of a device, including the zero byte that ends it */
#define SOFTROCE_IF_NAME_SIZE 16 /* of a network interface, including the zero byte */

/*
 * struct softroce_header is the start of every message.
 */
struct softroce_header {
	uint16_t version;
	uint16_t op; /* SOFTROCE_OP_* */
	uint32_t length; /* of the whole message */
	uint64_t tag; /* chosen by the client; returned in the reply */
	uint32_t error; /* replies: 0, or an errno; then the body is an error text in UTF-8 */
	uint32_t fds; /* descriptors that accompany the message */
	uint8_t reserved0[8];
};
_Static_assert(sizeof(struct softroce_header) == 32, "layout");

/*
 * Operations.
 */
#define SOFTROCE_OP_HELLO 1
#define SOFTROCE_OP_LIST_DEVICES 2
#define SOFTROCE_OP_OPEN_DEVICE 3
#define SOFTROCE_OP_QUERY_DEVICE 4
#define SOFTROCE_OP_QUERY_PORT 5
#define SOFTROCE_OP_QUERY_GIDS 6
#define SOFTROCE_OP_QUERY_PKEYS 7
#define SOFTROCE_OP_QUERY_CLOCK 8
#define SOFTROCE_OP_JOIN_DEVICE 9
#define SOFTROCE_OP_ALLOC_PD 16
#define SOFTROCE_OP_DEALLOC_PD 17
#define SOFTROCE_OP_REG_MR 18
#define SOFTROCE_OP_DEREG_MR 19
#define SOFTROCE_OP_CREATE_AH 20
#define SOFTROCE_OP_DESTROY_AH 21
#define SOFTROCE_OP_ALLOC_MW 22
#define SOFTROCE_OP_DEALLOC_MW 23
#define SOFTROCE_OP_OPEN_XRCD 24
#define SOFTROCE_OP_CLOSE_XRCD 25
#define SOFTROCE_OP_REREG_MR 26
#define SOFTROCE_OP_QUERY_MR 27
#define SOFTROCE_OP_HOLD_MEMORY 28
#define SOFTROCE_OP_RELEASE_MEMORY 29
#define SOFTROCE_OP_ALLOC_DM 40
#define SOFTROCE_OP_FREE_DM 41
#define SOFTROCE_OP_QUERY_DM 42
#define SOFTROCE_OP_COPY_TO_DM 43
#define SOFTROCE_OP_COPY_FROM_DM 44
#define SOFTROCE_OP_CREATE_CHANNEL 32
#define SOFTROCE_OP_DESTROY_CHANNEL 33
#define SOFTROCE_OP_CREATE_CQ 34
#define SOFTROCE_OP_DESTROY_CQ 35
#define SOFTROCE_OP_RESIZE_CQ 36
#define SOFTROCE_OP_CREATE_QP 48
#define SOFTROCE_OP_MODIFY_QP 49
#define SOFTROCE_OP_QUERY_QP 50
#define SOFTROCE_OP_DESTROY_QP 51
#define SOFTROCE_OP_CREATE_SRQ 56
#define SOFTROCE_OP_MODIFY_SRQ 57
#define SOFTROCE_OP_QUERY_SRQ 58
#define SOFTROCE_OP_DESTROY_SRQ 59
#define SOFTROCE_OP_ATTACH_MCAST 60
#define SOFTROCE_OP_DETACH_MCAST 61
#define SOFTROCE_OP_SNAPSHOT 64
#define SOFTROCE_OP_START_CAPTURE 65
#define SOFTROCE_OP_QUERY_CAPTURE 66
#define SOFTROCE_OP_STOP_CAPTURE 67
#define SOFTROCE_OP_GOODBYE 68 /* from the daemon, with tag 0: why it closes the socket */
#define SOFTROCE_OP_SET_PKEYS 69
#define SOFTROCE_OP_OPEN_TREE 70 /* its reply comes with a directory: sys/class/infiniband… and dev/infiniband, as the kernel has them */
#define SOFTROCE_OP_SET_LINK 71
#define SOFTROCE_OP_ADD_FAULTS 72
#define SOFTROCE_OP_REMOVE_FAULT 73
#define SOFTROCE_OP_FIRE_EVENT 74
#define SOFTROCE_OP_SET_COUNTER 75
#define SOFTROCE_OP_SET_CONGESTION 76

/*
 * struct softroce_hello_request is the first message of a connection. The reply has the
 * daemon's version; if the request's differs, the error is EPROTONOSUPPORT.
 */
struct softroce_hello_request {
	uint8_t comm[16]; /* the program's name, as "softroce show" prints it; ends with a zero byte */
};
_Static_assert(sizeof(struct softroce_hello_request) == 16, "layout");

/*
 * struct softroce_hello_reply describes the daemon.
 */
struct softroce_hello_reply {
	uint32_t pid; /* of the daemon, in its PID namespace */
	uint32_t devices;
	uint8_t release[64]; /* text */
};
_Static_assert(sizeof(struct softroce_hello_reply) == 72, "layout");

/*
 * struct softroce_list_reply is followed by Count elements: struct softroce_device_entry
 * (SOFTROCE_OP_LIST_DEVICES), struct softroce_gid_entry (SOFTROCE_OP_QUERY_GIDS), or
 * P_Keys (SOFTROCE_OP_QUERY_PKEYS), a u16 each in the order of their indices.
 */
struct softroce_list_reply {
	uint32_t count;
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_list_reply) == 8, "layout");

/*
 * struct softroce_device_entry is a device that can be opened.
 */
struct softroce_device_entry {
	uint8_t name[64];
	uint8_t netdev[16]; /* empty on a fabric */
	uint64_t node_guid; /* the first byte of the GUID is the most significant */
	uint32_t port_state; /* ibv_port_state */
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_device_entry) == 96, "layout");

/*
 * struct softroce_open_device_request makes the connection a context of the device. An
 * empty name means the daemon's first device. A connection opens one device.
 */
struct softroce_open_device_request {
	uint8_t name[64];
};
_Static_assert(sizeof(struct softroce_open_device_request) == 64, "layout");

/*
 * struct softroce_chunk is memory in which several rings are. A reply that says where a
 * ring is comes with the descriptor of its chunk, also if the client has it already: it
 * maps a chunk when it sees the number for the first time, and needs the mapping as long
 * as it has a ring there.
 */
struct softroce_chunk {
	uint32_t number; /* is not used again by the connection */
	uint32_t size; /* in bytes */
};
_Static_assert(sizeof(struct softroce_chunk) == 8, "layout");

/*
 * struct softroce_open_device_reply comes with four descriptors: the doorbell page, the
 * doorbell eventfd, the chunk of the ring of asynchronous events, and its event socket.
 */
struct softroce_open_device_reply {
	uint8_t name[64];
	uint64_t node_guid;
	uint32_t doorbell_size; /* bytes of the doorbell page */
	uint32_t event_slots; /* slots of the event ring, SOFTROCE_ASYNC_EVENT_SIZE bytes each */
	struct softroce_chunk chunk;
	uint32_t event_ring; /* offset in the chunk */
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_open_device_reply) == 96, "layout");

/*
 * SOFTROCE_EVENTS_WAITING is the offset of the number of events that wait in the daemon
 * because the ring of asynchronous events is full. If it is not 0 after a client has
 * taken an event, the client wakes the engine as after posting, and the engine moves
 * events to the ring.
 */
#define SOFTROCE_EVENTS_WAITING 128 /* u32 in the ring's header, written by the daemon */

/*
 * struct softroce_device_attr is the reply of SOFTROCE_OP_QUERY_DEVICE: the values of
 * struct ibv_device_attr.
 */
struct softroce_device_attr {
	uint8_t fw_ver[64]; /* text, ends with a zero byte */
	uint64_t node_guid; /* the first byte of the GUID is the most significant */
	uint64_t sys_image_guid;
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	uint32_t max_qp;
	uint32_t max_qp_wr;
	uint32_t device_cap_flags;
	uint32_t max_sge;
	uint32_t max_sge_rd;
	uint32_t max_cq;
	uint32_t max_cqe;
	uint32_t max_mr;
	uint32_t max_pd;
	uint32_t max_qp_rd_atom;
	uint32_t max_ee_rd_atom;
	uint32_t max_res_rd_atom;
	uint32_t max_qp_init_rd_atom;
	uint32_t max_ee_init_rd_atom;
	uint32_t atomic_cap; /* ibv_atomic_cap */
	uint32_t max_ee;
	uint32_t max_rdd;
	uint32_t max_mw;
	uint32_t max_raw_ipv6_qp;
	uint32_t max_raw_ethy_qp;
	uint32_t max_mcast_grp;
	uint32_t max_mcast_qp_attach;
	uint32_t max_total_mcast_qp_attach;
	uint32_t max_ah;
	uint32_t max_fmr;
	uint32_t max_map_per_fmr;
	uint32_t max_srq;
	uint32_t max_srq_wr;
	uint32_t max_srq_sge;
	uint32_t max_pkeys;
	uint32_t local_ca_ack_delay;
	uint32_t phys_port_cnt;
	uint32_t max_inline_data; /* bytes in a send work request */
	uint64_t device_cap_flags_ex; /* device_cap_flags_ex: DeviceCapFlags and the upper half */
	uint64_t hca_core_clock; /* kHz: the clock of a completion's timestamp */
	uint64_t timestamp_mask; /* completion_timestamp_mask: the valid bits of a completion's timestamp */
	uint64_t max_dm_size; /* bytes of device memory that the client may allocate */
	uint64_t on_demand_paging; /* 1 if memory may be registered for on-demand paging, else 0 */
};
_Static_assert(sizeof(struct softroce_device_attr) == 280, "layout");

/*
 * struct softroce_query_port_request names a port, from 1.
 */
struct softroce_query_port_request {
	uint32_t port;
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_query_port_request) == 8, "layout");

/*
 * struct softroce_port_attr is the reply of SOFTROCE_OP_QUERY_PORT: the values of struct
 * ibv_port_attr.
 */
struct softroce_port_attr {
	uint32_t state; /* ibv_port_state */
	uint32_t max_mtu; /* ibv_mtu */
	uint32_t active_mtu; /* ibv_mtu */
	uint32_t gid_tbl_len;
	uint32_t port_cap_flags;
	uint32_t max_msg_size;
	uint32_t bad_pkey_cntr;
	uint32_t qkey_viol_cntr;
	uint16_t pkey_tbl_len;
	uint16_t lid;
	uint16_t sm_lid;
	uint8_t lmc;
	uint8_t max_vl_num;
	uint8_t sm_sl;
	uint8_t subnet_timeout;
	uint8_t init_type_reply;
	uint8_t active_width;
	uint8_t active_speed;
	uint8_t phys_state;
	uint8_t link_layer; /* 2: Ethernet */
	uint8_t flags;
	uint32_t active_speed_ex; /* as ActiveSpeed, which cannot hold XDR */
	uint32_t rate; /* in 100 Mb/s: ibv_query_port_speed */
};
_Static_assert(sizeof(struct softroce_port_attr) == 56, "layout");

/*
 * struct softroce_gid_entry is an entry of the GID table.
 */
struct softroce_gid_entry {
	uint8_t gid[16];
	uint32_t index;
	uint32_t type; /* ibv_gid_type: 1, RoCE v1, which cannot be used, or 2, RoCE v2 */
	uint8_t netdev[16];
	uint32_t vlan; /* VLAN ID, 0 for none */
};
_Static_assert(sizeof(struct softroce_gid_entry) == 44, "layout");

/*
 * struct softroce_clock_reply is the current time of the device: ibv_query_rt_values_ex.
 */
struct softroce_clock_reply {
	uint64_t clock; /* on the clock of completions' timestamps */
	uint64_t wallclock; /* the same moment on the clock of completions' wall-clock times */
};
_Static_assert(sizeof(struct softroce_clock_reply) == 16, "layout");

/*
 * struct softroce_handle_request names the object of an operation.
 */
struct softroce_handle_request {
	uint32_t handle;
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_handle_request) == 8, "layout");

/*
 * struct softroce_handle_reply names the object that was created. A handle is only valid
 * on its connection, and never 0. SOFTROCE_OP_CREATE_CHANNEL's reply comes with the
 * channel's event socket; the counters at SOFTROCE_CQ_EVENTS tell which completion queue
 * had the event.
 */
struct softroce_handle_reply {
	uint32_t handle;
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_handle_reply) == 8, "layout");

/*
 * Kinds of registered memory.
 */
#define SOFTROCE_MEMORY_PROCESS 0 /* Address, in the process that connected; needs the right to ptrace it */
#define SOFTROCE_MEMORY_MAPPED 1 /* a descriptor that can be mapped, from Offset; Address is the client's own mapping of it, or 0 */
#define SOFTROCE_MEMORY_SELF 2 /* Address, through a descriptor of the client's /proc/self/mem */
#define SOFTROCE_MEMORY_DMA_BUF 3 /* the descriptor of a DMA buffer, or of shared memory instead, from Offset */
#define SOFTROCE_MEMORY_DEVICE 4 /* device memory: Address is its handle; from Offset */

/*
 * Why a client does not share the memory that it registers.
 */
#define SOFTROCE_UNSHARED_UNKNOWN 0
#define SOFTROCE_UNSHARED_DISABLED 1 /* its user does not want to */
#define SOFTROCE_UNSHARED_THREADS 2 /* several threads may be using the memory */
#define SOFTROCE_UNSHARED_KIND 3 /* a file, a stack, a heap, or other memory that is not private to the region */
#define SOFTROCE_UNSHARED_FLAGS 4 /* its mapping has properties that would be lost */
#define SOFTROCE_UNSHARED_KERNEL 5 /* the kernel or a device may be using its pages */
#define SOFTROCE_UNSHARED_LIMIT 6 /* the process or the system has a limit that forbids it */
#define SOFTROCE_UNSHARED_REFUSED 7 /* the daemon could not map it */

/*
 * struct softroce_reg_mr_request registers memory. A mapped descriptor is sealed against
 * shrinking and, once the daemon has mapped it, against holes and further writable
 * mappings (F_SEAL_FUTURE_WRITE). If it cannot be sealed or mapped, its memory is
 * accessed through Address instead. SOFTROCE_OP_HOLD_MEMORY, with the same descriptor,
 * keeps the daemon's mapping for later registrations by this connection; its reply is a
 * struct softroce_handle_reply, for SOFTROCE_OP_RELEASE_MEMORY. A DMA buffer, or shared
 * memory used as one, may shrink: accesses beyond its end fail. Offset and IOVA of a DMA
 * buffer must be congruent modulo 4096, and Access is as in ibv_reg_dmabuf_mr. Device
 * memory is zero-based. Neither can be reregistered.
 */
struct softroce_reg_mr_request {
	uint32_t pd;
	uint32_t memory; /* SOFTROCE_MEMORY_* */
	uint32_t access; /* ibv_access_flags */
	uint32_t unshared; /* SOFTROCE_UNSHARED_*: why Memory is not SOFTROCE_MEMORY_MAPPED */
	uint64_t iova; /* address of the first byte, for work requests and peers */
	uint64_t length;
	uint64_t address;
	uint64_t offset;
};
_Static_assert(sizeof(struct softroce_reg_mr_request) == 48, "layout");

/*
 * struct softroce_reg_mr_reply has the keys, and how the memory is accessed.
 */
struct softroce_reg_mr_reply {
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
	uint32_t memory; /* SOFTROCE_MEMORY_* */
};
_Static_assert(sizeof(struct softroce_reg_mr_reply) == 16, "layout");

/*
 * struct softroce_rereg_mr_request replaces a registered region and keeps handle and
 * keys; the reply is a struct softroce_reg_mr_reply. After an error the region is
 * unchanged.
 */
struct softroce_rereg_mr_request {
	uint32_t handle;
	uint32_t reserved0;
	struct softroce_reg_mr_request mr;
};
_Static_assert(sizeof(struct softroce_rereg_mr_request) == 56, "layout");

/*
 * struct softroce_query_mr_reply describes a region.
 */
struct softroce_query_mr_reply {
	uint32_t lkey;
	uint32_t rkey;
	uint64_t iova;
	uint64_t length;
	uint32_t access; /* ibv_access_flags */
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_query_mr_reply) == 32, "layout");

/*
 * struct softroce_alloc_dm_request allocates device memory; the reply is a struct
 * softroce_handle_reply.
 */
struct softroce_alloc_dm_request {
	uint64_t length;
	uint32_t log_align; /* the address is a multiple of 2^LogAlign */
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_alloc_dm_request) == 16, "layout");

/*
 * struct softroce_query_dm_reply describes device memory.
 */
struct softroce_query_dm_reply {
	uint64_t length;
};
_Static_assert(sizeof(struct softroce_query_dm_reply) == 8, "layout");

/*
 * SOFTROCE_DM_COPY_MAX is the most bytes that a message copies to or from device memory.
 */
#define SOFTROCE_DM_COPY_MAX 61440

/*
 * struct softroce_copy_dm_request copies Length bytes to device memory, which follow the
 * request, or from it: then they are the reply. Offset and Length are multiples of 4.
 */
struct softroce_copy_dm_request {
	uint32_t handle;
	uint32_t length; /* at most SOFTROCE_DM_COPY_MAX */
	uint64_t offset;
};
_Static_assert(sizeof(struct softroce_copy_dm_request) == 16, "layout");

/*
 * struct softroce_alloc_mw_request allocates a memory window, which a work request binds.
 */
struct softroce_alloc_mw_request {
	uint32_t pd;
	uint32_t type; /* ibv_mw_type */
};
_Static_assert(sizeof(struct softroce_alloc_mw_request) == 8, "layout");

/*
 * struct softroce_alloc_mw_reply has the R_Key. A bind changes its low 8 bits.
 */
struct softroce_alloc_mw_reply {
	uint32_t handle;
	uint32_t rkey;
};
_Static_assert(sizeof(struct softroce_alloc_mw_reply) == 8, "layout");

/*
 * struct softroce_open_xrcd_request opens an XRC domain; the reply is a struct
 * softroce_handle_reply. With a descriptor it is the domain of that file, which every
 * client that has the file open may open; without, a new private one.
 */
struct softroce_open_xrcd_request {
	uint32_t flags; /* SOFTROCE_XRCD_* */
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_open_xrcd_request) == 8, "layout");

/*
 * Bits of struct softroce_open_xrcd_request's Flags.
 */
#define SOFTROCE_XRCD_CREATE 1 /* O_CREAT: create it if there is none */
#define SOFTROCE_XRCD_EXCLUSIVE 2 /* O_EXCL: there must be none */

/*
 * struct softroce_ah_attr is the destination of packets and their header fields: struct
 * ibv_ah_attr.
 */
struct softroce_ah_attr {
	uint8_t dgid[16];
	uint32_t flow_label;
	uint16_t dlid;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate;
	uint8_t is_global;
	uint8_t port_num;
	uint8_t reserved0[2];
};
_Static_assert(sizeof(struct softroce_ah_attr) == 32, "layout");

/*
 * struct softroce_create_ah_request creates an address handle.
 */
struct softroce_create_ah_request {
	uint32_t pd;
	uint32_t reserved0;
	struct softroce_ah_attr ah;
};
_Static_assert(sizeof(struct softroce_create_ah_request) == 40, "layout");

/*
 * struct softroce_create_ah_reply names the address handle. A client that shares one
 * between several of the program with the same attributes enforces the limit.
 */
struct softroce_create_ah_reply {
	uint32_t handle;
	uint32_t max_ah; /* as in struct softroce_device_attr */
};
_Static_assert(sizeof(struct softroce_create_ah_reply) == 8, "layout");

/*
 * struct softroce_create_cq_request creates a completion queue.
 */
struct softroce_create_cq_request {
	uint32_t entries;
	uint32_t channel; /* handle, or 0 for none */
	uint32_t flags; /* SOFTROCE_CQ_OWN_CHANNEL, SOFTROCE_CQ_TIMESTAMPS */
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_create_cq_request) == 16, "layout");

/*
 * SOFTROCE_CQ_OWN_CHANNEL requests a completion channel for this queue only, which has no
 * handle.
 */
#define SOFTROCE_CQ_OWN_CHANNEL 1

/*
 * SOFTROCE_CQ_TIMESTAMPS requests timestamps: an error, EOPNOTSUPP, if the NIC has none.
 * They are in the completions of every queue of a NIC that has them.
 */
#define SOFTROCE_CQ_TIMESTAMPS 2

/*
 * struct softroce_create_cq_reply comes with the chunk of the ring and then, with
 * SOFTROCE_CQ_OWN_CHANNEL, the channel's event socket.
 */
struct softroce_create_cq_reply {
	uint32_t handle;
	uint32_t entries; /* granted: the slots of the ring, SOFTROCE_CQE_SIZE bytes each */
	struct softroce_chunk chunk;
	uint32_t ring; /* offset in the chunk */
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_create_cq_reply) == 24, "layout");

/*
 * struct softroce_destroy_cq_reply is the reply of SOFTROCE_OP_DESTROY_CQ: with the
 * queue, its ring is gone.
 */
struct softroce_destroy_cq_reply {
	uint32_t events; /* the last value of the word at SOFTROCE_CQ_EVENTS */
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_destroy_cq_reply) == 8, "layout");

/*
 * struct softroce_resize_cq_request changes the number of entries; the reply is a struct
 * softroce_create_cq_reply with a new ring. Completions that are not polled are in it,
 * with the same indices. The client must not poll or arm the queue between request and
 * reply, and then only use the new ring.
 */
struct softroce_resize_cq_request {
	uint32_t handle;
	uint32_t entries;
};
_Static_assert(sizeof(struct softroce_resize_cq_request) == 8, "layout");

/*
 * struct softroce_srq_attr is struct ibv_srq_attr.
 */
struct softroce_srq_attr {
	uint32_t max_wr;
	uint32_t max_sge;
	uint32_t srq_limit; /* an event is raised when fewer are posted; 0: none, or it was raised */
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_srq_attr) == 16, "layout");

/*
 * struct softroce_create_srq_request creates a shared receive queue.
 */
struct softroce_create_srq_request {
	uint32_t pd;
	uint32_t type; /* SOFTROCE_SRQ_* */
	uint32_t xrcd; /* SOFTROCE_SRQ_XRC, else 0 */
	uint32_t cq; /* SOFTROCE_SRQ_XRC: for its completions, else 0 */
	struct softroce_srq_attr attr;
};
_Static_assert(sizeof(struct softroce_create_srq_request) == 32, "layout");

/*
 * Types of shared receive queues: enum ibv_srq_type.
 */
#define SOFTROCE_SRQ_BASIC 0
#define SOFTROCE_SRQ_XRC 1

/*
 * struct softroce_srq_reply comes with the chunk of a shared receive queue's ring.
 */
struct softroce_srq_reply {
	uint32_t handle;
	uint32_t slots;
	uint32_t slot_size;
	uint32_t number; /* SOFTROCE_SRQ_XRC: its SRQ number, else 0 */
	struct softroce_srq_attr attr; /* granted */
	struct softroce_chunk chunk;
	uint32_t ring; /* offset in the chunk */
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_srq_reply) == 48, "layout");

/*
 * struct softroce_modify_srq_request changes the attributes in Mask (ibv_srq_attr_mask).
 * The reply is an struct softroce_srq_reply. Only if Mask has SOFTROCE_SRQ_MAX_WR it
 * comes with a descriptor, of the chunk of a new ring: posted work requests are in it,
 * with the same indices. The client must not post between request and reply.
 */
struct softroce_modify_srq_request {
	uint32_t handle;
	uint32_t mask;
	struct softroce_srq_attr attr;
};
_Static_assert(sizeof(struct softroce_modify_srq_request) == 24, "layout");

/*
 * Bits of struct softroce_modify_srq_request's Mask: enum ibv_srq_attr_mask.
 */
#define SOFTROCE_SRQ_MAX_WR 1
#define SOFTROCE_SRQ_LIMIT 2

/*
 * struct softroce_mcast_request attaches a UD queue pair to a multicast group, or
 * detaches it.
 */
struct softroce_mcast_request {
	uint32_t qp;
	uint32_t lid; /* unused on Ethernet */
	uint8_t gid[16];
};
_Static_assert(sizeof(struct softroce_mcast_request) == 24, "layout");

/*
 * struct softroce_qp_cap are the capacities of a queue pair: struct ibv_qp_cap.
 */
struct softroce_qp_cap {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data;
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_qp_cap) == 24, "layout");

/*
 * struct softroce_create_qp_request creates a queue pair. An XRC initiator has no recv_cq
 * and no SRQ; an XRC target only has an XRCD.
 */
struct softroce_create_qp_request {
	uint32_t pd;
	uint32_t send_cq;
	uint32_t recv_cq;
	uint32_t srq; /* 0: none */
	uint32_t type; /* ibv_qp_type */
	uint32_t sig_all; /* 0 or 1 */
	uint32_t xrcd; /* XRC target, else 0 */
	uint32_t send_ops; /* ibv_qp_create_send_ops_flags that the NIC must have, or 0 */
	struct softroce_qp_cap cap;
};
_Static_assert(sizeof(struct softroce_create_qp_request) == 56, "layout");

/*
 * struct softroce_create_qp_reply comes with the chunk of both rings. A queue pair with
 * an SRQ and an XRC initiator have no receive ring, and an XRC target has no ring, and no
 * descriptor in this reply.
 */
struct softroce_create_qp_reply {
	uint32_t handle;
	uint32_t qp_num;
	uint32_t doorbell; /* number of its bit in the doorbell page */
	uint32_t send_slots;
	uint32_t send_slot_size;
	uint32_t recv_slots;
	uint32_t recv_slot_size;
	uint32_t send_ring; /* offset in the chunk */
	uint32_t recv_ring; /* likewise */
	uint32_t reserved0;
	struct softroce_chunk chunk;
	struct softroce_qp_cap cap; /* granted */
};
_Static_assert(sizeof(struct softroce_create_qp_reply) == 72, "layout");

/*
 * struct softroce_qp_attr is struct ibv_qp_attr.
 */
struct softroce_qp_attr {
	uint32_t state;
	uint32_t cur_state;
	uint32_t path_mtu;
	uint32_t path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	uint32_t access_flags;
	uint32_t rate_limit;
	struct softroce_qp_cap cap;
	struct softroce_ah_attr ah;
	struct softroce_ah_attr alt_ah;
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint8_t reserved0;
};
_Static_assert(sizeof(struct softroce_qp_attr) == 144, "layout");

/*
 * struct softroce_modify_qp_request changes the attributes in Mask (ibv_qp_attr_mask).
 * With a new address vector, the reply waits for neighbor resolution.
 */
struct softroce_modify_qp_request {
	uint32_t handle;
	uint32_t mask;
	struct softroce_qp_attr attr;
};
_Static_assert(sizeof(struct softroce_modify_qp_request) == 152, "layout");

/*
 * struct softroce_query_qp_reply has the attributes of a queue pair.
 */
struct softroce_query_qp_reply {
	struct softroce_qp_attr attr;
};
_Static_assert(sizeof(struct softroce_query_qp_reply) == 144, "layout");

/*
 * struct softroce_snapshot_reply comes with a descriptor of memory that holds Length
 * bytes of JSON: the state of the daemon, as "softroce show" prints it. Needs no open
 * device.
 */
struct softroce_snapshot_reply {
	uint64_t length;
};
_Static_assert(sizeof(struct softroce_snapshot_reply) == 8, "layout");

/*
 * struct softroce_start_capture_request comes with the descriptor to write the capture
 * to. Needs root or the daemon's user. The capture ends with SOFTROCE_OP_STOP_CAPTURE or
 * the connection.
 */
struct softroce_start_capture_request {
	uint8_t device[64]; /* empty: all */
};
_Static_assert(sizeof(struct softroce_start_capture_request) == 64, "layout");

/*
 * struct softroce_set_pkeys_request replaces the P_Key table of a device: queue pairs use
 * the key that is now at their index, and clients get PKEY_CHANGE. Needs root or the
 * daemon's user.
 */
struct softroce_set_pkeys_request {
	uint8_t device[64];
	uint32_t count;
	uint32_t reserved0;
	uint16_t pkeys[64]; /* 0: no key at this index */
};
_Static_assert(sizeof(struct softroce_set_pkeys_request) == 200, "layout");

/*
 * struct softroce_set_link_request disables the port of a device, or enables it again:
 * clients get PORT_ERR or PORT_ACTIVE. Needs root or the daemon's user.
 */
struct softroce_set_link_request {
	uint8_t device[64];
	uint32_t up; /* 0 or 1 */
	uint32_t port; /* 0 is port 1 */
};
_Static_assert(sizeof(struct softroce_set_link_request) == 72, "layout");

/*
 * struct softroce_add_faults_request is followed by Length bytes of text in the fault
 * language, whose rules are added to those that the daemon has. Needs root or the
 * daemon's user.
 */
struct softroce_add_faults_request {
	uint32_t length; /* at most SOFTROCE_FAULTS_MAX */
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_add_faults_request) == 8, "layout");

/*
 * SOFTROCE_FAULTS_MAX is the most bytes of text in an struct softroce_add_faults_request.
 */
#define SOFTROCE_FAULTS_MAX 61440

/*
 * struct softroce_add_faults_reply has the IDs of the rules that were added: those from
 * First to Last, in the order of their lines. If there is none, Last is below First.
 */
struct softroce_add_faults_reply {
	uint32_t first;
	uint32_t last;
};
_Static_assert(sizeof(struct softroce_add_faults_reply) == 8, "layout");

/*
 * struct softroce_remove_fault_request removes a rule; ENOENT if there is none of this
 * ID. Needs root or the daemon's user.
 */
struct softroce_remove_fault_request {
	uint32_t id;
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_remove_fault_request) == 8, "layout");

/*
 * struct softroce_fire_event_request raises an asynchronous event, with what belongs to
 * it: PORT_ERR takes the link down, CQ_ERR and QP_FATAL stop what they are about. ENOENT
 * if the object does not exist. Needs root or the daemon's user.
 */
struct softroce_fire_event_request {
	uint8_t device[64];
	uint32_t event; /* ibv_event_type */
	uint32_t number; /* queue pair number, ID of the CQ or SRQ in the snapshot, or port; 0 for other events */
};
_Static_assert(sizeof(struct softroce_fire_event_request) == 72, "layout");

/*
 * struct softroce_set_counter_request sets a counter, from which it then counts on.
 * EINVAL if there is none of this name. Needs root or the daemon's user.
 */
struct softroce_set_counter_request {
	uint8_t device[64];
	uint8_t counter[64]; /* as softroce show counters prints it */
	uint64_t value;
};
_Static_assert(sizeof(struct softroce_set_counter_request) == 136, "layout");

/*
 * struct softroce_set_congestion_request sets a parameter of a device's congestion
 * control, or "algorithm". EINVAL if there is none of this name, or the value is out of
 * range. Needs root or the daemon's user.
 */
struct softroce_set_congestion_request {
	uint8_t device[64];
	uint8_t name[64];
	uint8_t value[64]; /* text */
};
_Static_assert(sizeof(struct softroce_set_congestion_request) == 192, "layout");

/*
 * SOFTROCE_MAX_PKEYS is the size of the largest P_Key table.
 */
#define SOFTROCE_MAX_PKEYS 64

/*
 * struct softroce_capture_reply is the state of this connection's capture.
 */
struct softroce_capture_reply {
	uint64_t packets;
	uint64_t bytes;
	uint64_t dropped; /* packets that the writer could not write in time */
};
_Static_assert(sizeof(struct softroce_capture_reply) == 24, "layout");

/*
 * Operations of the connection manager. A connection enables them with
 * SOFTROCE_OP_CM_OPEN, before or after it opens a device, or without one: identifiers are
 * bound to devices by address.
 */
#define SOFTROCE_OP_CM_OPEN 80
#define SOFTROCE_OP_CM_CREATE_CHANNEL 81
#define SOFTROCE_OP_CM_DESTROY_CHANNEL 82
#define SOFTROCE_OP_CM_GET_EVENT 83
#define SOFTROCE_OP_CM_CREATE_ID 84
#define SOFTROCE_OP_CM_DESTROY_ID 85
#define SOFTROCE_OP_CM_BIND 86
#define SOFTROCE_OP_CM_RESOLVE_ADDR 87
#define SOFTROCE_OP_CM_RESOLVE_ROUTE 88
#define SOFTROCE_OP_CM_LISTEN 89
#define SOFTROCE_OP_CM_CONNECT 90
#define SOFTROCE_OP_CM_ACCEPT 91
#define SOFTROCE_OP_CM_REJECT 92
#define SOFTROCE_OP_CM_ESTABLISH 93
#define SOFTROCE_OP_CM_DISCONNECT 94
#define SOFTROCE_OP_CM_NOTIFY 95
#define SOFTROCE_OP_CM_INIT_QP_ATTR 96
#define SOFTROCE_OP_CM_QUERY_ID 97
#define SOFTROCE_OP_CM_SET_OPTION 98
#define SOFTROCE_OP_CM_MIGRATE 99
#define SOFTROCE_OP_CM_JOIN 100
#define SOFTROCE_OP_CM_LEAVE 101

/*
 * SOFTROCE_CM_MAX_PRIVATE_DATA is the size in bytes of a message's private data. Each
 * kind uses less: REQ 56, REP 196, REJ 148, SIDR_REQ 180, SIDR_REP 136.
 */
#define SOFTROCE_CM_MAX_PRIVATE_DATA 256

/*
 * struct softroce_cm_open_request makes the connection a client of the connection
 * manager, on all devices or on the one that is named.
 */
struct softroce_cm_open_request {
	uint8_t device[64];
};
_Static_assert(sizeof(struct softroce_cm_open_request) == 64, "layout");

/*
 * struct softroce_cm_addr is an IP address and a port.
 */
struct softroce_cm_addr {
	uint16_t family; /* AF_INET (2), AF_INET6 (10), or 0: none */
	uint16_t port; /* in host byte order */
	uint32_t scope; /* index of the interface of a link-local address, or 0 */
	uint8_t addr[16]; /* IPv4: the first four bytes */
};
_Static_assert(sizeof(struct softroce_cm_addr) == 24, "layout");

/*
 * struct softroce_cm_create_id_request creates an identifier whose events go to a
 * channel; the reply is a struct softroce_handle_reply.
 */
struct softroce_cm_create_id_request {
	uint32_t channel;
	uint32_t port_space; /* rdma_port_space */
	uint32_t qp_type; /* ibv_qp_type */
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_cm_create_id_request) == 16, "layout");

/*
 * struct softroce_cm_bind_request binds an identifier to a source address and port; the
 * reply is a struct softroce_cm_identifier.
 */
struct softroce_cm_bind_request {
	uint32_t id;
	uint32_t reserved0;
	struct softroce_cm_addr addr;
};
_Static_assert(sizeof(struct softroce_cm_bind_request) == 32, "layout");

/*
 * struct softroce_cm_resolve_addr_request resolves an address. ADDR_RESOLVED or
 * ADDR_ERROR follows.
 */
struct softroce_cm_resolve_addr_request {
	uint32_t id;
	uint32_t timeout; /* ms */
	struct softroce_cm_addr src; /* optional */
	struct softroce_cm_addr dst;
};
_Static_assert(sizeof(struct softroce_cm_resolve_addr_request) == 56, "layout");

/*
 * struct softroce_cm_listen_request makes an identifier listen; the reply is a struct
 * softroce_cm_identifier.
 */
struct softroce_cm_listen_request {
	uint32_t id;
	uint32_t backlog; /* 0: the maximum */
};
_Static_assert(sizeof(struct softroce_cm_listen_request) == 8, "layout");

/*
 * struct softroce_cm_conn_param is struct rdma_conn_param.
 */
struct softroce_cm_conn_param {
	uint32_t qp_num;
	uint32_t qkey; /* datagrams */
	uint8_t responder_resources;
	uint8_t initiator_depth;
	uint8_t flow_control;
	uint8_t retry_count;
	uint8_t rnr_retry_count;
	uint8_t srq;
	uint16_t private_len;
	uint32_t ece_vendor; /* enhanced connection establishment: vendor ID, 0 for none */
	uint32_t ece_options;
	uint8_t private_data[256];
};
_Static_assert(sizeof(struct softroce_cm_conn_param) == 280, "layout");

/*
 * struct softroce_cm_connect_request requests a connection (SOFTROCE_OP_CM_CONNECT) or
 * accepts one (SOFTROCE_OP_CM_ACCEPT).
 */
struct softroce_cm_connect_request {
	uint32_t id;
	uint32_t reserved0;
	struct softroce_cm_conn_param param;
};
_Static_assert(sizeof(struct softroce_cm_connect_request) == 288, "layout");

/*
 * struct softroce_cm_reject_request rejects a connection.
 */
struct softroce_cm_reject_request {
	uint32_t id;
	uint32_t reason; /* 0 means 28, consumer defined */
	uint32_t private_len;
	uint32_t reserved0;
	uint8_t private_data[256];
};
_Static_assert(sizeof(struct softroce_cm_reject_request) == 272, "layout");

/*
 * struct softroce_cm_init_qp_attr_request requests the attributes with which a queue pair
 * enters a state.
 */
struct softroce_cm_init_qp_attr_request {
	uint32_t id;
	uint32_t state; /* ibv_qp_state */
};
_Static_assert(sizeof(struct softroce_cm_init_qp_attr_request) == 8, "layout");

/*
 * struct softroce_cm_init_qp_attr_reply has the attributes that Mask names.
 */
struct softroce_cm_init_qp_attr_reply {
	uint32_t mask; /* ibv_qp_attr_mask */
	uint32_t reserved0;
	struct softroce_qp_attr attr;
};
_Static_assert(sizeof(struct softroce_cm_init_qp_attr_reply) == 152, "layout");

/*
 * struct softroce_cm_identifier is what an identifier is bound to, and its path, which is
 * zero until it is resolved.
 */
struct softroce_cm_identifier {
	uint8_t device[64]; /* empty: none */
	struct softroce_cm_addr src;
	struct softroce_cm_addr dst;
	uint32_t port_space;
	uint32_t qp_type;
	uint8_t sgid[16];
	uint8_t dgid[16];
	uint32_t flow_label;
	uint16_t pkey;
	uint8_t mtu; /* ibv_mtu */
	uint8_t packet_life; /* code of 4.096 µs · 2^n */
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t t_class;
	uint8_t port_num; /* 0: bound to no device */
	uint8_t sl;
	uint8_t reserved0[3];
};
_Static_assert(sizeof(struct softroce_cm_identifier) == 168, "layout");

/*
 * struct softroce_cm_set_option_request sets an option of level RDMA_OPTION_ID.
 */
struct softroce_cm_set_option_request {
	uint32_t id;
	uint32_t option;
	uint32_t value;
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_cm_set_option_request) == 16, "layout");

/*
 * struct softroce_cm_migrate_request moves an identifier to another event channel of the
 * connection; the reply is a struct softroce_cm_removed_reply.
 */
struct softroce_cm_migrate_request {
	uint32_t id;
	uint32_t channel;
};
_Static_assert(sizeof(struct softroce_cm_migrate_request) == 8, "layout");

/*
 * struct softroce_cm_removed_reply is the reply to SOFTROCE_OP_CM_DESTROY_ID and
 * SOFTROCE_OP_CM_MIGRATE: how many events were removed from the identifier's channel. The
 * client removes as many bytes from the channel's socket.
 */
struct softroce_cm_removed_reply {
	uint32_t events;
	uint32_t reserved0;
};
_Static_assert(sizeof(struct softroce_cm_removed_reply) == 8, "layout");

/*
 * struct softroce_cm_join_request joins a multicast group (SOFTROCE_OP_CM_JOIN) or leaves
 * it (SOFTROCE_OP_CM_LEAVE).
 */
struct softroce_cm_join_request {
	uint32_t id;
	uint32_t reserved0;
	struct softroce_cm_addr addr;
	uint64_t cookie; /* chosen by the client; returned in the event */
};
_Static_assert(sizeof(struct softroce_cm_join_request) == 40, "layout");

/*
 * struct softroce_cm_event is the reply to SOFTROCE_OP_CM_GET_EVENT, which a client sends
 * after reading a byte from the channel's socket. EAGAIN: the object of the event was
 * destroyed meanwhile.
 */
struct softroce_cm_event {
	uint32_t type; /* rdma_cm_event_type */
	int32_t status; /* 0, -errno, or the reason in the message */
	uint32_t id; /* CONNECT_REQUEST: a new identifier */
	uint32_t listen; /* CONNECT_REQUEST */
	uint64_t cookie; /* MULTICAST_JOIN */
	uint32_t is_datagram; /* 1: AH, RemoteQPN and RemoteQKey are valid, and of Param only the private data */
	uint32_t remote_qp_num;
	uint32_t remote_qkey;
	uint32_t reserved0;
	struct softroce_ah_attr ah;
	struct softroce_cm_conn_param param;
	struct softroce_cm_identifier info; /* of ID */
};
_Static_assert(sizeof(struct softroce_cm_event) == 520, "layout");

#endif /* SOFTROCE_ABI_H */
