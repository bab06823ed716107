/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SOFTROCE_OPS_H
#define SOFTROCE_OPS_H

#include "ibverbs/context.h"

/* sr_set_ops fills the tables through which the inline functions of <infiniband/verbs.h> call. */
void sr_set_ops(struct sr_context *ctx);

/* sr_set_unsupported fills in those that fail with EOPNOTSUPP. */
void sr_set_unsupported(struct verbs_context *v);

#endif
