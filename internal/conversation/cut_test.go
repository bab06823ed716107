package conversation_test

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

// cutFrames returns SENDs of size bytes, of which the capture has captured bytes.
func cutFrames(t testing.TB, n, size, captured int) (rs []capture.Record) {
	t.Helper()
	for i := range n {
		r := sent{op: packet.SendOnly, psn: uint32(i), payload: size}.frame(t, i+1).Record
		r.Data = bytes.Clone(r.Data[:captured])
		rs = append(rs, r)
	}
	return rs
}

// heap returns the bytes in use, without those that nothing refers to.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A packet that a snap length has cut takes the memory of what is left, not of what it was.
func TestCutPacketsKeepLittleMemory(t *testing.T) {
	const n, size, most = 500, 4096, 1024
	rs := cutFrames(t, n, size, 100)
	before := heap()
	var ps capture.Packets
	for _, r := range rs {
		p, err := conversation.Parse(r)
		if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	if each := int64(heap()-before) / n; each > most {
		t.Errorf("%d bytes for each packet, want at most %d", each, most)
	}
	for i, p := range ps {
		if len(p.Payload) != size || p.PSN != uint32(i) || conversation.Usable(p) != nil {
			t.Fatalf("packet %d: PSN %d, %d bytes, %v", i, p.PSN, len(p.Payload), conversation.Usable(p))
		}
	}
}

// The captured part of a payload is as it was, and the rest is zero.
func TestCutPayloadIsCompletedWithZeros(t *testing.T) {
	frame := sent{op: packet.SendOnly, payload: 100}.frame(t, 1)
	payload := len(frame.Data) - packet.ICRCLen - 100
	for i := range 100 {
		frame.Data[payload+i] = 7
	}
	for _, captured := range []int{0, 1, 99, 100} {
		r := frame.Record
		r.Data = bytes.Clone(frame.Data[:payload+captured])
		p, err := conversation.Parse(r)
		if err != nil {
			t.Fatal(err)
		}
		e := conversation.NewTransmission(p, 0)
		whole := append(bytes.Repeat([]byte{7}, captured), make([]byte, 100-captured)...)
		if !bytes.Equal(e.CapturedPayload(), whole[:captured]) || !bytes.Equal(e.WholePayload(), whole) {
			t.Errorf("%d bytes captured: %d of them, whole payload %v", captured, len(e.CapturedPayload()), e.WholePayload())
		}
	}
}

// A frame of which only the padding or the FCS is cut has the whole packet, with its own ICRC: a
// wrong one stays wrong.
func TestCutBehindICRCLeavesPacketWhole(t *testing.T) {
	const fcs = 4
	for _, wrong := range []byte{0, 1} {
		for cut := range fcs + 1 {
			frame := sent{op: packet.SendOnly, payload: 100}.frame(t, 1)
			r := frame.Record
			r.Data = append(bytes.Clone(r.Data), make([]byte, fcs)...)
			for i := range 100 {
				r.Data[frame.Length-packet.ICRCLen-100+i] = byte(i)
			}
			p, err := capture.Parse(capture.Record{LinkType: r.LinkType, Length: len(r.Data), Data: r.Data})
			if err != nil {
				t.Fatal(err)
			}
			covered := p.Transport[:len(p.Transport)-packet.ICRCLen]
			binary.LittleEndian.PutUint32(p.Transport[len(covered):], packet.ICRCBytes(&p.Addressing, covered)^uint32(wrong))
			want := bytes.Clone(p.Payload)
			r.Length, r.Data = len(r.Data), r.Data[:len(r.Data)-cut]
			q, err := conversation.Parse(r)
			if err != nil {
				t.Fatal(err)
			}
			if e := conversation.NewTransmission(q, 0); !bytes.Equal(e.CapturedPayload(), want) || q.ICRCOK() != (wrong == 0) || conversation.IsCut(q.Record) {
				t.Errorf("%d bytes cut: payload %v, ICRC right: %v, cut: %v", cut, e.CapturedPayload(), q.ICRCOK(), conversation.IsCut(q.Record))
			}
		}
	}
}
