package nic

import (
	"testing"

	"softroce/packet"
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
