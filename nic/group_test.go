package nic

import (
	"context"
	"runtime"
	"testing"
)

// A thread that loses its engine in a step ends there. The gate belongs to the thread that goes on
// with the step.
func TestGateStaysWithTheEngine(t *testing.T) {
	var engines []*Engine
	for range 2 {
		e, err := NewEngine(EngineConfig{})
		if err != nil {
			t.Fatal(err)
		}
		engines = append(engines, e)
	}
	NewGroup(engines...)
	e := engines[1]
	e.mail.start()
	e.post(runtime.Goexit)
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.loop(context.Background())
	}()
	<-done
	if !e.gate.inside {
		t.Error("the thread that ended has left the gate")
	}
	e.gate.leave()
	e.mail.stop()
	for _, e := range engines {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}
