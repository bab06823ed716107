package abi

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"testing"
	"unsafe"
)

// A slot is what Put and Parse are for.
type slot interface {
	Put([]byte)
	Parse([]byte)
}

// TestSlotsAreLittleEndianInFieldOrder compares Put and Parse with encoding/binary.
func TestSlotsAreLittleEndianInFieldOrder(t *testing.T) {
	rnd := rand.NewChaCha8([32]byte{1})
	for _, s := range []slot{&SGE{}, &SendWQE{}, &RecvWQE{}, &CQE{}, &AsyncEvent{}} {
		v := reflect.ValueOf(s).Elem()
		want := make([]byte, v.Type().Size())
		rnd.Read(want)
		if _, err := binary.Decode(want, binary.LittleEndian, s); err != nil {
			t.Fatal(err)
		}
		want, _ = binary.Append(nil, binary.LittleEndian, s) // without what lies in the padding
		got := make([]byte, len(want)+1)
		s.Put(got)
		if !bytes.Equal(got[:len(want)], want) {
			t.Errorf("%s: Put wrote %x, want %x", v.Type(), got[:len(want)], want)
		}
		parsed := reflect.New(v.Type()).Interface().(slot)
		parsed.Parse(got)
		if !reflect.DeepEqual(parsed, s) {
			t.Errorf("%s: Parse returned %+v, want %+v", v.Type(), parsed, s)
		}
	}
}

func TestSlotCodecDoesNotAllocate(t *testing.T) {
	b := make([]byte, 128)
	list := []SGE{{1, 2, 3}, {4, 5, 6}}
	got := make([]SGE, 0, 2)
	if n := testing.AllocsPerRun(10, func() {
		w := SendWQE{WRID: 7, NumSGE: 2}
		w.Put(b)
		PutSGEs(b[SendWQESize:], list)
		var r SendWQE
		r.Parse(b)
		got = AppendSGEs(got[:0], b[SendWQESize:], int(r.NumSGE))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if !reflect.DeepEqual(got, list) {
		t.Errorf("elements %v, want %v", got, list)
	}
}

func TestBindAndFlushShareTheSendSlot(t *testing.T) {
	var w SendWQE
	w.Bind().LKey, w.Bind().Access, w.Bind().Length, w.Bind().Addr = 1, 2, 3, 4
	if w.RemoteQPN != 1 || w.RemoteQKey != 2 || w.CompareAdd != 3 || w.RemoteAddr != 4 {
		t.Errorf("bind in the wrong place: %+v", w)
	}
	w = SendWQE{}
	w.Flush().Length, w.Flush().Placement, w.Flush().Selectivity, w.Flush().RKey = 1, 2, 3, 4
	if w.CompareAdd != 1 || w.RemoteQPN != 2 || w.RemoteQKey != 3 || w.RKey != 4 {
		t.Errorf("FLUSH in the wrong place: %+v", w)
	}
	if unsafe.Sizeof(BindWQE{}) != SendWQESize || unsafe.Sizeof(FlushWQE{}) != SendWQESize {
		t.Error("a bind or a FLUSH is not of the size of SendWQE")
	}
}
