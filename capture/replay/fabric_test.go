package replay_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"softroce/capture"
	"softroce/capture/replay"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// What softroce does itself, on a fabric that loses packets on both sides of the point of capture,
// shows no difference: there is no loss that replay does not understand.
func TestFabricThatLosesPacketsReplays(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rec := capture.NewRecorder()
			faults := func(nic uint64) string {
				// So few that no request is lost eight times in a row.
				return fmt.Sprintf("seed %d\ndrop chance %d%%\n", seed*2+nic, 1+seed/2)
			}
			a, b := verbstest.Pair(t, verbstest.WithCapture(rec), verbstest.WithFaults(0, faults(0)), verbstest.WithFaults(1, faults(1)))
			ends := verbstest.Ends{Options: func(o *verbs.ConnectOptions) { o.Timeout = 12 }}
			x, y := ends.Connect(t, a, b)
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
				t.Errorf("%v", r)
			}
			if len(r.Connections) != 1 || len(r.Connections[0].Streams) != 2 {
				t.Errorf("%d connections", len(r.Connections))
			}
		})
	}
}

// The parts of an end's buffer: what it sends, what its peer writes, reads and counts in, what it receives.
const (
	outgoing = 0
	written  = 16 << 10
	readable = 32 << 10
	counter  = 40 << 10
	received = 41 << 10
	landing  = 60 << 10
	most     = 8 << 10
)

// post posts n operations of random kind and size, each with a completion.
func post(x, y *verbstest.End, rnd *rand.Rand, n int) {
	for range n {
		size := rnd.IntN(most)
		switch rnd.IntN(4) {
		case 0:
			y.Recv(1, received, most)
			x.Send(verbs.SendWR{WRID: 2, Opcode: verbs.WRSend, SGList: x.SGE(outgoing, size)})
		case 1:
			x.Send(verbs.SendWR{WRID: 2, Opcode: verbs.WRRDMAWrite, SGList: x.SGE(outgoing, size), RemoteAddr: y.MR.Addr() + written, RKey: y.MR.RKey()})
		case 2:
			x.Send(verbs.SendWR{WRID: 2, Opcode: verbs.WRRDMARead, SGList: x.SGE(landing, size/4), RemoteAddr: y.MR.Addr() + readable, RKey: y.MR.RKey()})
		case 3:
			x.Send(verbs.SendWR{WRID: 2, Opcode: verbs.WRAtomicFetchAndAdd, SGList: x.SGE(landing, 8), CompareAdd: 1, RemoteAddr: y.MR.Addr() + counter, RKey: y.MR.RKey()})
		}
	}
}

// drain waits until a WRITE without bytes that x posts is complete, and so everything before it.
func drain(x *verbstest.End) {
	x.Send(verbs.SendWR{WRID: 3, Opcode: verbs.WRRDMAWrite})
	for {
		if wc := x.Completion(); wc.WRID == 3 {
			return
		}
	}
}
