package mrtable

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

// faulty has three messages under the tags a, b and c, of which b's second piece meets a
// page that cannot be written.
func faulty(g *rig, r *Region, good, bad uint64) {
	p := bytes.Repeat([]byte{0xee}, 2*page)
	g.io.Write("a", r, good, p[:page], true)
	g.io.Write("b", r, bad-100, p[:100], false)
	g.io.Write("b", r, bad, p[:200], false)
	g.io.Write("c", r, good+page, p[:300], false)
	g.io.Write("b", r, bad-200, p[:100], true) // its end must not come
	g.io.Write("c", r, good+page+300, p[:50], true)
}

func checkFaulty(t *testing.T, g *rig, c *child, good, bad uint64) {
	t.Helper()
	g.wantFailures(map[any]error{"b": ErrFault})
	ee := func(n int) []byte { return bytes.Repeat([]byte{0xee}, n) }
	if !bytes.Equal(c.peek(good, page), ee(page)) || !bytes.Equal(c.peek(good+page, 350), ee(350)) {
		t.Error("another message suffered")
	}
	if !bytes.Equal(c.peek(bad-100, 100), ee(100)) {
		t.Error("what came before the bad page is missing")
	}
	if !bytes.Equal(c.peek(bad-200, 100), make([]byte, 100)) {
		t.Error("the end of a message with a hole was written")
	}
}

func TestUnmappedPageFailsOnlyItsMessage(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c, g := startChild(t, 0), newRig(t)
			addr := c.alloc(16*page, 0)
			r := g.region(c.memory(open(c), addr, 16*page), addr)
			c.ask("unmap %d %d", addr+8*page, page)
			faulty(g, r, addr, addr+8*page)
			g.io.Flush()
			checkFaulty(t, g, c, addr, addr+8*page)
			if _, err := g.io.Read(r, addr+8*page-10, 20); err != ErrFault {
				t.Errorf("read: %v", err)
			}
			if _, err := g.io.FetchAdd(r, addr+8*page, 1); err != ErrFault {
				t.Errorf("fetch-add: %v", err)
			}
			if _, err := g.io.CompareSwap(r, addr+8*page, 1, 1); err != ErrFault {
				t.Errorf("compare-swap: %v", err)
			}
		})
	}
}

func TestPieceIsWrittenUpToTheBadPage(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c, g := startChild(t, 0), newRig(t)
			addr := c.alloc(4*page, 0)
			r := g.region(c.memory(open(c), addr, 4*page), addr)
			c.ask("unmap %d %d", addr+2*page, page)
			p := bytes.Repeat([]byte{0xee}, 3*page)
			g.io.Write("before", r, addr, p[:10], true)
			g.io.Write("across", r, addr+10, p[:3*page], true)
			g.io.Write("behind", r, addr+3*page+10, p[:10], true)
			g.io.Flush()
			g.wantFailures(map[any]error{"across": ErrFault})
			if !bytes.Equal(c.peek(addr, 2*page), p[:2*page]) {
				t.Error("what came before the bad page is missing")
			}
			want := append(append(make([]byte, 10), p[:10]...), make([]byte, page-20)...)
			if !bytes.Equal(c.peek(addr+3*page, page), want) {
				t.Error("behind the bad page is not what should be")
			}
		})
	}
}

func TestReadOnlyPageRefusesProcessVM(t *testing.T) {
	c, g := startChild(t, 0), newRig(t)
	addr := c.alloc(16*page, 0)
	r := g.region(c.memory(c.open(), addr, 16*page), addr)
	c.ask("protect %d %d %d", addr+8*page, page, unix.PROT_READ)
	faulty(g, r, addr, addr+8*page)
	if _, err := g.io.Read(r, addr+8*page, 10); err != nil { // flushes
		t.Errorf("read: %v", err)
	}
	checkFaulty(t, g, c, addr, addr+8*page)
	if _, err := g.io.FetchAdd(r, addr+8*page, 1); err != ErrFault {
		t.Errorf("fetch-add: %v", err)
	}
}

func TestReadOnlyPageDoesNotRefuseProcMem(t *testing.T) {
	// Why regions' rights are all that holds it back.
	c, g := startChild(t, 0), newRig(t)
	addr := c.alloc(page, 0)
	m := c.memory(c.openMem(), addr, page)
	c.ask("protect %d %d %d", addr, page, unix.PROT_READ)
	readOnly := mustRegister(t, g.table, g.pd, m, addr, ib.AccessRemoteRead)
	g.io.Write("denied", readOnly, addr, []byte{1}, true)
	g.io.Flush()
	g.wantFailures(map[any]error{"denied": ErrAccess})
	if b := c.peek(addr, 1); b[0] != 0 {
		t.Error("a region without write access was written")
	}
}

func TestFailedTagIsDroppedUntilReported(t *testing.T) {
	c, g := startChild(t, 0), newRig(t)
	addr := c.alloc(4*page, 0)
	r := g.region(c.memory(c.open(), addr, 4*page), addr)
	heap := make([]byte, 16)
	mapped := g.region(HeapMemory(heap), 0)
	c.ask("unmap %d %d", addr+3*page, page)
	g.io.Write("x", r, addr+3*page, []byte{1}, false)
	g.io.Write("x", mapped, 0, make([]byte, 8), false)
	g.io.Write("x", mapped, 8, []byte{1, 1, 1, 1, 1, 1, 1, 1}, true) // flushes, finds the failure
	g.io.Write("x", r, addr, []byte{1}, true)
	g.io.Write("y", r, addr+1, []byte{2}, true)
	g.io.Flush()
	if heap[15] != 0 || !bytes.Equal(c.peek(addr, 2), []byte{0, 2}) {
		t.Error("the end of a broken message was stored")
	}
	var tags []any
	g.io.Failed(func(tag any, err error) {
		tags = append(tags, tag)
		if tag == "x" { // using the IO from inside
			g.io.Write("z", mapped, 16, []byte{1}, true)
		}
	})
	if fmt.Sprint(tags) != "[x z]" {
		t.Errorf("failed: %v", tags)
	}
	g.io.Write("x", r, addr, []byte{1}, true)
	g.io.Flush()
	if b := c.peek(addr, 1); b[0] != 1 {
		t.Error("the tag is still dropped")
	}
}

func TestFullQueueFindsFailureOfItsNextPiece(t *testing.T) {
	c, g := startChild(t, 0), newRig(t)
	addr := c.alloc(2*page, 0)
	r := g.region(c.memory(c.open(), addr, 2*page), addr)
	c.ask("unmap %d %d", addr+page, page)
	g.io.Write("x", r, addr+page, []byte{1}, false)
	for range maxPieces {
		g.io.Write("x", r, addr, []byte{1}, true)
	}
	if len(r.queue.pieces) != 0 {
		t.Errorf("%d pieces are queued for a tag that failed", len(r.queue.pieces))
	}
	g.wantFailures(map[any]error{"x": ErrFault})
}

func TestQueuedWriteToDeregisteredRegionFails(t *testing.T) {
	c, g := startChild(t, 0), newRig(t)
	addr := c.alloc(page, 0)
	p := c.open()
	gone, stays := g.region(c.memory(p, addr, page), addr), g.region(c.memory(p, addr, page), addr)
	g.io.Write("gone", gone, addr, []byte{1}, true)
	g.io.Write("stays", stays, addr+1, []byte{1}, true)
	g.table.Deregister(gone)
	g.io.Flush()
	g.wantFailures(map[any]error{"gone": ErrKey})
	if b := c.peek(addr, 2); b[0] != 0 || b[1] != 1 {
		t.Errorf("the client found %v", b)
	}
}

func TestKilledClientFailsOnlyItsOwnWork(t *testing.T) {
	for name, open := range ways {
		for _, newEpoch := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", epoch ", newEpoch), func(t *testing.T) {
				a, b, g := startChild(t, 0), startChild(t, 0), newRig(t)
				addrA, addrB := a.alloc(4*page, 0), b.alloc(page, 0)
				ra := g.region(a.memory(open(a), addrA, 4*page), addrA)
				rb := g.region(b.memory(open(b), addrB, page), addrB)
				if _, err := g.io.Read(ra, addrA, 1); err != nil {
					t.Fatal(err)
				}
				for i := range 4 {
					g.io.Write(fmt.Sprint("a", i), ra, addrA+uint64(i*page), make([]byte, page), true)
				}
				g.io.Write("b", rb, addrB, []byte("alive"), true)
				a.kill()
				if newEpoch {
					g.io.Epoch()
				}
				g.io.Flush()
				g.wantFailures(map[any]error{"a0": ErrGone, "a1": ErrGone, "a2": ErrGone, "a3": ErrGone})
				if got := b.peek(addrB, 5); string(got) != "alive" {
					t.Errorf("the other client found %q", got)
				}
				if _, err := g.io.Read(ra, addrA, 8); err != ErrGone {
					t.Errorf("read: %v", err)
				}
				if _, err := g.io.FetchAdd(ra, addrA, 8); err != ErrGone {
					t.Errorf("fetch-add: %v", err)
				}
				g.table.Deregister(ra)
				g.io.Epoch()
				g.io.Epoch()
				if len(g.io.queues) != 1 {
					t.Errorf("%d queues left, want one", len(g.io.queues))
				}
			})
		}
	}
}

func TestClientKilledWhileItIsWritten(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c, g := startChild(t, 0), newRig(t)
			const size = 1 << 20
			addr := c.alloc(size, 0)
			r := g.region(c.memory(open(c), addr, size), addr)
			p := make([]byte, size)
			for round := range 100000 {
				if round == 20 {
					go c.cmd.Process.Kill()
				}
				g.io.Write("w", r, addr, p, true)
				g.io.Flush()
				g.io.Epoch()
				failed := g.failures()
				if len(failed) == 0 {
					continue
				}
				if err := failed["w"]; err != ErrGone && err != ErrFault {
					t.Errorf("round %d: %v", round, err)
				}
				return
			}
			t.Error("writes went on after the client was killed")
		})
	}
}

func TestProcMemEndsWithTheProgram(t *testing.T) {
	c, g := startChild(t, 0), newRig(t)
	addr := c.alloc(page, 0)
	r := g.region(c.memory(c.openMem(), addr, page), addr)
	c.ask("exec")
	c.alloc(page, 0) // the next program answers
	g.io.Write("w", r, addr, []byte{1}, true)
	g.io.Flush()
	g.wantFailures(map[any]error{"w": ErrGone})
}

func TestRecycledNumberIsNotTheProcess(t *testing.T) {
	// No test can wait for a number to come round; here it means somebody else from the
	// start.
	c, g := startChild(t, 0), newRig(t)
	other := startChild(t, 0)
	addr := other.alloc(page, 7)
	p := c.open()
	r := g.region(c.memory(p, c.alloc(page, 0), page), 0)
	c.kill()
	p.pid = other.cmd.Process.Pid
	r.process.base = addr
	g.io.Write("w", r, 0, []byte{1}, true)
	g.io.Flush()
	g.wantFailures(map[any]error{"w": ErrGone})
	if b := other.peek(addr, 1); b[0] != 7 {
		t.Error("a stranger was written")
	}
}

func TestErrnosBecomeErrors(t *testing.T) {
	for err, want := range map[error]error{
		unix.EPERM: ErrPermission, unix.EACCES: ErrPermission, unix.ESRCH: ErrGone,
		unix.EFAULT: ErrFault, unix.EIO: ErrFault, unix.EINVAL: ErrFault, unix.ENOMEM: unix.ENOMEM,
	} {
		if got := processError(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

// A region that goes takes its queued writes along, however late they are carried out, and with them
// what another region of the process was given later under the same tag.
func TestQueuedWritesOutliveTheirRegionInOrder(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c, g := startChild(t, 0), newRig(t)
			addr, p := c.alloc(2*page, 0), open(c)
			first := g.region(c.memory(p, addr, page), addr)
			g.io.Write("a", first, addr, []byte("first"), false)
			if err := g.table.Deregister(first); err != nil {
				t.Fatal(err)
			}
			g.io.Epoch()
			g.io.Epoch()
			second := g.region(c.memory(p, addr+page, page), addr+page)
			g.io.Write("a", second, addr+page, []byte("second"), false)
			g.io.Flush()
			g.wantFailures(map[any]error{"a": ErrKey})
			if got := c.peek(addr+page, 6); !bytes.Equal(got, make([]byte, 6)) {
				t.Errorf("memory holds %q", got)
			}
		})
	}
}
