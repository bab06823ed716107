package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const fixtures = "../pcap-fixtures"

// fixtureFiles returns the captures in pcap-fixtures and fails the test if there are too few.
func fixtureFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(fixtures, "*.pcap"))
	if err != nil || len(files) < 80 {
		t.Fatalf("%d captures in %s, %v; want at least 80", len(files), fixtures, err)
	}
	return files
}

// pcapFrames returns the frames of a little-endian Ethernet pcap file. The reader in package
// capture imports this package and cannot be used here.
func pcapFrames(t testing.TB, file string) (frames [][]byte) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	if magic := le.Uint32(b); magic != 0xa1b2c3d4 && magic != 0xa1b23c4d {
		t.Fatalf("%s: magic %#x", file, magic)
	}
	for b = b[24:]; len(b) >= 16; {
		n := le.Uint32(b[8:])
		frames = append(frames, b[16:16+n])
		b = b[16+n:]
	}
	return frames
}

// roceFrames returns the RoCEv2 frames of a fixture. A frame that fails to parse, except with
// ErrNotRoCE, fails the test.
func roceFrames(t testing.TB, file string) (frames [][]byte) {
	t.Helper()
	for i, b := range pcapFrames(t, file) {
		var f Frame
		switch err := ParseFrame(b, &f); {
		case err == nil:
			frames = append(frames, b)
		case !errors.Is(err, ErrNotRoCE):
			t.Errorf("%s: frame %d: %v", file, i+1, err)
		}
	}
	return frames
}

// readmeCounts reads from the README of the fixtures how many packets and correct ICRCs each file
// has.
func readmeCounts(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(fixtures, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]string{}
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(line, " | ")
		if name, ok := strings.CutPrefix(cells[0], "| `"); ok && len(cells) >= 6 {
			counts[strings.TrimSuffix(name, "`")] = cells[len(cells)-2]
		}
	}
	return counts
}

func TestFixturePacketsSurviveReencoding(t *testing.T) {
	counts := readmeCounts(t)
	for _, file := range fixtureFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			frames := roceFrames(t, file)
			for i, b := range frames {
				checkFrame(t, i, b)
			}
			n := len(frames)
			if got := fmt.Sprintf("%d of %d", n, n); got != counts[filepath.Base(file)] {
				t.Errorf("%s packets with a correct ICRC, README has %s", got, counts[filepath.Base(file)])
			}
		})
	}
}

// checkFrame parses frame b, encodes it again and compares.
func checkFrame(t *testing.T, i int, b []byte) {
	t.Helper()
	var f Frame
	if err := ParseFrame(b, &f); err != nil {
		t.Fatal(err)
	}
	if !f.ICRCOK() {
		t.Errorf("RoCEv2 frame %d: incorrect ICRC", i)
	}
	if !f.IPChecksumOK() {
		t.Errorf("RoCEv2 frame %d: incorrect IPv4 checksum", i)
	}
	var h Header
	n, err := h.Parse(f.Transport[:len(f.Transport)-ICRCLen])
	if err != nil {
		t.Fatalf("RoCEv2 frame %d: %v", i, err)
	}
	payload := f.Transport[n : len(f.Transport)-ICRCLen-int(h.Pad)]
	pad := h.Pad
	var tx Tx
	tx.Set(&h, payload)
	if h.Pad != pad {
		t.Errorf("RoCEv2 frame %d: pad %d, want %d", i, h.Pad, pad)
	}
	if got := append(AppendFrame(nil, &f.Addressing, &tx), f.Trailer...); !bytes.Equal(got, b) {
		t.Errorf("RoCEv2 frame %d: re-encoded\n%x, was\n%x", i, got, b)
	}
}
