package nic_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
)

// Offsets in the first slot of a ring.
const (
	sendOpcode = int(unsafe.Offsetof(abi.SendWQE{}.Opcode))
	sendFlags  = int(unsafe.Offsetof(abi.SendWQE{}.Flags))
	sendNumSGE = int(unsafe.Offsetof(abi.SendWQE{}.NumSGE))
	sendLength = abi.SendWQESize + int(unsafe.Offsetof(abi.SGE{}.Length))
	recvNumSGE = int(unsafe.Offsetof(abi.RecvWQE{}.NumSGE))
)

// An uninvolvedPair is a pair of other clients. Nothing may disturb its traffic.
type uninvolvedPair struct{ a, b *queue }

func newUninvolvedPair(w *testFabric, d1, d2 *nic.Device) *uninvolvedPair {
	s := &uninvolvedPair{w.client(d1).qp(smallCaps), w.client(d2).qp(smallCaps)}
	s.a.connect(1024, s.b)
	s.b.connect(1024, s.a)
	return s
}

// exchange checks that a message gets through.
func (s *uninvolvedPair) exchange(t testing.TB, id uint64) {
	t.Helper()
	fill(s.a.mem[:5000], byte(id))
	s.b.recv(id, s.b.sge(0, 5000))
	s.a.post(transport.SendWR{ID: id, Opcode: ib.WRSend, SGEs: s.a.sge(0, 5000)})
	s.a.run(1e9)
	s.a.want(id, ib.WCSuccess, ib.WCSend)
	s.b.want(id, ib.WCSuccess, ib.WCRecv)
	if !bytes.Equal(s.a.mem[:5000], s.b.mem[:5000]) {
		t.Error("the uninvolved pair received other data")
	}
}

func TestInvalidRingClosesOnlyItsContext(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		do           func(a, b *queue)
	}{
		{"producer of the send ring is too far ahead", "send ring", func(a, _ *queue) {
			atomic.AddUint32(nictest.Word(a.SendRing, abi.RingProducer), uint32(a.Caps().MaxSendWR)+1)
			a.RingDoorbell()
		}},
		{"producer of the send ring goes back", "send ring", func(a, _ *queue) {
			atomic.AddUint32(nictest.Word(a.SendRing, abi.RingProducer), 1<<32-1)
			a.RingDoorbell()
		}},
		{"send WQE with too many elements", "scatter/gather elements", func(a, _ *queue) {
			a.store(&transport.SendWR{Opcode: ib.WRRDMAWrite})
			*nictest.Word(a.SendRing, abi.RingSlots+sendNumSGE) = 3
			a.Publish()
		}},
		{"send WQE with elements beyond 31 bits", "scatter/gather elements", func(a, _ *queue) {
			a.store(&transport.SendWR{Opcode: ib.WRRDMAWrite})
			*nictest.Word(a.SendRing, abi.RingSlots+sendNumSGE) = 1<<32 - 1
			a.Publish()
		}},
		{"send WQE with too much inline data", "inline", func(a, _ *queue) {
			a.store(&transport.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline})
			*nictest.Word(a.SendRing, abi.RingSlots+sendNumSGE) = 65
			a.Publish()
		}},
		{"producer of the receive ring is too far ahead", "receive ring", func(a, b *queue) {
			atomic.AddUint32(nictest.Word(a.Recv.Ring, abi.RingProducer), 1000)
			b.post(transport.SendWR{Opcode: ib.WRSend})
		}},
		{"receive WQE with too many elements", "receive WQE", func(a, b *queue) {
			a.recv(1, nil)
			*nictest.Word(a.Recv.Ring, abi.RingSlots+recvNumSGE) = 1 << 31
			b.post(transport.SendWR{Opcode: ib.WRSend})
		}},
		{"consumer of the completion ring is too far ahead", "CQ ring", func(a, _ *queue) {
			atomic.StoreUint32(nictest.Word(a.cq.Ring, abi.RingConsumer), 5000)
			for range 1100 {
				a.post(transport.SendWR{Opcode: ib.WRRDMAWrite})
				a.step()
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTestFabric(t)
			d1, d2 := w.nic(1), w.nic(2)
			by := newUninvolvedPair(w, d1, d2)
			a, b := w.client(d1).qp(smallCaps), w.client(d2).qp(smallCaps)
			a.connect(1024, b)
			b.connect(1024, a)
			by.exchange(t, 1)
			c.do(a, b)
			w.run(1e9)
			if a.Err == nil || !strings.Contains(a.Err.Error(), c.reason) {
				t.Errorf("closed because of %v, want a reason about the %s", a.Err, c.reason)
			}
			if !a.Context.Closed() || !errors.Is(a.Context.DeallocPD(a.pd), syscall.ENOENT) {
				t.Error("the context still exists")
			}
			if _, err := a.Context.AllocPD(); !errors.Is(err, syscall.EBADF) {
				t.Errorf("a verb on the closed context returned %v", err)
			}
			if b.Err != nil || by.a.Err != nil || by.b.Err != nil {
				t.Error("another context was closed")
			}
			by.exchange(t, 2)
		})
	}
}

func TestUnusedDoorbellBitsAreIgnored(t *testing.T) {
	w := newTestFabric(t)
	d1, d2 := w.nic(1), w.nic(2)
	by := newUninvolvedPair(w, d1, d2)
	c := w.client(d1)
	for i := abi.DoorbellBits; i < abi.DoorbellSize; i++ {
		c.DoorbellPage[i] = 0xff
	}
	w.step()
	c.qp(smallCaps) // in Reset, with its bit set
	for i := abi.DoorbellBits; i < abi.DoorbellSize; i++ {
		c.DoorbellPage[i] = 0xff
	}
	by.exchange(t, 1)
	if c.Err != nil {
		t.Errorf("closed: %v", c.Err)
	}
}

func TestUnknownOpcodeFailsQueuePairInOrder(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
	a.post(transport.SendWR{ID: 2, Opcode: 99})
	a.post(transport.SendWR{ID: 3, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
	w.run(1e9)
	a.want(1, ib.WCSuccess, ib.WCRDMAWrite)
	a.want(2, ib.WCLocQPOpErr, ib.WCSend)
	a.want(3, ib.WCWRFlushErr, ib.WCRDMAWrite)
	if a.State() != ib.QPSErr || a.Err != nil {
		t.Errorf("state %v, killed %v", a.State(), a.Err)
	}
}

// FuzzRings writes arbitrary data to all rings of a client and to its doorbell page, while two
// other clients exchange messages. An input is a list of writes: ring (2 bits), offset (14 bits),
// value (32 bits).
func FuzzRings(f *testing.F) {
	u16 := binary.LittleEndian.AppendUint16
	u32 := binary.LittleEndian.AppendUint32
	f.Add(u32(u16(nil, 0<<14|abi.RingProducer), 1))
	f.Add(u32(u16(nil, 0<<14|abi.RingProducer), 1<<20))
	f.Add(u32(u16(nil, 1<<14|abi.RingProducer), 128))
	f.Add(u32(u16(nil, 1<<14|abi.RingProducer), 129))
	f.Add(u32(u16(nil, 2<<14|abi.RingConsumer), 77))
	f.Add(u32(u16(nil, 3<<14|abi.DoorbellBits), 1<<32-1))
	send := u32(u16(nil, uint16(abi.RingSlots+sendOpcode)), 4)
	send = u32(u16(send, uint16(abi.RingSlots+sendNumSGE)), 1)
	send = u32(u16(send, uint16(abi.RingSlots+sendLength)), 1<<31)
	f.Add(u32(u16(send, abi.RingProducer), 1))
	inline := u32(u16(nil, uint16(abi.RingSlots+sendFlags)), abi.SendInline|abi.SendSignaled)
	inline = u32(u16(inline, uint16(abi.RingSlots+sendNumSGE)), 64)
	f.Add(u32(u16(inline, abi.RingProducer), 5))

	f.Fuzz(func(t *testing.T, in []byte) {
		w := newTestFabric(t)
		w.mem = 1 << 13
		d1, d2 := w.nic(1), w.nic(2)
		by := newUninvolvedPair(w, d1, d2)
		a, b := w.client(d1).qp(smallCaps), w.client(d2).qp(smallCaps)
		a.connect(1024, b)
		b.connect(1024, a)
		a.deviceMemory(256)
		quiet, err := b.Context.AllocDM(256, 0)
		check(t, err)
		_, err = b.Context.RegDM(b.pd, quiet, 0, 256, ib.AccessZeroBased|ib.AccessLocalWrite|ib.AccessRemoteRead)
		check(t, err)
		for range 20 {
			b.recv(9, b.sge(0, 100))
		}
		rings := [][]byte{a.SendRing, a.Recv.Ring, a.cq.Ring, a.DoorbellPage}
		for n := uint64(0); len(in) >= 6 && n < 32; n++ {
			where, v := binary.LittleEndian.Uint16(in), binary.LittleEndian.Uint32(in[2:])
			in = in[6:]
			ring := rings[where>>14]
			off := int(where&(1<<14-1)) &^ 3
			if off+4 <= len(ring) {
				atomic.StoreUint32(nictest.Word(ring, off), v)
			}
			a.DoorbellPage[abi.DoorbellBits] = 0xff
			if b.SendRoom() > 0 {
				b.post(transport.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, Inline: []byte{1, 2, 3}})
			}
			w.run(1e6)
			b.cq.PollAll()
			if n%8 == 0 {
				by.exchange(t, n)
			}
		}
		by.exchange(t, 1<<40)
		if b.Err != nil || by.a.Err != nil || by.b.Err != nil {
			t.Error("another context was closed")
		}
		if !bytes.Equal(b.inDM(quiet), make([]byte, 256)) {
			t.Error("read-only device memory was written")
		}
	})
}
