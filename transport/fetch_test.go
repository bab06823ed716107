package transport

import (
	"bytes"
	"os"
	"testing"
	"unsafe"

	"softroce/internal/ib"
	"softroce/mrtable"
)

// useCopiedMemory gives s memory that must be copied, like that of another process, with room for
// room bytes at a time.
func (s *side) useCopiedMemory(room int) {
	s.t.Helper()
	p, err := mrtable.OpenProcess(os.Getpid(), -1)
	must(s.t, err)
	addr := uint64(uintptr(unsafe.Pointer(&s.mem[0])))
	m, err := p.Memory(addr, uint64(len(s.mem)), ib.AccessLocalWrite)
	must(s.t, err)
	s.env.Mem = mrtable.NewIO(room)
	s.region, err = s.table.Register(s.qp.cfg.PD, m, sideBase, uint64(len(s.mem)), ib.AccessLocalWrite|ib.AccessRemoteRead)
	must(s.t, err)
}

// A queue pair that may send a few packets reads only their data ahead: the rest would have to be
// read again in its next turn.
func TestReadAheadIsLimitedToWhatCanBeSent(t *testing.T) {
	const turn, length = 4, 100_000
	rounds := func(a, b, limited *side) (n int) {
		for now := int64(2); ; now++ {
			limited.room = turn
			if !step(a, b, now, deliverAll) {
				return n
			}
			n++
		}
	}
	t.Run("SEND", func(t *testing.T) {
		a, b := connect(t, defaults)
		a.useCopiedMemory(2 * turn * defaults.mtu) // for two epochs
		fill(a.mem[:length], 1)
		b.recv(1, 0, length)
		a.post(SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: a.sge(0, length)})
		n := rounds(a, b, a)
		if got := statuses(a.done) + " " + statuses(b.done); got != "2:0 1:0" || !bytes.Equal(a.mem[:length], b.mem[:length]) {
			t.Errorf("after %d rounds: %s", n, got)
		}
	})
	t.Run("READ", func(t *testing.T) {
		a, b := connect(t, defaults)
		b.useCopiedMemory(2 * turn * defaults.mtu)
		fill(b.mem[:length], 1)
		a.post(SendWR{ID: 2, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, RemoteAddr: sideBase, RKey: b.region.RKey(), SGEs: a.sge(0, length)})
		n := rounds(a, b, b)
		if got := statuses(a.done); got != "2:0" || !bytes.Equal(a.mem[:length], b.mem[:length]) {
			t.Errorf("after %d rounds: %s", n, got)
		}
	})
}
