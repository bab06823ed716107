// Package explain says in words why a queue pair is in error or makes no progress, and which verb
// mends it. It reads a snapshot of the daemon. If the peer's queue pair is on the same daemon, what
// that one has recorded explains a NAK exactly.
//
// A queue pair that was destroyed after it had failed is in the history of its NIC
// (nic.EndedQP).
package explain
