package scenario

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"softroce/internal/abi"
	"softroce/internal/testbed"
)

// Actions of a misbehaving program, which no library performs for it.

func (s *script) hostile(n testbed.NIC) (testbed.HostileProgram, error) {
	if r, ok := n.(testbed.HostileProgram); ok {
		return r, nil
	}
	return nil, testbed.ErrNoRings
}

var ringNames = vocabulary[testbed.Ring]{"ring", map[string]testbed.Ring{"send": testbed.SendRing, "recv": testbed.RecvRing, "cq": testbed.CompletionRing}}

// ringWords are the offsets of words in a ring's header and in its first slot.
var ringWords = vocabulary[int]{"word of a ring", map[string]int{
	"producer": abi.RingProducer, "consumer": abi.RingConsumer, "armed": abi.CQArmed,
	"send.opcode":  abi.RingSlots + int(unsafe.Offsetof(abi.SendWQE{}.Opcode)),
	"send.flags":   abi.RingSlots + int(unsafe.Offsetof(abi.SendWQE{}.Flags)),
	"send.num_sge": abi.RingSlots + int(unsafe.Offsetof(abi.SendWQE{}.NumSGE)),
	"send.length":  abi.RingSlots + abi.SendWQESize + int(unsafe.Offsetof(abi.SGE{}.Length)),
	"recv.num_sge": abi.RingSlots + int(unsafe.Offsetof(abi.RecvWQE{}.NumSGE)),
	"recv.length":  abi.RingSlots + abi.RecvWQESize + int(unsafe.Offsetof(abi.SGE{}.Length)),
}}

// cmdScribble writes a number into a ring of a queue pair and rings the doorbell: scribble QP
// send|recv|cq WORD|OFFSET VALUE.
func (s *script) cmdScribble(args *arguments) error {
	q, err := s.parseQP(args)
	if err != nil {
		return err
	}
	name, err := args.next("a ring")
	if err != nil {
		return err
	}
	ring, err := ringNames.parse(name)
	if err != nil {
		return err
	}
	where, err := args.next("a word of the ring")
	if err != nil {
		return err
	}
	off, known := ringWords.values[where]
	if !known {
		n, err := parseNumber(where, 16)
		if err != nil {
			_, err = ringWords.parse(where)
			return fmt.Errorf("%w, or an offset", err)
		}
		off = int(n)
	}
	value, err := args.next("a number")
	if err != nil {
		return err
	}
	v, err := parseNumber(value, 32)
	if err != nil {
		return fmt.Errorf("%q: %w", value, err)
	}
	r, err := s.hostile(q.nic)
	if err := errors.Join(args.end(), err); err != nil {
		return err
	}
	s.noteAction(false, false)
	if err := r.WriteRing(q.name, ring, off, uint32(v)); err != nil {
		return err
	}
	s.commit(false)
	return nil
}

// cmdVanish unmaps the memory of a region: vanish REGION.
func (s *script) cmdVanish(args *arguments) error {
	p, err := s.parsePlaceInside(args)
	if err != nil {
		return err
	}
	r, err := s.hostile(p.region.nic)
	if err := errors.Join(args.end(), err); err != nil {
		return err
	}
	return r.Unmap(p.region.name)
}

// expectClosed expects that the NIC has disconnected the program, for a reason that contains the
// given text: closed TEXT….
func (s *script) expectClosed(args *arguments) error {
	r, err := s.hostile(s.dut)
	if err != nil {
		return err
	}
	s.testbed.Settle(nil)
	reason := r.TakeKillReason()
	text := strings.Join(args.plain, " ")
	args.plain = nil
	if reason == nil || !strings.Contains(reason.Error(), text) {
		return fmt.Errorf("expected closed %s, but the reason is: %v", text, reason)
	}
	return nil
}
