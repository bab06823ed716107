package replay_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"softroce/internal/replay"
)

// snapped writes a copy of a pcap file with frames of at most snap bytes.
func snapped(t testing.TB, file string, snap uint32) string {
	t.Helper()
	b, err := os.ReadFile(fixtures + file)
	if err != nil {
		t.Fatal(err)
	}
	out, le := slices.Clone(b[:24]), binary.LittleEndian
	for b = b[24:]; len(b) > 0; {
		n := le.Uint32(b[8:])
		head := slices.Clone(b[:16])
		le.PutUint32(head[8:], min(n, snap))
		out = append(append(out, head...), b[16:16+min(n, snap)]...)
		b = b[16+n:]
	}
	name := filepath.Join(t.TempDir(), file)
	if err := os.WriteFile(name, out, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A capture may have only the beginning of its packets. What is left of the payload is compared,
// and a wrong header is found all the same.
func TestCutPacketsReplayWithoutDifference(t *testing.T) {
	for _, snap := range []uint32{54, 64, 80, 96, 128, 300} {
		compared, headless := 0, 0
		for _, f := range allFixtures(t) {
			r, err := replay.File(snapped(t, f, snap), replay.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if r.Differences() != 0 {
				t.Errorf("%s, %d bytes of each frame:\n%v", f, snap, r)
			}
			if len(r.Incomplete()) == 0 && r.Compared < r.RC/2 {
				t.Errorf("%s, %d bytes of each frame: hardly anything was compared:\n%v", f, snap, r)
			}
			compared += r.Compared
			headless += r.Headless
		}
		if snap >= 96 && (compared < 3500 || headless > 0) {
			t.Errorf("%d bytes of each frame: %d packets were compared, %d connections were not", snap, compared, headless)
		}
	}
}
