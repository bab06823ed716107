package sharelock

import (
	"sync"
	"testing"
)

func TestMutexExcludesOthersOnceItIsShared(t *testing.T) {
	var m Mutex
	m.Lock()
	m.Lock() // does nothing
	m.Share()
	n := 0
	const rounds = 1000
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range rounds {
				m.Lock()
				n++
				m.Unlock()
			}
		})
	}
	all.Wait()
	if n != 4*rounds {
		t.Errorf("the counter is %d, want %d", n, 4*rounds)
	}
}
