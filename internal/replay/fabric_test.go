package replay_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// softroce's own traffic on a fabric that loses packets on both sides of the point of capture shows
// no difference: replay explains every loss.
func TestLossyFabricReplaysWithoutDifference(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			// The loss rate is so low that no request is lost eight times in a row.
			r := impaired(t, seed, fmt.Sprintf("drop chance %d%%", 1+seed/2))
			if r.Differences() != 0 {
				t.Errorf("%v", r)
			}
			if len(r.Connections) != 1 || len(r.Connections[0].Streams) != 2 {
				t.Errorf("the report has %d connections", len(r.Connections))
			}
		})
	}
}

// The same on a fabric that duplicates, reorders and damages packets after the point of capture:
// there is no difference. The report says which packets were overtaken. A copy that arrives
// together with its packet is not answered a second time, so nothing shows it.
func TestImpairedFabricReplaysWithoutDifference(t *testing.T) {
	for _, c := range []struct {
		name, faults string
		overtaken    bool   // whether the report has to show it
		seeds        uint64 // so many that no run lacks it
	}{
		{"copies", "duplicate receive kind request chance 20%", false, 4},
		{"several copies", "duplicate 3 receive chance 10%", false, 4},
		{"overtaken", "reorder receive within 1ms chance 4%", true, 8},
		{"overtaken by several", "reorder 4 receive within 1ms chance 3%", true, 12},
		{"damaged", "corrupt receive chance 2%", false, 4},
		{"all", "drop send chance 0.5%\nduplicate receive chance 5%\ncorrupt chance 0.5%\nreorder 2 receive within 1ms chance 2%", false, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			overtaken := 0
			for seed := range c.seeds {
				r := impaired(t, seed, c.faults)
				if r.Differences() != 0 {
					t.Errorf("seed %d: %v", seed, r)
				}
				for _, s := range r.Connections[0].Streams {
					overtaken += len(s.Responder.Overtaken)
				}
			}
			if c.overtaken && overtaken == 0 {
				t.Error("no packet was overtaken")
			}
		})
	}
}

// impaired replays the traffic of two queue pairs on a fabric with faults.
func impaired(t *testing.T, seed uint64, faults string) *replay.Report {
	t.Helper()
	rec := capture.NewRecorder()
	program := func(nic uint64) string { return fmt.Sprintf("seed %d\n%s\n", seed*2+nic, faults) }
	a, b := verbstest.Pair(t, verbstest.WithCapture(rec), verbstest.WithFaults(0, program(0)), verbstest.WithFaults(1, program(1)))
	config := verbstest.EndpointConfig{Options: func(o *verbs.ConnectOptions) { o.Timeout = 12 }}
	x, y := config.Connect(t, a, b)
	rnd := rand.New(rand.NewPCG(seed, 7))
	for i := range most {
		x.Buf[i], y.Buf[i] = byte(rnd.Uint32()), byte(rnd.Uint32())
	}
	for range 20 {
		n := 1 + rnd.IntN(8)
		post(x, y, rnd, n)
		post(y, x, rnd, n)
		drain(x)
		drain(y)
	}
	r := packets(t, rec.Packets(), replay.Options{})
	if r.Differences() != 0 {
		keep(t, rec, seed)
	}
	return r
}

// keep saves the capture of a failed test where it is not deleted.
func keep(t *testing.T, rec *capture.Recorder, seed uint64) {
	t.Helper()
	f, err := os.CreateTemp("", fmt.Sprintf("replay-seed-%d-*.pcapng", seed))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	t.Logf("%s: %v", f.Name(), rec.Save(f.Name()))
}

// Offsets in an endpoint's buffer: what it sends, what its peer writes, reads and adds to, and what
// it receives.
const (
	outgoing = 0
	written  = 16 << 10
	readable = 32 << 10
	counter  = 40 << 10
	received = 41 << 10
	results  = 60 << 10
	most     = 8 << 10
)

// post posts n operations of random kind and size, each with a completion.
func post(x, y *verbstest.Endpoint, rnd *rand.Rand, n int) {
	for range n {
		size := rnd.IntN(most)
		switch rnd.IntN(4) {
		case 0:
			y.Recv(1, received, most)
			x.Send(verbs.SendWR{WRID: 2, Opcode: verbs.WRSend, SGList: x.SGE(outgoing, size)})
		case 1:
			x.Send(verbs.SendWR{WRID: 2, Opcode: verbs.WRRDMAWrite, SGList: x.SGE(outgoing, size), RemoteAddr: y.MR.Addr() + written, RKey: y.MR.RKey()})
		case 2:
			x.Send(verbs.SendWR{WRID: 2, Opcode: verbs.WRRDMARead, SGList: x.SGE(results, size/4), RemoteAddr: y.MR.Addr() + readable, RKey: y.MR.RKey()})
		case 3:
			x.Send(verbs.SendWR{WRID: 2, Opcode: verbs.WRAtomicFetchAndAdd, SGList: x.SGE(results, 8), CompareAdd: 1, RemoteAddr: y.MR.Addr() + counter, RKey: y.MR.RKey()})
		}
	}
}

// drain waits until a WRITE of zero bytes from x is complete, and so everything before it.
func drain(x *verbstest.Endpoint) {
	x.Send(verbs.SendWR{WRID: 3, Opcode: verbs.WRRDMAWrite})
	for {
		if wc := x.Completion(); wc.WRID == 3 {
			return
		}
	}
}
