/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SOFTROCE_QUERY_H
#define SOFTROCE_QUERY_H

#include "ibverbs/context.h"

int sr_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
		       struct ibv_device_attr_ex *attr, size_t size);
int sr_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
		  size_t size);
int sr_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values);
int sr_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index,
		      unsigned int *type);

/* sr_query_gids returns the GID table entries in use; the caller frees *gids. 0 or an errno. */
int sr_query_gids(struct ibv_context *context, struct softroce_gid_entry **gids, uint32_t *count);

#endif
