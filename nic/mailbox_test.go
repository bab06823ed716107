package nic

import (
	"testing"
	"time"
)

// A goroutine that waits for a function on the engine polls, sleeps with its thread, or parks. In
// each case it continues when the function has returned, and not before.
func TestDoWaitsForFunction(t *testing.T) {
	for _, c := range []struct {
		name              string
		pollers, sleepers int32
	}{{"polling", 1, 0}, {"polling, then asleep", 1, 1}, {"asleep", 0, 1}, {"parked", 0, 0}} {
		for _, takes := range []time.Duration{0, 2 * taskSpin, 20 * time.Millisecond} {
			var m mailbox
			m.start()
			m.pollers.Store(c.pollers)
			m.sleepers.Store(c.sleepers)
			returned := false
			m.do(func() { time.Sleep(takes); returned = true }, func() {
				go func() {
					time.Sleep(takes)
					for _, f := range m.take() {
						f()
					}
				}()
			})
			if !returned {
				t.Errorf("%s: do returned before a function that takes %v", c.name, takes)
			}
			if p, s := m.polling.Load(), m.sleeping.Load(); p != 0 || s != 0 {
				t.Errorf("%s: %d goroutines poll and %d sleep afterwards", c.name, p, s)
			}
		}
	}
}

// Functions that were posted when the engine ends still run, and those who wait for them continue.
func TestDoEndsWithEngine(t *testing.T) {
	for range 100 {
		var m mailbox
		m.start()
		posted := make(chan struct{})
		go func() {
			<-posted
			m.stop()
		}()
		ran := false
		m.do(func() { ran = true }, func() { close(posted) })
		if !ran {
			t.Fatal("the function did not run")
		}
	}
}
