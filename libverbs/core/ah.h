/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Address vectors, between the form of verbs and that of the ABI.
 */
#ifndef SOFTROCE_AH_H
#define SOFTROCE_AH_H

#include <infiniband/verbs.h>

#include "core/softroce_abi.h"

struct softroce_ah_attr sr_ah_to_abi(const struct ibv_ah_attr *a);
struct ibv_ah_attr sr_ah_from_abi(const struct softroce_ah_attr *a);

#endif
