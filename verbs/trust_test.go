package verbs_test

import (
	"errors"
	"math"
	"syscall"
	"testing"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/fabrictest"
	"softroce/verbs"
)

// lyingDaemon returns a connection to a daemon whose replies to an operation are changed.
func lyingDaemon[T any](t *testing.T, op uint16, change func(r *T)) *slowDaemon {
	t.Helper()
	d := newSlowDaemon(t, fabrictest.New(t, fabrictest.Config{}))
	lie := func(p *control.Packet) {
		if p.Header.Op != op || p.Header.Errno != 0 {
			return
		}
		var r T
		rest, err := abi.Decode(p.Body, &r)
		if err != nil {
			t.Error(err)
		}
		change(&r)
		p.Body = abi.Append(nil, r, rest)
	}
	d.lie.Store(&lie)
	return d
}

// A client uses no memory where a daemon says that a ring is and there is none.
func TestImpossiblePlaceOfRingIsAnError(t *testing.T) {
	for name, change := range map[string]func(r *abi.OpenDeviceReply){
		"no doorbells":                       func(r *abi.OpenDeviceReply) { r.DoorbellSize = 0 },
		"doorbells without the bits":         func(r *abi.OpenDeviceReply) { r.DoorbellSize = abi.DoorbellBits - 4 },
		"doorbells longer than their file":   func(r *abi.OpenDeviceReply) { r.DoorbellSize = math.MaxUint32 },
		"no event slots":                     func(r *abi.OpenDeviceReply) { r.EventSlots = 0 },
		"event slots beyond the chunk":       func(r *abi.OpenDeviceReply) { r.EventSlots = 1 << 31 },
		"event ring beyond the chunk":        func(r *abi.OpenDeviceReply) { r.EventRing = r.Chunk.Size },
		"event ring at an odd offset":        func(r *abi.OpenDeviceReply) { r.EventRing++ },
		"chunk of no bytes":                  func(r *abi.OpenDeviceReply) { r.Chunk.Size = 0 },
		"chunk longer than its file":         func(r *abi.OpenDeviceReply) { r.Chunk.Size = math.MaxUint32 },
		"slots at the end of a chunk's file": func(r *abi.OpenDeviceReply) { r.Chunk.Size, r.EventRing = 1<<31, 1<<30 },
	} {
		d := lyingDaemon(t, abi.OpOpenDevice, change)
		if c, err := verbs.Open(t.Context(), "nic0", verbs.WithConn(d.client)); !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%s: Open returned %v, %v", name, c, err)
		}
	}
	for name, change := range map[string]func(r *abi.CreateQPReply){
		"doorbell beyond its page":           func(r *abi.CreateQPReply) { r.Doorbell = abi.MaxDoorbells },
		"highest doorbell":                   func(r *abi.CreateQPReply) { r.Doorbell = math.MaxUint32 },
		"no send slots":                      func(r *abi.CreateQPReply) { r.SendSlots = 0 },
		"send slots not a power of two":      func(r *abi.CreateQPReply) { r.SendSlots = 3 },
		"send slots of no bytes":             func(r *abi.CreateQPReply) { r.SendSlotSize = 0 },
		"send slots too small for SGEs":      func(r *abi.CreateQPReply) { r.Cap.MaxSendSGE = 1000 },
		"send slots too small for inline":    func(r *abi.CreateQPReply) { r.Cap.MaxInlineData = 1 << 20 },
		"receive slots too small for SGEs":   func(r *abi.CreateQPReply) { r.Cap.MaxRecvSGE = 1000 },
		"receive slots beyond the chunk":     func(r *abi.CreateQPReply) { r.RecvSlots = 1 << 30 },
		"slots whose size wraps":             func(r *abi.CreateQPReply) { r.SendSlots, r.SendSlotSize = 1<<31, math.MaxUint32&^3 },
		"receive ring beyond the chunk":      func(r *abi.CreateQPReply) { r.RecvRing = r.Chunk.Size },
		"a mapped chunk of another size":     func(r *abi.CreateQPReply) { r.Chunk.Size += 4096; r.SendRing = r.Chunk.Size - 4096 },
		"a mapped chunk that has grown":      func(r *abi.CreateQPReply) { r.Chunk.Size = math.MaxUint32 },
		"receive ring at a misaligned place": func(r *abi.CreateQPReply) { r.RecvRing += 4 },
	} {
		d := lyingDaemon(t, abi.OpCreateQP, change)
		c, err := verbs.Open(t.Context(), "nic0", verbs.WithConn(d.client))
		noError(t, err)
		pd, err := c.AllocPD(t.Context())
		noError(t, err)
		cq, err := c.CreateCQ(t.Context(), 4, nil)
		noError(t, err)
		q, err := pd.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
		if !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%s: CreateQP returned %v, %v", name, q, err)
		}
		noError(t, c.Close())
	}
	for name, change := range map[string]func(r *abi.CreateCQReply){
		"no entries":             func(r *abi.CreateCQReply) { r.Entries = 0 },
		"entries beyond a chunk": func(r *abi.CreateCQReply) { r.Entries = 1 << 31 },
	} {
		d := lyingDaemon(t, abi.OpCreateCQ, change)
		c, err := verbs.Open(t.Context(), "nic0", verbs.WithConn(d.client))
		noError(t, err)
		if q, err := c.CreateCQ(t.Context(), 4, nil); !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%s: CreateCQ returned %v, %v", name, q, err)
		}
		noError(t, c.Close())
	}
	for name, change := range map[string]func(r *abi.SRQReply){
		"no slots":                 func(r *abi.SRQReply) { r.Slots = 0 },
		"slots too small for SGEs": func(r *abi.SRQReply) { r.Attr.MaxSGE = 1000 },
	} {
		d := lyingDaemon(t, abi.OpCreateSRQ, change)
		c, err := verbs.Open(t.Context(), "nic0", verbs.WithConn(d.client))
		noError(t, err)
		pd, err := c.AllocPD(t.Context())
		noError(t, err)
		if q, err := pd.CreateSRQ(t.Context(), verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}); !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%s: CreateSRQ returned %v, %v", name, q, err)
		}
		noError(t, c.Close())
	}
}
