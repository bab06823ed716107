package verbs_test

import (
	"errors"
	"testing"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// A post knows the queue pair that was next in the last round. It forgets one that is closed.
func TestPostsFollowTheLastRound(t *testing.T) {
	m, n := verbstest.Pair(t)
	x, y := verbstest.ConnectedRC(t, m, n)
	qps := make([]*verbs.QP, 4)
	for i := range qps {
		qps[i], _ = anotherPair(t, x, y)
	}
	post := func(q *verbs.QP) error {
		return q.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled, SGList: x.SGE(0, 8),
			RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	}
	round := func(qps ...*verbs.QP) {
		t.Helper()
		for range 2 {
			for _, q := range qps {
				must(t, post(q))
			}
		}
		for _, c := range x.Completions(2 * len(qps)) {
			must(t, c.Err())
		}
		for i, q := range qps {
			if q.Successor() != qps[(i+1)%len(qps)] {
				t.Errorf("queue pair %d of %d: wrong successor", i, len(qps))
			}
		}
	}
	round(qps...)
	round(qps[3], qps[1], qps[0], qps[2])
	for _, i := range []int{1, 2} { // the second one was posted to last
		must(t, qps[i].Close(t.Context()))
		if qps[i].Successor() != nil {
			t.Errorf("queue pair %d is closed and keeps another one", i)
		}
	}
	if err := post(qps[2]); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("a post to a closed queue pair: %v", err)
	}
	must(t, post(qps[0]))
	must(t, post(qps[3]))
	if q := qps[3].Successor(); q != nil {
		t.Errorf("a post keeps queue pair %d, which is closed, as its successor", q.QPNum())
	}
	for _, c := range x.Completions(2) {
		must(t, c.Err())
	}
	round(qps[0], qps[3])
}
