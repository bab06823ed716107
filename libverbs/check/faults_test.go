package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"softroce/internal/control"
	"softroce/internal/fabrictest"
	"softroce/internal/ib"
	"softroce/wire/fault"
)

// runWithFaults runs a program of testdata that requests faults, provokes them, and returns the
// requests.
func runWithFaults(t *testing.T, program string) (requests []string) {
	t.Helper()
	f := fabrictest.New(t, fabrictest.Config{})
	c, err := control.Dial(t.Context(), f.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rule := 0
	stderr, err := converse(t, command(t, f.Socket(), compile(t, program)), func(line string) {
		requests = append(requests, line)
		var event ib.EventType
		var number uint32
		if n, _ := fmt.Sscanf(line, "fire %d %d", &event, &number); n == 2 {
			if err := c.FireEvent(t.Context(), "nic0", event, cmp.Or(number, onlyObject(f, event))); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			return
		}
		if rule > 0 {
			if err := c.RemoveFault(t.Context(), rule); err != nil {
				t.Error(err)
			}
		}
		first, last, err := c.AddFaults(t.Context(), line)
		if err != nil || last > first {
			t.Errorf("%s: rules %d to %d, %v", line, first, last, err)
		}
		if rule = first; last < first {
			rule = 0
		}
	})
	if err != nil {
		t.Errorf("%s: %v after %d requests\n%s", program, err, len(requests), stderr)
	}
	return requests
}

// onlyObject returns the ID of the completion queue or SRQ that an event is about, 0 if it is about
// another object.
func onlyObject(f *fabrictest.Fabric, event ib.EventType) uint32 {
	s := f.Engines[0].Snapshot(f.Devices[0])
	switch event {
	case ib.EventCQErr:
		return s.CQs[0].ID
	case ib.EventSRQErr, ib.EventSRQLimitReached:
		return s.SRQs[0].ID
	}
	return 0
}

// Every verb fails as its rule says, every work request completes with every error that it can
// have, every event arrives, and what is not hit by a rule works.
func TestProgramSeesFaults(t *testing.T) {
	requests := append(runWithFaults(t, "faults"), runWithFaults(t, "faults_cm")...)
	requested := func(prefix string) bool {
		return slices.ContainsFunc(requests, func(r string) bool { return strings.HasPrefix(r, prefix) })
	}
	for _, verb := range fault.VerbNames {
		// The library carries out destroy_ah later, or not at all.
		if left := verb == "destroy_ah"; requested("fail "+verb+" EXDEV") == left {
			t.Errorf("the program lets %s fail: %v", verb, !left)
		}
	}
	pairs := 0
	for status := range maps.Keys(ib.WCStatuses) {
		for _, opcode := range []string{"send", "rdma_write", "rdma_read", "comp_swap", "fetch_add", "atomic_write", "bind_mw", "local_inv", "recv"} {
			_, err := fault.Parse(strings.NewReader("fail completion " + status + " opcode " + opcode))
			want := fmt.Sprintf("fail completion %s vendor_err 0x1%02x opcode %s qp ", status, uint32(ib.WCStatuses[status]), opcode)
			if requested(want) != (err == nil) {
				t.Errorf("%q is requested: %v; the language: %v", want, err != nil, err)
			}
			if err == nil {
				pairs++
			}
		}
	}
	if pairs < 75 {
		t.Errorf("only %d pairs of a status and an opcode", pairs)
	}
	for event := range ib.EventNames() {
		if !requested(fmt.Sprintf("fire %d ", event)) {
			t.Errorf("no event %v", ib.EventType(event))
		}
	}
}
