package abi

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"testing"
	"unsafe"
)

func TestSlotsAreLittleEndianInFieldOrder(t *testing.T) {
	checkSlot(t, (*SendWQE).Parse)
	checkSlot(t, (*RecvWQE).Parse)
	checkSlot(t, (*CQE).Parse)
	checkSlot(t, (*AsyncEvent).Parse)
}

// checkSlot compares In and Parse with encoding/binary.
func checkSlot[T SendWQE | RecvWQE | CQE | AsyncEvent](t *testing.T, parse func(*T, []byte)) {
	t.Helper()
	var s, parsed T
	want := make([]byte, unsafe.Sizeof(s))
	rand.NewChaCha8([32]byte{1}).Read(want)
	if _, err := binary.Decode(want, binary.LittleEndian, &s); err != nil {
		t.Fatal(err)
	}
	want, _ = binary.Append(nil, binary.LittleEndian, s) // without what lies in the padding
	got := make([]byte, len(want)+8)
	*In[T](got) = s
	if !bytes.Equal(got[:len(want)], want) {
		t.Errorf("%T: In wrote %x, want %x", s, got[:len(want)], want)
	}
	if parse(&parsed, got); parsed != s {
		t.Errorf("%T: Parse returned %+v, want %+v", s, parsed, s)
	}
	defer func() {
		if recover() == nil {
			t.Errorf("%T: In accepts a slot that is too short", s)
		}
	}()
	In[T](got[:len(want)-1])
}

func TestSGEsAreLittleEndianInFieldOrder(t *testing.T) {
	list := []SGE{{1, 2, 3}, {4 << 40, 5 << 20, 6 << 20}}
	want, err := binary.Append(nil, binary.LittleEndian, list)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if PutSGEs(got, list); !bytes.Equal(got, want) {
		t.Errorf("PutSGEs wrote %x, want %x", got, want)
	}
	if l := AppendSGEs(list[:1], want, 2); !reflect.DeepEqual(l, []SGE{list[0], list[0], list[1]}) {
		t.Errorf("AppendSGEs returned %v", l)
	}
	for name, f := range map[string]func(){
		"PutSGEs":    func() { PutSGEs(got[:len(got)-1], list) },
		"AppendSGEs": func() { AppendSGEs(list, want[:len(want)-1], 2) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s accepts memory that is too short", name)
				}
			}()
			f()
		}()
	}
}

func TestSlotCodecDoesNotAllocate(t *testing.T) {
	b := make([]byte, 128)
	list := []SGE{{1, 2, 3}, {4, 5, 6}}
	got := make([]SGE, 0, 2)
	if n := testing.AllocsPerRun(10, func() {
		w := In[SendWQE](b)
		w.WRID, w.NumSGE = 7, 2
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
