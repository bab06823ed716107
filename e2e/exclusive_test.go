package e2e

import (
	"flag"
	"sync"
	"testing"
	"time"
)

// Tests wait more than they work: for guests, for timers, for each other's programs. So they run side by side, one in each
// lane at a time.
var (
	onBridge  lane // the guest on the bridge
	onCable   lane // the guest whose network is datagrams
	betweenUs lane // programs on softroce alone
)

// A lane is what one test at a time can use.
type lane struct{ mu sync.Mutex }

// take makes a test a parallel one, and lets it go on when the lane is free. It is the test's until it and its subtests have
// ended, and what they have made is gone: so it is to be the first thing that a test does.
func (l *lane) take(t *testing.T) {
	t.Helper()
	t.Parallel()
	await(t, l.mu.Lock)
	t.Cleanup(l.mu.Unlock)
}

func await(t *testing.T, turn func()) {
	t.Helper()
	start := time.Now()
	turn()
	t.Logf("waited %v for its lane", time.Since(start)) // scripts/testreport takes it off the test's time
}

// programs is full when as many pairs of programs run as should at a time, where the tests that run them are parallel in a lane.
var programs = make(chan struct{}, 3)

// enter waits until there is room, and takes it until the function that it returns is called.
func enter(t *testing.T, room chan struct{}) (leave func()) {
	t.Helper()
	await(t, func() { room <- struct{}{} })
	return func() { <-room }
}

// manyAtATime lets the tests wait for their lanes at the same time. go test would have two of them do so on a machine with
// two processors, and if both waited for the same one, the rest would stand idle. It is the lanes, and programs, that bound
// what runs.
func manyAtATime() error {
	flag.Parse()
	return flag.Set("test.parallel", "1000")
}
