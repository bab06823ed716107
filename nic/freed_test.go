package nic_test

import (
	"runtime"
	"testing"
	"weak"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
)

// What clients had is freed when they have left, also if nothing happens on their devices any more.
func TestClientsThatLeftAreFreed(t *testing.T) {
	for _, c := range []struct {
		name string
		use  func(*client)
	}{
		{"mapped memory", func(*client) {}},
		{"copied memory", (*client).useCopiedMemory},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTestFabric(t)
			contexts, pairs := comeAndGo(w, c.use)
			runtime.GC()
			if n := reachable(contexts); n > 0 {
				t.Errorf("%d of %d contexts are not freed", n, len(contexts))
			}
			if n := reachable(pairs); n > 0 {
				t.Errorf("%d of %d queue pairs are not freed", n, len(pairs))
			}
			runtime.KeepAlive(w)
		})
	}
}

// comeAndGo lets clients of two devices exchange messages over many queue pairs, and leave.
func comeAndGo(w *testFabric, use func(*client)) (contexts []weak.Pointer[nic.Context], pairs []weak.Pointer[nic.QP]) {
	x, y := w.client(w.nic(1)), w.client(w.nic(2))
	use(x)
	a, b := connectMany(x, y, 50, smallCaps)
	for i := range a {
		a[i].post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 1000)})
		pairs = append(pairs, weak.Make(a[i].QP.QP), weak.Make(b[i].QP.QP))
	}
	w.run(1e9)
	if n := len(x.cq.PollAll()); n != len(a) {
		w.t.Fatalf("%d completions, want %d", n, len(a))
	}
	for _, c := range []*client{x, y} {
		contexts = append(contexts, weak.Make(c.Context))
		c.Context.Close()
	}
	w.steps(3) // what an engine does before it sleeps
	return contexts, pairs
}

// reachable counts the pointers whose objects are not freed.
func reachable[T any](l []weak.Pointer[T]) (n int) {
	for _, p := range l {
		if p.Value() != nil {
			n++
		}
	}
	return n
}
