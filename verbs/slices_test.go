package verbs_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"softroce/internal/fabrictest"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// Queue pairs of a NIC that several engines drive share a CQ and an SRQ, while other connections
// come and go: each message arrives once, in order and intact, and each completion is polled once.
func TestQueuePairsOfSeveralEnginesShareQueues(t *testing.T) {
	for _, engines := range []int{2, 4} {
		t.Run(fmt.Sprintf("engines=%d", engines), func(t *testing.T) {
			f := fabrictest.New(t, fabrictest.Config{Slices: engines})
			a, b := f.Open(0), f.Open(1)
			x, y := verbstest.ConnectedRC(t, a, b)
			const pairs, messages, size = 8, 200, 512
			srq, err := y.PD.CreateSRQ(t.Context(), verbs.SRQAttr{MaxWR: pairs * 16, MaxSGE: 1})
			must(t, err)
			posted := 0
			post := func() {
				must(t, srq.PostRecv(verbs.RecvWR{WRID: uint64(posted % 64), SGList: y.SGE(posted%64*size, size)}))
				posted++
			}
			for range 64 {
				post()
			}
			var senders []*verbs.QP
			number := map[uint32]int{} // of the pair, by the QPN of the receiver
			for i := range pairs {
				p, q := sharingPair(t, x, y, srq)
				senders = append(senders, p)
				number[q.QPNum()] = i
			}
			var churn sync.WaitGroup
			done := make(chan struct{})
			churn.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						p, q := anotherPair(t, x, y)
						p.Close(t.Context())
						q.Close(t.Context())
					}
				}
			})
			defer churn.Wait()
			defer close(done)
			for i := range pairs {
				copy(x.Buf[i*size:], bytes.Repeat([]byte{byte(i + 1)}, size))
			}
			sent, acknowledged, next := make([]int, pairs), 0, make([]uint32, pairs)
			for received := 0; received < pairs*messages || acknowledged < pairs*messages; {
				for i, p := range senders {
					for sent[i] < messages && sent[i] < int(next[i])+4 {
						must(t, p.PostSend(verbs.SendWR{WRID: uint64(i), Opcode: verbs.WRSendWithImm, SendFlags: verbs.SendSignaled,
							SGList: x.SGE(i*size, size), Imm: uint32(sent[i])}))
						sent[i]++
					}
				}
				for _, wc := range poll(t, x.CQ) {
					must(t, wc.Err())
					acknowledged++
				}
				for _, wc := range poll(t, y.CQ) {
					must(t, wc.Err())
					i := number[wc.QPNum]
					if wc.Imm != next[i] {
						t.Fatalf("pair %d: message %d arrived, want %d", i, wc.Imm, next[i])
					}
					if got := y.Buf[int(wc.WRID)*size:][:size]; !bytes.Equal(got, bytes.Repeat([]byte{byte(i + 1)}, size)) {
						t.Fatalf("pair %d: message %d has the contents of another", i, wc.Imm)
					}
					next[i]++
					received++
					must(t, srq.PostRecv(verbs.RecvWR{WRID: wc.WRID, SGList: y.SGE(int(wc.WRID)*size, size)}))
				}
			}
			if n := len(poll(t, x.CQ)) + len(poll(t, y.CQ)); n != 0 {
				t.Errorf("%d completions too many", n)
			}
		})
	}
}

// The completion of a bind says that the old binding is not used any more. So it waits for the
// steps of the other engines, which may be using it.
func TestBindWaitsForOtherEngines(t *testing.T) {
	const engines = 2
	f := fabrictest.New(t, fabrictest.Config{Slices: engines})
	x, y := verbstest.ConnectedRC(t, f.Open(0), f.Open(1))
	q := y.QP
	for q.QPNum()%engines != 1 {
		_, q = anotherPair(t, x, y)
	}
	m, _ := newWindowRegion(t, y)
	w := window(t, y, verbs.MWType1)
	inStep, done := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(done) })
	defer release()
	other, own := f.Engines[0], f.Engines[1]
	other.Do(func() {
		other.Repeat(func() bool {
			close(inStep)
			<-done
			return false
		})
	})
	<-inStep
	for id := range uint64(2) { // the second one is not a bind, but comes after one
		wr := verbs.SendWR{WRID: id, Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled}
		if id == 0 {
			wr.Opcode, wr.BindMW = verbs.WRBindMW, &verbs.BindMW{MW: w, RKey: verbs.IncRKey(w.RKey()),
				MWBindInfo: verbs.MWBindInfo{MR: m, Addr: m.Addr(), Length: 8, Access: verbs.AccessRemoteWrite}}
		}
		must(t, q.PostSend(wr))
	}
	const steps = 100
	for end := own.Counters().Steps + steps; own.Counters().Steps < end; own.Wake() {
		if l := poll(t, y.CQ); len(l) > 0 {
			t.Fatalf("completions %+v while the other engine is in a step", l)
		}
	}
	release()
	for id, wc := range y.Completions(2) {
		if err := wc.Err(); err != nil || wc.WRID != uint64(id) {
			t.Errorf("completion %+v, %v; want that of work request %d", wc, err, id)
		}
	}
}

// Peers write through a window until a bind replaces it: nothing arrives after that has completed.
func TestNothingArrivesByAnOldBinding(t *testing.T) {
	const engines, pairs, rounds, writes, size = 3, 4, 20, 16, 4096
	f := fabrictest.New(t, fabrictest.Config{Slices: engines})
	x, y := verbstest.ConnectedRC(t, f.Open(0), f.Open(1))
	m, mem := newWindowRegion(t, y)
	w := window(t, y, verbs.MWType1)
	bind := func(length uint64) {
		must(t, y.BindMW(w, verbs.MWBind{SendFlags: verbs.SendSignaled,
			MWBindInfo: verbs.MWBindInfo{MR: m, Addr: m.Addr(), Length: length, Access: verbs.AccessRemoteWrite}}))
		if wc := y.Completion(); wc.Opcode != verbs.WCBindMW {
			t.Fatalf("completion %+v", wc)
		}
	}
	for i := range writes {
		copy(x.Buf[i*size:], bytes.Repeat([]byte{byte(i + 1)}, size))
	}
	arrived := 0
	for range rounds {
		bind(size)
		var queues []*verbs.QP
		for range pairs {
			p, q := anotherPair(t, x, y)
			queues = append(queues, p, q)
			for i := range writes {
				must(t, p.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled,
					SGList: x.SGE(i*size, size), RemoteAddr: m.Addr(), RKey: w.RKey()}))
			}
		}
		bind(1)
		after := bytes.Clone(mem[:size])
		for n := 0; n < pairs*writes; {
			for _, wc := range poll(t, x.CQ) {
				n++
				if wc.Err() == nil {
					arrived++
				}
			}
		}
		if !bytes.Equal(mem[:size], after) {
			t.Fatal("memory has changed after the bind of another window")
		}
		for _, q := range queues {
			must(t, q.Close(t.Context()))
		}
	}
	t.Logf("%d of %d WRITEs have arrived", arrived, rounds*pairs*writes)
}

// sharingPair is anotherPair whose receiver has an SRQ.
func sharingPair(t *testing.T, x, y *verbstest.Endpoint, srq *verbs.SRQ) (p, q *verbs.QP) {
	t.Helper()
	limits := verbs.QPCap{MaxSendWR: 16, MaxSendSGE: 1}
	p, err := x.PD.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: x.CQ, RecvCQ: x.CQ, Cap: limits})
	must(t, err)
	q, err = y.PD.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: y.CQ, RecvCQ: y.CQ, SRQ: srq, Cap: limits})
	must(t, err)
	pi, err := p.Info(t.Context(), verbs.AnyGID)
	must(t, err)
	qi, err := q.Info(t.Context(), verbs.AnyGID)
	must(t, err)
	must(t, p.Connect(t.Context(), qi, verbs.DefaultConnectOptions()))
	must(t, q.Connect(t.Context(), pi, verbs.DefaultConnectOptions()))
	return p, q
}

// poll returns what a CQ has.
func poll(t *testing.T, cq *verbs.CQ) []verbs.WC {
	t.Helper()
	l := make([]verbs.WC, 16)
	n, err := cq.Poll(l)
	must(t, err)
	return l[:n]
}
