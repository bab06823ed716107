// Package sim runs whole NICs (engine, transport, memory, fabric) under virtual time on
// one goroutine, lets programs with random work talk across a network with random faults,
// in which processes die, queue pairs are reset, receivers are away and cables are out,
// and holds what happened against the invariants of docs/internals/invariants.md:
//
//  1. Each posted work request completes exactly once, in order per queue.
//  2. RC delivers each message once, whole and in order, or the queue pair is in error.
//  3. No byte outside what was addressed changes.
//  4. An atomic executes once.
//  5. Each dropped packet counts under one reason.
//  6. The same seed gives the same run, bit for bit.
//
// Pairs are of RC or of XRC, have receive queues of their own or shared ones, and open memory windows to each other.
// Beside them, others talk over UC and UD, to one another and to a multicast group: there
// messages may be lost, but none comes damaged, in part, or to whom it was not sent.
//
// Crowd is one run with 200 NICs and 10,000 queue pairs.
//
// The other two (no allocation, no panic) are shown by benchmarks and fuzz targets, and by
// nothing here ever panicking.
package sim
