// Package vprobe plays either end of a conversation with the lab's program vprobe
// (e2e/rxelab/probe/vprobe.c) through verbs: what vprobe does on the kernel's NIC, an
// End does on softroce's.
//
// The two ends meet over TCP with one line of text each, the server says "go", and the
// client runs its operations one verb at a time. Both buffers start with known contents,
// and a Model says what they hold after any list of operations and which completions both
// ends saw; so every byte of both memories is compared at the end, the guest's through the
// checksum that it prints.
package verbspeer
