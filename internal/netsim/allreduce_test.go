package netsim

import (
	"fmt"
	"path/filepath"
	"testing"

	"softroce/capture"
	"softroce/packet"
)

// A transfer is the payload that a NIC sent to another, and when: in ns of the capture.
type transfer struct {
	bytes       int
	first, last int64
}

// transfers reads captures of the ports of NICs, each with the payload that it sent.
func transfers(t *testing.T, files []string) map[[2]int]*transfer {
	t.Helper()
	l := map[[2]int]*transfer{}
	for nic, file := range files {
		r, err := capture.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for rec, err := range r.Records() {
			var p packet.Frame
			if err != nil || packet.ParseFrame(rec.Data, &p) != nil {
				t.Fatalf("packet %d of %s: %v", rec.No, file, err)
			}
			var h packet.Header
			if _, err := h.Parse(p.Transport); err != nil {
				t.Fatal(err)
			}
			payload, err := h.PayloadLen(len(p.Transport) - packet.ICRCLen)
			if err != nil {
				t.Fatal(err)
			}
			if p.Src != nicAddr(nic) || payload == 0 {
				continue
			}
			key := [2]int{nic, int(p.Dst.As4()[3]) - 1}
			if l[key] == nil {
				l[key] = &transfer{first: rec.Time.UnixNano()}
			}
			l[key].bytes += payload
			l[key].last = rec.Time.UnixNano()
		}
	}
	return l
}

// What is on the cables of a tree of 1 to 3 levels: each NIC but the first sends the data to its
// parent once, and gets it from there once. No NIC sends on before it has what it sends.
func TestTreeAllReduceVolume(t *testing.T) {
	const size = 100_000
	for n := 2; n <= 8; n++ {
		var o Options
		var files []string
		for i := range n {
			files = append(files, filepath.Join(t.TempDir(), fmt.Sprint(i)))
			o.Captures = append(o.Captures, Capture{fmt.Sprint("n", i), files[i]})
		}
		r, err := simulate(t, fmt.Sprintf("star: {nics: %d}", n), fmt.Sprintf("traffic: [{pattern: tree_all_reduce, size: %dB}]", size), o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Ended != 2*(n-1) || r.NICs.Retransmitted != 0 {
			t.Errorf("%d NICs: %d flows ended, %d packets sent again", n, r.Ended, r.NICs.Retransmitted)
		}
		seen := transfers(t, files)
		for child := 1; child < n; child++ {
			parent := (child+1)/2 - 1
			up, down := seen[[2]int{child, parent}], seen[[2]int{parent, child}]
			if up == nil || down == nil || up.bytes != size || down.bytes != size {
				t.Fatalf("%d NICs: %d sends %v to %d, which sends %v", n, child, up, parent, down)
			}
			if down.first < up.last {
				t.Errorf("%d NICs: %d sends to %d before it has received all", n, parent, child)
			}
			if parent == 0 {
				continue
			}
			above := (parent+1)/2 - 1
			if seen[[2]int{parent, above}].first < up.last || down.first < seen[[2]int{above, parent}].last {
				t.Errorf("%d NICs: %d sends on before it has received all", n, parent)
			}
		}
		if len(seen) != 2*(n-1) {
			t.Errorf("%d NICs: %d pairs exchange data", n, len(seen))
		}
	}
}

// A ring all-reduce of N NICs moves 2(N-1)/N of the data over each cable.
func TestRingAllReduceVolume(t *testing.T) {
	const n, size = 5, 100_000
	var o Options
	var files []string
	for i := range n {
		files = append(files, filepath.Join(t.TempDir(), fmt.Sprint(i)))
		o.Captures = append(o.Captures, Capture{fmt.Sprint("n", i), files[i]})
	}
	if _, err := simulate(t, fmt.Sprintf("star: {nics: %d}", n), fmt.Sprintf("traffic: [{pattern: ring_all_reduce, size: %dB}]", size), o); err != nil {
		t.Fatal(err)
	}
	seen := transfers(t, files)
	for i := range n {
		if s := seen[[2]int{i, (i + 1) % n}]; s == nil || s.bytes != 2*(n-1)*size/n || len(seen) != n {
			t.Errorf("NIC %d: %+v", i, s)
		}
	}
}
