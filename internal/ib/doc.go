// Package ib is the vocabulary of the InfiniBand verbs: queue pair types, states and attributes,
// work request opcodes, completion statuses, access flags, asynchronous events.
//
// Values are those of the libibverbs ABI (infiniband/verbs.h), so that a number read from a ring, a
// control message or a C program converts without a table. Names follow libibverbs too: IBV_QPS_RTR
// is QPSRTR, IBV_WC_SUCCESS is WCSuccess. What appears in packets (opcodes, headers, syndromes) is
// in package packet.
//
// The package imports nothing of this module and every package may import it. The public package
// verbs defines its own types from these constants, so that programs see no internal package.
package ib
