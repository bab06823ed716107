package nic_test

import (
	"testing"

	"softroce/internal/ib"
	"softroce/transport"
)

// A step of which Idle says that it has nothing to do does nothing, and is due when Idle says.
func TestIdleStepDoesNothing(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	x, _ := connected(a, b, oneWR)
	idle := 0
	for range 20 {
		x.post(transport.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, RKey: b.mr.RKey(), SGEs: a.sge(0, 100_000)})
		for range 100 {
			w.now++
			if _, busy := w.engine.Step(w.now); !busy {
				break
			}
			due, ok := w.engine.Idle()
			if !ok {
				continue
			}
			idle++
			w.now++
			next, busy := w.engine.Step(w.now)
			if busy || next != due {
				t.Fatalf("step: busy %v, next at %d, want %d", busy, next, due)
			}
			break
		}
		if c := a.cq.PollAll(); len(c) != 1 || c[0].Status != ib.WCSuccess {
			t.Fatalf("completions %+v", c)
		}
	}
	if idle < 10 {
		t.Errorf("idle %d times", idle)
	}
}

// A silent step does not look at doorbells. The next step does.
func TestSilentStepLeavesDoorbells(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	x, _ := connected(a, b, oneWR)
	for busy := true; busy; w.now++ {
		_, busy = w.engine.Step(w.now)
	}
	x.post(transport.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, RKey: b.mr.RKey(), SGEs: a.sge(0, 1)})
	if _, busy := w.engine.StepSilent(w.now); busy {
		t.Error("a silent step found work")
	}
	if _, busy := w.engine.Step(w.now + 1); !busy {
		t.Error("the next step found none")
	}
}
