package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/capture"
	"softroce/internal/nicspec"
)

// Captures, counters and fault rules are those of one NIC, whichever engine serves a queue pair.
func TestSeveralEnginesAreOneNIC(t *testing.T) {
	const engines, connections = 3, 6
	dir := t.TempDir()
	program := filepath.Join(dir, "drop.fault")
	if err := os.WriteFile(program, []byte("drop send nic softroce0 opcode RC_WRITE_ONLY nth 2,4,6\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var nics []nicspec.NIC
	for _, n := range nicspec.Defaults() {
		n.Engines = engines
		nics = append(nics, n)
	}
	file := filepath.Join(dir, "all.pcapng")
	d := start(t, Config{NICs: nics, Fault: program, Capture: file})
	if n := len(d.engines); n != engines {
		t.Fatalf("%d engines, want %d", n, engines)
	}
	x, y := open(t, d, "softroce0"), open(t, d, "softroce1")
	for range connections {
		a, b := newEndpoint(t, x), newEndpoint(t, y)
		connect(t, a, b)
		write(t, a, b, 100)
	}
	for _, s := range d.Snapshot().Devices {
		if n := len(s.QPs); n != connections {
			t.Errorf("%s has %d queue pairs, want %d", s.Name, n, connections)
		}
		if s.Engines != engines {
			t.Errorf("%s has %d engines, want %d", s.Name, s.Engines, engines)
		}
		for _, q := range s.QPs {
			if want := int(q.QPN % engines); q.Engine != want {
				t.Errorf("queue pair %d of %s has engine %d, want %d", q.QPN, s.Name, q.Engine, want)
			}
		}
		if s.Name == "softroce0" {
			if n := s.Faults[0].Acted; n != 3 {
				t.Errorf("the rule has dropped %d packets, want 3", n)
			}
			continue
		}
		if n := s.Counters.RxOpcodes["RC_WRITE_ONLY"]; n != connections {
			t.Errorf("%s has received %d WRITEs, want %d", s.Name, n, connections)
		}
	}
	if names := d.capture.names; !slices.Equal(names, []string{"softroce0", "softroce1"}) {
		t.Errorf("the capture has the interfaces %v", names)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	packets, err := capture.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	writes := 0
	for _, p := range packets {
		if p.Opcode.String() == "RC_WRITE_ONLY" {
			writes++
		}
	}
	if writes != connections {
		t.Errorf("the capture has %d WRITEs, want %d", writes, connections)
	}
}

// A delay is that of each packet, whichever engine sends or receives it. The times are those of the
// steps of the engine that drives both queue pairs: a client may post after a step has read the
// clock, and that step sends.
func TestSeveralEnginesDelayPackets(t *testing.T) {
	const engines, connections, delay = 2, 4, 10 * time.Millisecond
	var nics []nicspec.NIC
	for _, n := range nicspec.Defaults() {
		n.Engines, n.Shape.Delay = engines, delay
		nics = append(nics, n)
	}
	d := start(t, Config{NICs: nics})
	x, y := open(t, d, "softroce0"), open(t, d, "softroce1")
	served := map[int]bool{}
	for range connections {
		a, b := newEndpoint(t, x), newEndpoint(t, y)
		connect(t, a, b)
		engine := int(a.qp.QPNum() % engines)
		if other := int(b.qp.QPNum() % engines); other != engine {
			t.Fatalf("engines %d and %d drive the queue pairs of a connection", engine, other)
		}
		begin := write(t, a, b, 100).Timestamp
		took := time.Duration(write(t, a, b, 100).Timestamp - begin)
		if took < 4*delay { // two NICs, two directions
			t.Errorf("a WRITE took %v, want %v at least", took, 4*delay)
		}
		served[engine] = true
	}
	if len(served) != engines {
		t.Errorf("the queue pairs had %d engines, want %d", len(served), engines)
	}
}

// NICs with an engine each are distributed over the engines of the daemon, whose number each queue
// pair shows.
func TestQueuePairsShowTheEngineOfTheirNIC(t *testing.T) {
	d := start(t, Config{Engines: 2})
	for _, name := range []string{"softroce0", "softroce1"} {
		newEndpoint(t, open(t, d, name))
	}
	for i, s := range d.Snapshot().Devices {
		if len(s.QPs) != 1 || s.QPs[0].Engine != i || s.Engines != 1 {
			t.Errorf("%s has %d engines and the queue pairs %+v, want one, driven by engine %d", s.Name, s.Engines, s.QPs, i)
		}
	}
}

func TestEnginesOfNICThatCannotShare(t *testing.T) {
	for _, c := range []struct{ nic, fabric, want string }{
		{"a=dgram:127.0.0.1:5001,127.0.0.1:5000,192.0.2.1/24,engines=2", "", "NIC a: engines=2: a NIC on dgram has one engine"},
		{"a=xdp:eth0,engines=2", "", ""},
		{"a=fabric:192.0.2.1,rate=1G,engines=2", "", "NIC a: engines=2: a NIC with rate=RATE has one engine"},
		{"a=fabric:192.0.2.1,engines=4", "", ""},
		{"a=packet:eth0,engines=1", "", ""},
	} {
		n, err := nicspec.Parse(c.nic)
		if err != nil {
			t.Fatal(err)
		}
		config := Config{NICs: []nicspec.NIC{n}, Fabric: c.fabric}
		err = config.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", c.nic, err, c.want)
		}
	}
}

func TestDefaultEnginesOfNIC(t *testing.T) {
	for _, c := range []struct {
		nic        string
		engines    int // of the daemon; 0: not given
		processors int
		want       int
	}{
		{"a=packet:eth0", 0, 1, 1},
		{"a=packet:eth0", 0, 4, 1},
		{"a=packet:eth0", 0, 7, 1},
		{"a=packet:eth0", 0, 8, 2},
		{"a=udp:eth0", 0, 16, 4},
		{"a=fabric:192.0.2.1", 0, 128, 4},
		{"a=packet:eth0,engines=3", 0, 16, 3},
		{"a=packet:eth0,engines=1", 0, 16, 1},
		{"a=packet:eth0", 2, 16, 0},
		{"a=packet:eth0,rate=1G", 0, 16, 0},
		{"a=xdp:eth0", 0, 16, 4},
		{"a=auto:eth0", 0, 16, 4},
	} {
		n, err := nicspec.Parse(c.nic)
		if err != nil {
			t.Fatal(err)
		}
		config := Config{NICs: []nicspec.NIC{n}, Engines: c.engines}
		config.chooseEngines(c.processors)
		if got := config.NICs[0].Engines; got != c.want {
			t.Errorf("%s, --engines %d, %d processors: %d engines, want %d", c.nic, c.engines, c.processors, got, c.want)
		}
	}
}
