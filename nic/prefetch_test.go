package nic

import (
	"net/netip"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// All payload of a batch is passed once, in its order, in pieces of at most n bytes.
func TestPayloadCursorPassesEachByteOnce(t *testing.T) {
	memory := make([]byte, 100)
	for i := range memory {
		memory[i] = byte(i)
	}
	frames := []wire.TxFrame{
		{}, // an ACK
		{Tx: packet.Tx{Payload: [][]byte{memory[:40], nil, memory[40:45]}}},
		{Tx: packet.Tx{Payload: [][]byte{memory[45:]}}},
	}
	var c payloadCursor
	var got []byte
	filled := 1
	for filled < len(frames) || len(got) < len(memory) {
		p := c.next(frames[:filled], 16)
		if p == nil && filled == len(frames) {
			break
		}
		if p == nil { // the batch grows meanwhile
			filled++
		}
		if len(p) > 16 {
			t.Fatalf("%d bytes at once", len(p))
		}
		got = append(got, p...)
	}
	if string(got) != string(memory) || c.next(frames, 16) != nil {
		t.Fatalf("passed %d", got)
	}
}

// A frame may be replaced by another one that has less payload.
func TestPayloadCursorInAFrameThatWasReplaced(t *testing.T) {
	frames := []wire.TxFrame{{Tx: packet.Tx{Payload: [][]byte{make([]byte, 8), make([]byte, 64)}}}}
	var c payloadCursor
	for range 3 {
		c.next(frames, 16)
	}
	for _, payload := range [][][]byte{{make([]byte, 8), make([]byte, 4)}, {make([]byte, 8)}, nil} {
		at := c
		frames[0].Payload = payload
		if p := at.next(frames, 16); p != nil {
			t.Fatalf("passed %d bytes of %d pieces", len(p), len(payload))
		}
	}
}

// The next batch is prefetched from its beginning, however the last one ended.
func TestRewindResetsThePayloadCursor(t *testing.T) {
	for name, end := range map[string]func(*frameBatch){
		"sent":      func(b *frameBatch) { b.remove(b.waiting()) },
		"discarded": func(b *frameBatch) { b.filled = 0 }, // as discardResponses may, and moveToBacklogs
	} {
		s := txState{icrc: true, alternate: true, data: frameBatch{frames: make([]wire.TxFrame, 2), copies: make([]copiedPayload, 2)}}
		for range s.data.frames {
			f := s.frame(&s.data, nil, false)
			f.Payload = [][]byte{make([]byte, 8)}
		}
		s.prefetchPayload()
		s.prefetchPayload()
		if want := (payloadCursor{1, 0, 8}); s.payload != want {
			t.Fatalf("%s: prefetched up to %+v, want %+v", name, s.payload, want)
		}
		s.rewind()
		if s.payload.frame != 1 {
			t.Fatalf("%s: back to %+v while frames wait", name, s.payload)
		}
		end(&s.data)
		if s.rewind(); s.payload != (payloadCursor{}) || s.congested {
			t.Fatalf("%s: after rewind %+v, congested %v", name, s.payload, s.congested)
		}
	}
}

// Frames may be shorter than a BTH, have any opcode, and name a queue pair of any type, which may
// lack parts. Nothing is read of one of another slice.
func TestAnyFrameMayBePrefetched(t *testing.T) {
	d, other := &Device{whole: &whole{}}, &Device{}
	with, err := transport.New(transport.Config{Service: packet.UD, SendDepth: 1, MaxSendSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		state ib.QPState
		mask  ib.QPAttrMask
	}{
		{ib.QPSInit, ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskQKey},
		{ib.QPSRTR, 0},
		{ib.QPSRTS, ib.QPMaskSQPSN},
	} {
		if err := with.Modify(&transport.Env{}, &ib.QPAttr{State: s.state}, ib.QPMaskState|s.mask); err != nil {
			t.Fatal(err)
		}
	}
	if err := with.PostSend(&transport.SendWR{}); err != nil {
		t.Fatal(err)
	}
	without := new(transport.QP)
	page := &qpPage{}
	d.qps.pages[0] = page
	const first = 16 // number of the first queue pair
	for i, q := range []*QP{
		{device: d, t: with},
		{device: d, t: with, path: new(wire.Path), recv: recvQueue{ring: &recvRing{}}, sq: ring{slots: make([]byte, 64), slotSize: 64, producer: new(uint32)}},
		{device: d, t: without},
		{device: d, t: without, recv: recvQueue{ring: &recvRing{}, shared: true}},
		{device: other}, // its transport's QP must not be read
		nil,
	} {
		page.qps[first+i] = q
		if q != nil && q.device == d {
			q.prefetchSend()
			q.prefetchCredits()
			q.prefetchDue()
			q.t.PrefetchDeadline()
		}
	}
	var batch []wire.RxFrame
	for n := range packet.BTHLen + 1 {
		for opcode := range 256 {
			for qpn := range byte(6) {
				head := make([]byte, n)
				copy(head, []byte{byte(opcode), 0, 0, 0, 0, 0, 0, first + qpn})
				batch = append(batch, wire.RxFrame{Head: head})
			}
		}
	}
	for i := range batch {
		d.prefetchReceivers(batch, i, i+1)
		if q, _ := d.ownReceiver(&batch[i]); q != nil && q.device != d {
			t.Fatal("what a queue pair of another slice points to would be read")
		}
	}
	for opcode, want := range map[packet.Opcode]bool{packet.Acknowledge: false, packet.WriteOnly: true} {
		f := wire.RxFrame{Head: []byte{byte(opcode), 0, 0, 0, 0, 0, 0, first, 0, 0, 0, 0}}
		if q, request := d.coldReceiver(&f); q != page.qps[first] || request != want {
			t.Errorf("%v is for %v, a request %t", opcode, q, request)
		}
	}
}

// A run to a multicast address looks up no queue pair: another slice may have it.
func TestMulticastRunLooksUpNoQueuePair(t *testing.T) {
	d, other := &Device{whole: &whole{}, buffers: NewFrameBuffers()}, &Device{number: 1}
	const qpn = 17
	d.qps.pages[0] = &qpPage{}
	d.qps.pages[0].qps[qpn] = &QP{device: other, qpn: qpn}
	h := packet.Header{BTH: packet.BTH{Opcode: packet.WriteMiddle, DestQP: qpn}}
	f := wire.RxFrame{Head: make([]byte, packet.BTHLen+256)}
	h.Put(f.Head)
	for dst, lookedUp := range map[string]bool{"239.1.2.3": false, "192.0.2.1": true} {
		d.recent = recentQPs{}
		f.Dst = netip.MustParseAddr(dst)
		if d.takeRun(&f, []wire.RxFrame{f}, packet.Run{Repeat: 1}) {
			t.Errorf("%s: a queue pair in RESET takes a run", dst)
		}
		if found := d.recent != (recentQPs{}); found != lookedUp {
			t.Errorf("%s: a queue pair was looked up: %t", dst, found)
		}
	}
}
