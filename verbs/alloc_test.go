package verbs_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

func TestPostAndPollDoNotAllocate(t *testing.T) {
	for _, process := range []bool{false, true} {
		for _, size := range []int{8, 4 << 10, 64 << 10, 1 << 20} {
			t.Run(fmt.Sprintf("process=%v/%d", process, size), func(t *testing.T) { testNoAllocations(t, process, size) })
		}
	}
}

// testNoAllocations exchanges messages of one size, in memory of this process or in memory that the
// daemon maps.
func testNoAllocations(t *testing.T, process bool, size int) {
	a, b := verbstest.Pair(t, verbstest.WithSpin(time.Second))
	x, y := verbstest.EndpointConfig{BufSize: size, Process: process}.Connect(t, a, b)
	sge, peer := x.SGE(0, size), y.SGE(0, size)
	wc := make([]verbs.WC, 16)
	poll := func(q *verbs.CQ) {
		for {
			n, err := q.Poll(wc)
			if n > 0 {
				err = wc[0].Err()
			}
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				return
			}
			runtime.Gosched()
		}
	}
	send := verbs.SendWR{WRID: 2, Opcode: verbs.WRSend, SendFlags: verbs.SendSignaled, SGList: sge}
	write, read := send, send
	write.Opcode, write.RemoteAddr, write.RKey = verbs.WRRDMAWrite, y.MR.Addr(), y.MR.RKey()
	read.Opcode, read.RemoteAddr, read.RKey = verbs.WRRDMARead, y.MR.Addr(), y.MR.RKey()
	receive := verbs.RecvWR{WRID: 1, SGList: peer}
	round := func() {
		y.PostRecv(receive)
		for _, wr := range []*verbs.SendWR{&send, &write, &read} {
			x.PostSend(*wr)
			poll(x.CQ)
		}
		poll(y.CQ)
	}
	rounds := 300
	if size > 64<<10 {
		rounds = 50
	}
	for range rounds {
		round() // buffers grow to their size
	}
	// testing.AllocsPerRun would leave one processor to the test and the engine.
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range rounds {
		round()
	}
	runtime.ReadMemStats(&after)
	if n := (after.Mallocs - before.Mallocs) / uint64(rounds); n != 0 {
		t.Errorf("%d allocations for three messages", n)
	}
}
