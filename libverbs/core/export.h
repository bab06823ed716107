/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libraries are compiled with -fvisibility=hidden; only symbols marked SR_PUBLIC are exported.
 * The version scripts (*.map) give them their versions.
 */
#ifndef SOFTROCE_EXPORT_H
#define SOFTROCE_EXPORT_H

#define SR_PUBLIC __attribute__((visibility("default")))

#endif
