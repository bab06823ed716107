package testbed

import (
	"fmt"
	"sync/atomic"

	"softroce/nic/nictest"
)

// A HostileProgram can violate the ABI, which no verbs library does.
type HostileProgram interface {
	// WriteRing writes v at offset off of a ring of a queue pair, and rings the doorbell.
	WriteRing(qp string, ring Ring, off int, v uint32) error

	// Unmap makes the memory of a region inaccessible without deregistering it.
	Unmap(region string) error

	// TakeKillReason returns why the NIC closed the program's context, or nil if it did not, and
	// clears it.
	TakeKillReason() error
}

// A Ring is one of the rings of a queue pair.
type Ring uint8

// The rings of a queue pair, and the ring of the completion queue that it was created with.
const (
	SendRing Ring = iota
	RecvRing
	CompletionRing
)

// WriteRing implements HostileProgram.
func (n *simNIC) WriteRing(qp string, ring Ring, off int, v uint32) error {
	q, err := n.queue(qp)
	if err != nil {
		return err
	}
	b := q.SendRing
	switch {
	case ring == RecvRing && q.Recv != nil:
		b = q.Recv.Ring
	case ring == RecvRing:
		return fmt.Errorf("%s has no receive ring", qp)
	case ring == CompletionRing:
		b = n.cqs["cq of "+qp].Ring
	}
	if off&3 != 0 || off > len(b)-4 {
		return fmt.Errorf("%#x is not the offset of a word in a ring of %#x bytes", off, len(b))
	}
	atomic.StoreUint32(nictest.Word(b, off), v)
	q.RingDoorbell()
	return nil
}

// TakeKillReason implements HostileProgram.
func (n *simNIC) TakeKillReason() error {
	err := n.killed
	n.killed = nil
	return err
}

var _ HostileProgram = (*simNIC)(nil)
