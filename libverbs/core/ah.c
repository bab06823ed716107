// SPDX-License-Identifier: Apache-2.0
#include "core/ah.h"

#include <string.h>

struct softroce_ah_attr sr_ah_to_abi(const struct ibv_ah_attr *a)
{
	struct softroce_ah_attr out = {
		.flow_label = a->grh.flow_label,
		.dlid = a->dlid,
		.sgid_index = a->grh.sgid_index,
		.hop_limit = a->grh.hop_limit,
		.traffic_class = a->grh.traffic_class,
		.sl = a->sl,
		.src_path_bits = a->src_path_bits,
		.static_rate = a->static_rate,
		.is_global = a->is_global,
		.port_num = a->port_num,
	};
	memcpy(out.dgid, a->grh.dgid.raw, sizeof out.dgid);
	return out;
}

struct ibv_ah_attr sr_ah_from_abi(const struct softroce_ah_attr *a)
{
	struct ibv_ah_attr out = {
		.grh =
			{
				.flow_label = a->flow_label,
				.sgid_index = a->sgid_index,
				.hop_limit = a->hop_limit,
				.traffic_class = a->traffic_class,
			},
		.dlid = a->dlid,
		.sl = a->sl,
		.src_path_bits = a->src_path_bits,
		.static_rate = a->static_rate,
		.is_global = a->is_global,
		.port_num = a->port_num,
	};
	memcpy(out.grh.dgid.raw, a->dgid, sizeof a->dgid);
	return out;
}
