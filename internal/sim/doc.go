// Package sim runs whole NICs (engine, transport, memory, fabric) under virtual time on one
// goroutine. Programs post random work across a network with random faults; meanwhile processes
// die, queue pairs are reset, programs stop polling and links go down. Each run is checked against
// the invariants of docs/internals/invariants.md:
//
//  1. Each posted work request completes exactly once, in order per queue.
//  2. RC delivers each message once, whole and in order, or the queue pair is in error.
//  3. No byte outside what was addressed changes.
//  4. An atomic executes once.
//  5. Each dropped packet counts under one reason.
//  6. The same seed gives the same run, bit for bit.
//  9. Nothing is retransmitted without loss, or a timeout that the peer caused.
//  10. At a loss of 1 %, READs and WRITEs send at most twice what they need.
//  11. Memory that was released to a program is not sent.
//  12. An event comes after the completions that it refers to.
//  13. Switches drop nothing of lossless priorities.
//  14. Ports wait for each other forever only where paths form a circle.
//  15. Programs whose memory does not block make progress while a copy of another's takes long.
//
// Invariants 7 and 8 (no allocation, no panic) are shown by benchmarks and fuzz targets, and by the
// absence of panics here.
//
// A run has connected pairs of RC and XRC (work.go, window.go, xrc.go), checked in check.go, and
// queue pairs of UC and UD (unreliable.go), whose messages may be lost but must not arrive damaged,
// in part, or at the wrong queue pair (unreliable_check.go). disruption.go has what happens to them
// during the run. network.go has the engines, which may stall, the cables, which may be slow, and
// their faults; what is sent over them is checked in traffic_check.go. Some runs have a network of
// switches instead (switches.go), with checks of its own (switches_check.go). Programs use their
// buffers again as soon as they may (buffers.go). In some runs copies of their memory take long
// (blocked.go), which others do not notice (bystander.go).
//
// Large is the profile of one run with 200 NICs and 10,000 queue pairs.
package sim
