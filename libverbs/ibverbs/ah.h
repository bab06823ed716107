/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SOFTROCE_IBVERBS_AH_H
#define SOFTROCE_IBVERBS_AH_H

#include "ibverbs/context.h"

/*
 * sr_drop_idle_ahs makes the daemon destroy the address handles that the program does not use: of
 * one PD or, if it is 0, of all. It reports whether there were any.
 */
bool sr_drop_idle_ahs(struct sr_context *ctx, uint32_t pd);

/* sr_free_ahs frees what a context that is closed has of them. */
void sr_free_ahs(struct sr_context *ctx);

#endif
