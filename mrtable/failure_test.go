package mrtable

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

// writeFaulty writes three messages with the tags a, b and c; the second piece of b goes to a page
// that cannot be written.
func writeFaulty(g *fixture, r *Region, good, bad uint64) {
	p := bytes.Repeat([]byte{0xee}, 2*page)
	g.io.Write("a", r, good, p[:page], true)
	g.io.Write("b", r, bad-100, p[:100], false)
	g.io.Write("b", r, bad, p[:200], false)
	g.io.Write("c", r, good+page, p[:300], false)
	g.io.Write("b", r, bad-200, p[:100], true) // the end of b must not be stored
	g.io.Write("c", r, good+page+300, p[:50], true)
}

func checkFaulty(t *testing.T, g *fixture, c *child, good, bad uint64) {
	t.Helper()
	g.wantFailures(map[any]error{"b": ErrFault})
	ee := func(n int) []byte { return bytes.Repeat([]byte{0xee}, n) }
	if !bytes.Equal(c.peek(good, page), ee(page)) || !bytes.Equal(c.peek(good+page, 350), ee(350)) {
		t.Error("another message was affected")
	}
	if !bytes.Equal(c.peek(bad-100, 100), ee(100)) {
		t.Error("bytes before the unmapped page are missing")
	}
	if !bytes.Equal(c.peek(bad-200, 100), make([]byte, 100)) {
		t.Error("the end of a message with a hole was written")
	}
}

func TestUnmappedPageFailsOnlyItsMessage(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c, g := startChild(t, 0), newFixture(t)
			addr := c.alloc(16*page, 0)
			r := g.region(c.memory(open(c), addr, 16*page), addr)
			c.command("unmap %d %d", addr+8*page, page)
			writeFaulty(g, r, addr, addr+8*page)
			g.io.Flush()
			checkFaulty(t, g, c, addr, addr+8*page)
			if _, err := g.read(r, addr+8*page-10, 20); err != ErrFault {
				t.Errorf("read: %v", err)
			}
			if _, err := g.fetchAdd(r, addr+8*page, 1); err != ErrFault {
				t.Errorf("fetch-add: %v", err)
			}
			if _, err := g.compareSwap(r, addr+8*page, 1, 1); err != ErrFault {
				t.Errorf("compare-swap: %v", err)
			}
		})
	}
}

func TestPieceIsWrittenUpToTheUnmappedPage(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c, g := startChild(t, 0), newFixture(t)
			addr := c.alloc(4*page, 0)
			r := g.region(c.memory(open(c), addr, 4*page), addr)
			c.command("unmap %d %d", addr+2*page, page)
			p := bytes.Repeat([]byte{0xee}, 3*page)
			g.io.Write("before", r, addr, p[:10], true)
			g.io.Write("across", r, addr+10, p[:3*page], true)
			g.io.Write("after", r, addr+3*page+10, p[:10], true)
			g.io.Flush()
			g.wantFailures(map[any]error{"across": ErrFault})
			if !bytes.Equal(c.peek(addr, 2*page), p[:2*page]) {
				t.Error("bytes before the unmapped page are missing")
			}
			want := append(append(make([]byte, 10), p[:10]...), make([]byte, page-20)...)
			if !bytes.Equal(c.peek(addr+3*page, page), want) {
				t.Error("unexpected bytes after the unmapped page")
			}
		})
	}
}

func TestProcessVMCannotWriteReadOnlyPage(t *testing.T) {
	c, g := startChild(t, 0), newFixture(t)
	addr := c.alloc(16*page, 0)
	r := g.region(c.memory(c.open(), addr, 16*page), addr)
	c.command("protect %d %d %d", addr+8*page, page, unix.PROT_READ)
	writeFaulty(g, r, addr, addr+8*page)
	if _, err := g.read(r, addr+8*page, 10); err != nil { // executes the queue
		t.Errorf("read: %v", err)
	}
	checkFaulty(t, g, c, addr, addr+8*page)
	if _, err := g.fetchAdd(r, addr+8*page, 1); err != ErrFault {
		t.Errorf("fetch-add: %v", err)
	}
}

func TestProcMemCanWriteReadOnlyPage(t *testing.T) {
	// Only the access rights of the region prevent such a write.
	c, g := startChild(t, 0), newFixture(t)
	addr := c.alloc(page, 0)
	m := c.memory(c.openMem(), addr, page)
	c.command("protect %d %d %d", addr, page, unix.PROT_READ)
	readOnly := mustRegister(t, g.table, g.pd, m, addr, ib.AccessRemoteRead)
	g.io.Write("denied", readOnly, addr, []byte{1}, true)
	g.io.Flush()
	g.wantFailures(map[any]error{"denied": ErrAccess})
	if b := c.peek(addr, 1); b[0] != 0 {
		t.Error("a region without write access was written")
	}
}

func TestFailedTagIsDroppedUntilReported(t *testing.T) {
	c, g := startChild(t, 0), newFixture(t)
	addr := c.alloc(4*page, 0)
	r := g.region(c.memory(c.open(), addr, 4*page), addr)
	heap := make([]byte, 16)
	mapped := g.region(HeapMemory(heap), 0)
	c.command("unmap %d %d", addr+3*page, page)
	g.io.Write("x", r, addr+3*page, []byte{1}, false)
	g.io.Write("x", mapped, 0, make([]byte, 8), false)
	g.io.Write("x", mapped, 8, []byte{1, 1, 1, 1, 1, 1, 1, 1}, true) // flushes and detects the failure
	g.io.Write("x", r, addr, []byte{1}, true)
	g.io.Write("y", r, addr+1, []byte{2}, true)
	g.io.Flush()
	if heap[15] != 0 || !bytes.Equal(c.peek(addr, 2), []byte{0, 2}) {
		t.Error("the end of a failed message was stored")
	}
	var tags []any
	g.io.Failed(func(tag any, err error) {
		tags = append(tags, tag)
		if tag == "x" { // f may use the IO
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

func TestLongQueueDropsPiecesOfFailedTag(t *testing.T) {
	c, g := startChild(t, 0), newFixture(t)
	addr := c.alloc(2*page, 0)
	r := g.region(c.memory(c.open(), addr, 2*page), addr)
	c.command("unmap %d %d", addr+page, page)
	g.io.Write("x", r, addr+page, []byte{1}, false)
	for range 2 * maxPieces {
		g.io.Write("x", r, addr, []byte{1}, true)
		g.io.Write("y", r, addr+1, []byte{2}, true)
	}
	g.io.Flush()
	g.wantFailures(map[any]error{"x": ErrFault})
	if b := c.peek(addr, 2); !bytes.Equal(b, []byte{0, 2}) {
		t.Errorf("the client read %v", b)
	}
}

func TestQueuedWriteToDeregisteredRegionFails(t *testing.T) {
	c, g := startChild(t, 0), newFixture(t)
	addr := c.alloc(page, 0)
	p := c.open()
	gone, stays := g.region(c.memory(p, addr, page), addr), g.region(c.memory(p, addr, page), addr)
	g.io.Write("deregistered", gone, addr, []byte{1}, true)
	g.io.Write("stays", stays, addr+1, []byte{1}, true)
	g.table.Deregister(gone)
	g.io.Flush()
	g.wantFailures(map[any]error{"deregistered": ErrKey})
	if b := c.peek(addr, 2); b[0] != 0 || b[1] != 1 {
		t.Errorf("the client read %v", b)
	}
}

func TestKilledClientFailsOnlyItsOwnWork(t *testing.T) {
	for name, open := range ways {
		for _, newEpoch := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", epoch ", newEpoch), func(t *testing.T) {
				a, b, g := startChild(t, 0), startChild(t, 0), newFixture(t)
				addrA, addrB := a.alloc(4*page, 0), b.alloc(page, 0)
				ra := g.region(a.memory(open(a), addrA, 4*page), addrA)
				rb := g.region(b.memory(open(b), addrB, page), addrB)
				if _, err := g.read(ra, addrA, 1); err != nil {
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
					t.Errorf("the other client read %q", got)
				}
				if _, err := g.read(ra, addrA, 8); err != ErrGone {
					t.Errorf("read: %v", err)
				}
				if _, err := g.fetchAdd(ra, addrA, 8); err != ErrGone {
					t.Errorf("fetch-add: %v", err)
				}
				g.table.Deregister(ra)
				g.io.Epoch()
				g.io.Epoch()
			})
		}
	}
}

func TestClientKilledDuringWrites(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c, g := startChild(t, 0), newFixture(t)
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

func TestProcMemIsInvalidAfterExec(t *testing.T) {
	c, g := startChild(t, 0), newFixture(t)
	addr := c.alloc(page, 0)
	r := g.region(c.memory(c.openMem(), addr, page), addr)
	c.command("exec")
	c.alloc(page, 0) // the next program replies
	g.io.Write("w", r, addr, []byte{1}, true)
	g.io.Flush()
	g.wantFailures(map[any]error{"w": ErrGone})
}

func TestReusedPIDIsNotTheProcess(t *testing.T) {
	// A test cannot wait for the PID to be reused, so here it refers to another process from the
	// start.
	c, g := startChild(t, 0), newFixture(t)
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
		t.Error("another process was written")
	}
}

// The engine does not ask in each step whether a process is alive, but soon enough.
func TestProcessIsLookedUpAgainAfterAWhile(t *testing.T) {
	c, g := startChild(t, 0), newFixture(t)
	other := startChild(t, 0)
	addr := other.alloc(page, 7)
	p := c.open()
	own := c.alloc(page, 0)
	r := g.region(c.memory(p, own, page), 0)
	write := func(now int64) {
		g.io.Now = now
		g.io.Epoch()
		g.io.Write("w", r, 0, []byte{1}, true)
		g.io.Flush()
	}
	write(1)
	if b := c.peek(own, 1); b[0] != 1 {
		t.Fatal("the living process was not written")
	}
	c.kill()
	p.pid = other.cmd.Process.Pid // as if its PID were reused
	r.process.base = addr
	write(1 + aliveFor)
	g.wantFailures(map[any]error{"w": ErrGone})
	if b := other.peek(addr, 1); b[0] != 7 {
		t.Error("another process was written")
	}
}

func TestProcessErrorsMapErrnos(t *testing.T) {
	for err, want := range map[error]error{
		unix.EPERM: ErrPermission, unix.EACCES: ErrPermission, unix.ESRCH: ErrGone,
		unix.EFAULT: ErrFault, unix.EIO: ErrFault, unix.EINVAL: ErrFault, unix.ENOMEM: unix.ENOMEM,
	} {
		if got := processError(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

// The queued writes of a deregistered region are dropped, however late the flush, and so are later
// writes with the same tag to another region of the process.
func TestQueuedWritesKeepOrderAfterDeregistration(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c, g := startChild(t, 0), newFixture(t)
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
