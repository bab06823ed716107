package verbs_test

import (
	"runtime"
	"testing"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// maxQueuePairHeap is the most that an idle connected queue pair should use of the heap, in bytes,
// beside its rings: of the NIC, the daemon and the program together.
const maxQueuePairHeap = 8 << 10

func TestIdleQueuePairUsesLittleMemory(t *testing.T) {
	if n := queuePairHeap(t); n > maxQueuePairHeap {
		t.Errorf("an idle queue pair uses %d bytes of the heap, want at most %d", n, maxQueuePairHeap)
	}
}

// BenchmarkQueuePairHeap reports how many bytes of the heap an idle connected queue pair uses: of
// the NIC, the daemon and the program together.
func BenchmarkQueuePairHeap(b *testing.B) {
	var n int
	for b.Loop() {
		n = queuePairHeap(b)
	}
	b.ReportMetric(float64(n), "B/QP")
	b.ReportMetric(0, "ns/op")
}

// queuePairHeap connects queue pairs, uses them, and returns what each takes when it is idle.
func queuePairHeap(t testing.TB) int {
	const pairs = 300
	m, n := verbstest.Pair(t)
	x, y := verbstest.ConnectedRC(t, m, n)
	before := heapInUse()
	queues := make([]*verbs.QP, 0, 2*pairs)
	for range pairs {
		p, q := anotherPair(t, x, y)
		queues = append(queues, p, q)
		for range 16 {
			for _, op := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMARead} {
				must(t, p.PostSend(verbs.SendWR{Opcode: op, SendFlags: verbs.SendSignaled, SGList: x.SGE(0, 4096),
					RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}))
			}
		}
		for _, c := range x.Completions(32) {
			must(t, c.Err())
		}
	}
	after := heapInUse()
	runtime.KeepAlive(queues)
	return int(after-before) / len(queues)
}

// anotherPair connects two queue pairs with the PDs and CQs of two endpoints.
func anotherPair(t testing.TB, x, y *verbstest.Endpoint) (p, q *verbs.QP) {
	t.Helper()
	ends := make([]*verbs.QP, 2)
	infos := make([]verbs.Info, 2)
	for i, e := range []*verbstest.Endpoint{x, y} {
		var err error
		ends[i], err = e.PD.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: e.CQ, RecvCQ: e.CQ,
			Cap: verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 1, MaxRecvSGE: 1}})
		must(t, err)
		infos[i], err = ends[i].Info(t.Context(), verbs.AnyGID)
		must(t, err)
	}
	for i, q := range ends {
		must(t, q.Connect(t.Context(), infos[1-i], verbs.DefaultConnectOptions()))
	}
	return ends[0], ends[1]
}

// heapInUse returns the bytes of reachable objects.
func heapInUse() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
