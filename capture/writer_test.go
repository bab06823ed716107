package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"softroce/packet"
)

// frame returns the Ethernet frame of a SEND or ACK for tests.
func frame(o packet.Opcode, qp, psn uint32, payload string) []byte {
	a := packet.Addressing{
		SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, DstMAC: [6]byte{2, 0, 0, 0, 0, 2}, HopLimit: 64, SrcPort: 50000,
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), ID: uint16(psn),
	}
	var tx packet.Tx
	tx.Set(&packet.Header{BTH: packet.BTH{Opcode: o, PKey: packet.DefaultPKey, DestQP: qp, PSN: psn}}, []byte(payload))
	return packet.AppendFrame(nil, &a, &tx)
}

func readAll(t *testing.T, b []byte) []Record {
	t.Helper()
	r, err := NewReader(bytes.NewReader(b), "test")
	if err != nil {
		t.Fatal(err)
	}
	var recs []Record
	for rec, err := range r.Records() {
		if err != nil {
			t.Fatal(err)
		}
		recs = append(recs, rec)
	}
	return recs
}

func TestWriterKeepsNanosecondsAndInterfaces(t *testing.T) {
	var file bytes.Buffer
	w, err := NewWriter(&file, "softroce0", "softroce1")
	if err != nil {
		t.Fatal(err)
	}
	third, err := w.AddInterface("softroce2")
	if err != nil || third != 2 {
		t.Fatalf("interface %d, %v", third, err)
	}
	const base = 1_700_000_000_123_456_789
	for i := range 9 {
		if err := w.WriteFrame(base+int64(i), i%3, frame(packet.SendOnly, 1, uint32(i), "12345"[:i%6])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil || w.Packets() != 9 {
		t.Errorf("%d packets, %v", w.Packets(), err)
	}
	recs := readAll(t, file.Bytes())
	for i, rec := range recs {
		want := frame(packet.SendOnly, 1, uint32(i), "12345"[:i%6])
		if rec.No != i+1 || rec.Time.UnixNano() != base+int64(i) || rec.Interface != i%3 || rec.LinkType != Ethernet ||
			rec.Length != len(want) || !bytes.Equal(rec.Data, want) {
			t.Errorf("frame %d: %+v", i, rec)
		}
	}
	if len(recs) != 9 {
		t.Errorf("read %d frames", len(recs))
	}
}

func TestWriterAllowsConcurrentUse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.pcapng")
	w, err := Create(file, "a")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 100 {
				if err := w.WriteFrame(int64(i), 0, frame(packet.SendOnly, uint32(g), uint32(i), "x")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	ps, err := Load(file)
	if err != nil || len(ps) != 400 {
		t.Fatalf("%d packets, %v", len(ps), err)
	}
	for g := range 4 {
		for i, p := range ps.Where(DestQP(uint32(g))) {
			if p.PSN != uint32(i) || !p.ICRCOK() {
				t.Fatalf("goroutine %d, packet %d: %v", g, i, p)
			}
		}
	}
}

func TestWriterFlushesEarlierFrames(t *testing.T) {
	var file bytes.Buffer
	w, err := NewWriter(&file, "a")
	if err != nil {
		t.Fatal(err)
	}
	write := func(at time.Duration) int {
		if err := w.WriteFrame(int64(at), 0, frame(packet.SendOnly, 1, 1, "")); err != nil {
			t.Fatal(err)
		}
		return file.Len()
	}
	first := write(time.Second)
	if buffered := write(time.Second + 100*time.Millisecond); buffered != first {
		t.Errorf("%d bytes written before a flush, want %d", buffered, first)
	}
	if pushed := write(time.Second + 200*time.Millisecond); pushed <= first {
		t.Error("no frame was flushed after 200 ms of frames")
	}
	before := write(time.Second + 210*time.Millisecond)
	if err := w.Flush(); err != nil || file.Len() <= before {
		t.Errorf("Flush: %d bytes, %v", file.Len()-before, err)
	}
}

// full is a file on a disk that has room for n bytes only.
type full struct{ n int }

var errFull = errors.New("no space left")

func (f *full) Write(b []byte) (int, error) {
	if f.n -= len(b); f.n < 0 {
		return 0, errFull
	}
	return len(b), nil
}

// A reader of a pipe learns the interfaces without waiting for a frame, and what they have seen as
// the file says it.
func TestReaderKnowsInterfaces(t *testing.T) {
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	w, err := NewWriter(wr, "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	var r *Reader
	for _, step := range []struct {
		name  string
		write func() error
		want  []Interface
	}{
		{"header", func() error { return nil }, []Interface{{Name: "a", LinkType: Ethernet}, {Name: "b", LinkType: Ethernet}}},
		{"a frame", func() error { return w.WriteFrame(1, 1, make([]byte, 60)) }, []Interface{{Name: "a", LinkType: Ethernet}, {Name: "b", LinkType: Ethernet, Seen: 1}}},
		{"statistics", func() error { return errors.Join(w.WriteStatistics(2, 0, 7, 4), w.WriteFrame(2, 1, make([]byte, 60))) },
			[]Interface{{Name: "a", LinkType: Ethernet, Seen: 7, Lost: 4}, {Name: "b", LinkType: Ethernet, Seen: 2}}},
	} {
		if err := errors.Join(step.write(), w.Flush()); err != nil {
			t.Fatal(err)
		}
		if r == nil {
			if r, err = NewReader(rd, "pipe"); err != nil {
				t.Fatal(err)
			}
		} else if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		if got := r.Interfaces(); !slices.Equal(got, step.want) {
			t.Errorf("after %s: %v, want %v", step.name, got, step.want)
		}
	}
}

func TestWriterErrorIsFinal(t *testing.T) {
	w, err := NewWriter(&full{300}, "a")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		err = w.WriteFrame(int64(i)*flushEvery, 0, frame(packet.SendOnly, 1, 1, "payload"))
	}
	_, addErr := w.AddInterface("b")
	for i, err := range []error{err, addErr, w.Flush(), w.Close()} {
		if !errors.Is(err, errFull) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestClosedWriterRejectsFrames(t *testing.T) {
	w, err := NewWriter(io.Discard, "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteFrame(0, 1, nil); err == nil || errors.Is(err, ErrClosed) {
		t.Errorf("frame of an unknown interface: %v", err)
	}
	if err := errors.Join(w.WriteFrame(0, 0, frame(packet.SendOnly, 1, 1, "")), w.Close()); err != nil {
		t.Errorf("frame after one of an unknown interface: %v", err)
	}
	if err := w.WriteFrame(0, 0, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := NewWriter(io.Discard); err == nil {
		t.Error("a capture without an interface was created")
	}
	if _, err := Create(filepath.Join(t.TempDir(), "no", "dir"), "a"); err == nil {
		t.Error("a capture in a missing directory was created")
	}
}

func TestWriteFrameDoesNotAllocate(t *testing.T) {
	w, err := NewWriter(io.Discard, "a")
	if err != nil {
		t.Fatal(err)
	}
	b := frame(packet.SendOnly, 1, 1, "payload")
	if n := testing.AllocsPerRun(100, func() { w.WriteFrame(1, 0, b) }); n != 0 {
		t.Errorf("WriteFrame makes %g allocations", n)
	}
}

func ExampleRecorder() {
	rec := NewRecorder() // pass it to a link as its sink; here the test itself writes frames
	rec.WriteFrame(1e9, 0, frame(packet.SendOnly, 0x11, 7, "hello"))
	rec.WriteFrame(2e9, 1, frame(packet.Acknowledge, 0x12, 7, ""))

	send := rec.Find(Kind(packet.KindSend), DestQP(0x11))
	fmt.Printf("%v %q\n", send.Opcode, send.Payload)
	fmt.Println(len(rec.Where(Opcode(packet.Acknowledge), PSN(send.PSN))), "ACK")
	// Output:
	// RC_SEND_ONLY "hello"
	// 1 ACK
}

func TestRecorderKeepsCopiesAndFilters(t *testing.T) {
	rec := NewRecorder()
	b := frame(packet.SendOnly, 0x11, 7, "hello")
	for _, f := range [][]byte{
		b, make([]byte, 60), // another protocol
		frame(packet.Acknowledge, 0x12, 7, ""), frame(packet.SendOnly, 0x11, 8, "again"),
	} {
		if err := rec.WriteFrame(5e9, 2, f); err != nil {
			t.Fatal(err)
		}
	}
	clear(b)
	bad := frame(packet.SendOnly, 0x11, 9, "bad")
	bad[len(bad)-1] ^= 1
	rec.WriteFrame(5e9, 0, bad)
	rec.WriteFrame(5e9, 0, bad[:50])

	ps := rec.Packets()
	if len(ps) != 4 || string(ps[0].Payload) != "hello" || ps[1].No != 3 || !ps[0].ICRCOK() {
		t.Errorf("packets:\n%v", ps)
	}
	for name, c := range map[string]struct {
		got  Packets
		want []int // numbers
	}{
		"opcode":        {rec.Where(Opcode(packet.SendOnly)), []int{1, 4, 5}},
		"one of two":    {rec.Where(Opcode(packet.SendFirst, packet.Acknowledge)), []int{3}},
		"QP and PSN":    {rec.Where(DestQP(0x11), PSN(8)), []int{4}},
		"request":       {rec.Where(Request()), []int{1, 4, 5}},
		"syndrome":      {rec.Where(Syndrome(packet.SyndromeACK)), []int{3}},
		"another's":     {rec.Where(Syndrome(packet.NAKSequence)), nil},
		"bad ICRC":      {rec.Where(BadICRC()), []int{5}},
		"no match: all": {rec.Where(), []int{1, 3, 4, 5}},
	} {
		var got []int
		for _, p := range c.got {
			got = append(got, p.No)
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if p := rec.Find(PSN(77)); p != nil {
		t.Errorf("found %v", p)
	}
	if m := rec.Malformed(); len(m) != 1 || m[0].No != 6 {
		t.Errorf("malformed: %+v", m)
	}

	file := filepath.Join(t.TempDir(), "rec.pcapng")
	if err := rec.Save(file); err != nil {
		t.Fatal(err)
	}
	if back, err := Load(file); err != nil || len(back) != 4 || back[2].Interface != 2 || !back[2].Time.Equal(time.Unix(5, 0)) {
		t.Errorf("%v\n%v", err, back)
	}
	if err := rec.Save(filepath.Join(t.TempDir(), "no", "dir")); err == nil {
		t.Error("saving to a missing directory succeeded")
	}
	rec.Reset()
	if len(rec.Packets()) != 0 || len(rec.Malformed()) != 0 {
		t.Error("packets are left after Reset")
	}
}
