package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/capture"
	"softroce/packet"
)

// sourceOf returns a capture of two NICs with n packets of 1000 bytes payload, a second apart. The
// i-th has the PSN i and was captured at NIC i%2. The capture lost a frame more of NIC b.
func sourceOf(t *testing.T, n int) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w, err := capture.NewWriter(&b, "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		a := packet.Addressing{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 50000, HopLimit: 64}
		var tx packet.Tx
		tx.Set(&packet.Header{BTH: packet.BTH{Opcode: packet.WriteMiddle, DestQP: 17, PSN: uint32(i)}}, make([]byte, 1000))
		if err := w.WriteFrame(int64(i+1)*1e9, i%2, packet.AppendFrame(nil, &a, &tx)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.WriteStatistics(1, 1, uint64(n/2+1), 1), w.Close()); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestSelectedPacketsAreRecorded(t *testing.T) {
	for _, c := range []struct {
		name   string
		o      RecordOptions
		filter string
		want   string // for each file: name and packets, as NIC and PSN
	}{
		{"filter", RecordOptions{}, "psn 2..4", "all.pcapng: a2 b3 a4"},
		{"filter by NIC", RecordOptions{}, "nic b psn 0..4", "all.pcapng: b1 b3"},
		{"nothing", RecordOptions{}, "qp 18", "all.pcapng:"},
		{"count", RecordOptions{Count: 3}, "", "all.pcapng: a0 b1 a2"},
		{"count of selected packets", RecordOptions{Count: 2}, "nic a", "all.pcapng: a0 a2"},
		{"size", RecordOptions{FileSize: 3600}, "psn 0..6", "all_00001.pcapng: a0 b1 a2; all_00002.pcapng: b3 a4 b5; all_00003.pcapng: a6"},
		{"size of less than a packet", RecordOptions{FileSize: 1}, "psn 0..1", "all_00001.pcapng: a0; all_00002.pcapng: b1"},
		{"time", RecordOptions{FileTime: 2 * time.Second}, "psn 0..4", "all_00001.pcapng: a0 b1; all_00002.pcapng: a2 b3; all_00003.pcapng: a4"},
		{"the newest files", RecordOptions{FileTime: time.Second, Files: 2}, "psn 0..4", "all_00004.pcapng: b3; all_00005.pcapng: a4"},
		{"beginning of frames", RecordOptions{SnapLen: 60, FileSize: 500}, "psn 0..3", "all_00001.pcapng: a0 b1; all_00002.pcapng: a2 b3"},
	} {
		dir := t.TempDir()
		c.o.Output = filepath.Join(dir, "all.pcapng")
		if c.filter != "" {
			var err error
			if c.o.Filter, err = capture.ParseFilter(c.filter); err != nil {
				t.Fatal(err)
			}
		}
		s := &selection{RecordOptions: c.o, open: os.Create}
		if err := s.begin(); err != nil {
			t.Fatal(err)
		}
		if err := s.copyAll(sourceOf(t, 10), func() {}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || strings.Join(files, " ") != strings.Join(s.files, " ") {
			t.Errorf("%s: files %v, kept %v, %v", c.name, files, s.files, err)
		}
		var got []string
		n := 0
		for _, f := range files {
			text := filepath.Base(f) + ":"
			for _, p := range recorded(t, f) {
				n++
				text += fmt.Sprintf(" %s%d", p.NIC, p.PSN)
				if size := len(p.Data); p.Length != 1000+58 || c.o.SnapLen > 0 && size != c.o.SnapLen || c.o.SnapLen == 0 && size != p.Length {
					t.Errorf("%s: %d bytes of %d", c.name, size, p.Length)
				}
			}
			got = append(got, text)
		}
		if g := strings.Join(got, "; "); g != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, g, c.want)
		}
		if c.o.Files == 0 && int(s.written().Packets) != n {
			t.Errorf("%s: %d packets written, %d counted", c.name, n, s.written().Packets)
		}
	}
}

// The last file of a selection says what each NIC has seen and lost, those without a selected
// packet too.
func TestSelectionHasStatistics(t *testing.T) {
	for _, c := range []struct {
		name   string
		o      RecordOptions
		filter string
	}{
		{"filter", RecordOptions{}, "nic a"},
		{"nothing", RecordOptions{}, "qp 18"},
		{"count", RecordOptions{Count: 1}, ""},
		{"beginning of frames", RecordOptions{SnapLen: 60}, ""},
		{"rotation", RecordOptions{FileTime: 3 * time.Second}, ""},
	} {
		c.o.Output = filepath.Join(t.TempDir(), "all.pcapng")
		if c.filter != "" {
			var err error
			if c.o.Filter, err = capture.ParseFilter(c.filter); err != nil {
				t.Fatal(err)
			}
		}
		s := &selection{RecordOptions: c.o, open: os.Create}
		if err := errors.Join(s.begin(), s.copyAll(sourceOf(t, 10), func() {})); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		r, err := capture.Open(s.files[len(s.files)-1])
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for range r.Records() {
		}
		want := []capture.Interface{{Name: "a", LinkType: capture.Ethernet, Seen: 5}, {Name: "b", LinkType: capture.Ethernet, Seen: 6, Lost: 1}}
		if got := r.Interfaces(); !slices.Equal(got, want) {
			t.Errorf("%s:\n got %v\nwant %v", c.name, got, want)
		}
	}
}

func TestRingContinuesWithoutAFileThatIsGone(t *testing.T) {
	dir := t.TempDir()
	s := &selection{
		RecordOptions: RecordOptions{Output: filepath.Join(dir, "all.pcapng"), FileTime: time.Second, Files: 2},
		open: func(path string) (*os.File, error) {
			if path == filepath.Join(dir, "all_00003.pcapng") { // the first is about to be removed
				if err := os.Remove(filepath.Join(dir, "all_00001.pcapng")); err != nil {
					t.Error(err)
				}
			}
			return os.Create(path)
		},
	}
	if err := s.begin(); err != nil {
		t.Fatal(err)
	}
	if err := s.copyAll(sourceOf(t, 4), func() {}); err != nil {
		t.Error(err)
	}
	for i, name := range []string{"all_00003.pcapng", "all_00004.pcapng"} {
		if ps := recorded(t, filepath.Join(dir, name)); len(ps) != 1 || ps[0].PSN != uint32(i+2) {
			t.Errorf("%s: %v", name, ps)
		}
	}
}

// recorded returns the packets of a file.
func recorded(t *testing.T, file string) (ps capture.Packets) {
	t.Helper()
	r, err := capture.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for rec, err := range r.Records() {
		if err != nil {
			t.Fatal(err)
		}
		p, err := capture.ParseCut(rec)
		if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	return ps
}

func TestStalledReaderDoesNotKeepSelectionFromEnding(t *testing.T) {
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	s := &selection{RecordOptions: RecordOptions{Output: "-", FileSize: 1 << 30}, open: func(string) (*os.File, error) { return wr, nil }}
	if err := s.begin(); err != nil {
		t.Fatal(err)
	}
	copied := make(chan error, 1)
	source := sourceOf(t, 1000) // more than fits in the pipe
	go func() { copied <- s.copyAll(source, func() {}) }()
	if err, ended := s.await(copied); ended || !errors.Is(err, errNotRead) {
		t.Errorf("ended: %v, %v", ended, err)
	}
	if n := s.written().Packets; n == 0 || n == 1000 {
		t.Errorf("%d packets of 1000 were written to a pipe that nothing reads", n)
	}
	go io.Copy(io.Discard, rd)
	if err := <-copied; err != nil || s.written().Packets != 1000 {
		t.Errorf("%d packets were written, %v", s.written().Packets, err)
	}
}
