package attach_test

import (
	"context"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/fabrictest"
)

// Every client and every test of one takes its rings past 2^31 and 2^32, if it uses them at all.
func TestIndicesOfNewRingsPassTheirBoundsSoon(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	client, err := control.NewClient(context.Background(), f.Connect())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if p, err := client.Call(context.Background(), control.Request{Name: "open", Op: abi.OpOpenDevice, Body: []any{abi.OpenDeviceRequest{}}, Want: 4}); err != nil {
		t.Fatal(err)
	} else {
		p.CloseFDs()
	}
	seen := map[uint32]int{}
	for range 4 {
		var cq abi.CreateCQReply
		p, err := client.Call(context.Background(), control.Request{Name: "create", Op: abi.OpCreateCQ, Body: []any{abi.CreateCQRequest{Entries: 4}}, Reply: &cq, Want: 1})
		if err != nil {
			t.Fatal(err)
		}
		page := make([]byte, abi.RingSlots)
		if _, err := unix.Pread(p.FDs[0], page, int64(cq.Ring)); err != nil {
			t.Fatal(err)
		}
		p.CloseFDs()
		producer, consumer := binary.LittleEndian.Uint32(page[abi.RingProducer:]), binary.LittleEndian.Uint32(page[abi.RingConsumer:])
		if producer != consumer {
			t.Errorf("a new ring has the indices %#x and %#x", producer, consumer)
		}
		for _, bound := range []uint32{1 << 31, 0} {
			if n := bound - producer; n > 0 && n < 16 {
				seen[bound]++
			}
		}
	}
	if seen[1<<31] != 2 || seen[0] != 2 {
		t.Errorf("of 4 rings %v begin before 2^31 and 2^32 (0); want 2 each", seen)
	}
}
