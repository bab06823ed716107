/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SOFTROCE_QP_H
#define SOFTROCE_QP_H

#include "ibverbs/context.h"
#include "ibverbs/wq.h"

#include <stddef.h>

/* What rdma-core has had since release 46, with wr_flush as the last member of ibv_qp_ex. */
#define SR_QP_EX_WITH_FLUSH (1 << 11)
#define SR_WR_FLUSH	    14
#define SR_BEFORE_WR_FLUSH  (offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof(void (*)(void)))

struct sr_qp {
	union {
		struct ibv_qp_ex ex; /* begins with struct ibv_qp */
		struct {
			char before_flush[SR_BEFORE_WR_FLUSH];
			void (*wr_flush)(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr,
					 size_t length, uint8_t type, uint8_t level);
		};
	};
	struct sr_link link; /* in its context */
	struct sr_link send_cq_link, recv_cq_link;
	struct sr_xrcd *xrcd;	  /* of an XRC target, or NULL */
	uint32_t events_reported; /* async events, under ex.qp_base.mutex */
	bool has_wr_ops;
	int sig_all;
	struct ibv_qp_cap cap;
	struct sr_wq sq, rq;
	_Atomic uint64_t *doorbell; /* the word of the doorbell page */
	uint64_t doorbell_bit;	    /* and the bit in it */

	/* Between ibv_wr_start and ibv_wr_complete. */
	struct softroce_send_wqe *wqe; /* the current one; NULL: none, or an error */
	uint32_t wr_first;
	int wr_error;
	struct sr_bind *binds; /* of the windows that are bound */
	size_t bind_count;
};

/* A memory window and the R_Key that it gets when its bind is posted. */
struct sr_bind {
	struct ibv_mw *mw;
	uint32_t rkey;
};

static inline struct sr_qp *sr_qp(struct ibv_qp *q)
{
	return (struct sr_qp *)q;
}

/* One thread may modify a queue pair while others post to it. */
static inline enum ibv_qp_state sr_qp_state(const struct sr_qp *q)
{
	return __atomic_load_n(&q->ex.qp_base.state, __ATOMIC_RELAXED);
}

static inline void sr_set_qp_state(struct sr_qp *q, enum ibv_qp_state state)
{
	__atomic_store_n(&q->ex.qp_base.state, state, __ATOMIC_RELAXED);
}

/* The send flags that the daemon knows; checksum offload of raw packets is not among them. */
#define SR_SEND_FLAGS                                                                              \
	(SOFTROCE_SEND_FENCE | SOFTROCE_SEND_SIGNALED | SOFTROCE_SEND_SOLICITED |                  \
	 SOFTROCE_SEND_INLINE)

/* qp.c */
struct ibv_qp *sr_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);

/* post.c */
int sr_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int sr_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int sr_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void sr_ring_doorbell(struct sr_qp *q);

/* processor.c */
/* sr_return_processor is for a thread that has posted sends. */
void sr_return_processor(struct sr_context *ctx);

/*
 * sr_put_bind writes the fields of a work request that binds a window, and completes bind->rkey, of
 * which the program chooses the low 8 bits. When the work request is posted, the window has this
 * R_Key. False: an argument is invalid.
 */
bool sr_put_bind(struct softroce_send_wqe *wqe, struct sr_bind *bind,
		 const struct ibv_mw_bind_info *info);

/* sr_check_post returns EINVAL in a state before from, EIO if the daemon is gone, else 0. */
int sr_check_post(struct sr_qp *q, enum ibv_qp_state from);

/* wr.c */
void sr_set_wr_ops(struct sr_qp *q);

/* qp_attr.c. Attributes that the mask does not select are sent as 0. */
struct softroce_qp_cap sr_qp_cap_to_abi(const struct ibv_qp_cap *c);
struct ibv_qp_cap sr_qp_cap_from_abi(const struct softroce_qp_cap *c);
void sr_qp_attr_to_abi(struct softroce_modify_qp_request *req, enum ibv_qp_type type,
		       const struct ibv_qp_attr *attr, int mask);
int sr_modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr);
void sr_qp_attr_from_abi(struct ibv_qp_attr *out, const struct softroce_qp_attr *a);

#endif
