package nic

import "testing"

// A user who fails queue pairs all the time grows nothing, and removes no entry of a user with
// fewer.
func TestHistoryIsBoundedAndShared(t *testing.T) {
	var l endedQPs
	l.add(nil)
	for n := range uint32(10) {
		l.add(&QPInfo{QPN: n, Owner: Owner{UID: 1}})
	}
	for n := range uint32(10 * maxEnded) {
		l.add(&QPInfo{QPN: n, Owner: Owner{UID: 2}})
	}
	count := map[uint32]int{}
	for i, q := range l.list {
		count[q.UID]++
		if i > 0 && q.Number <= l.list[i-1].Number {
			t.Errorf("entry %d has number %d, after %d", i, q.Number, l.list[i-1].Number)
		}
	}
	if len(l.list) != maxEnded || count[1] != 10 || count[2] != maxEnded-10 {
		t.Errorf("%d entries, by user %v", len(l.list), count)
	}
	if newest := l.list[len(l.list)-1]; newest.QPN != 10*maxEnded-1 {
		t.Errorf("the newest entry is queue pair %d", newest.QPN)
	}
}
