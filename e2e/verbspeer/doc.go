// Package verbspeer is the counterpart of the lab's program vprobe (e2e/rxelab/probe/vprobe.c):
// what vprobe does on the kernel's NIC, an Endpoint does on softroce's through package verbs.
//
// The two ends connect over TCP and exchange one line of text each. The server says "go", and the
// client runs its operations. Both buffers start with known contents, and a Model computes their
// contents after any list of operations, and the receive completions. So every byte of both buffers
// is compared at the end, the guest's through the checksum that it prints.
package verbspeer
