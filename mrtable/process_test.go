package mrtable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

const page = 4096

// A user ID that is not root and owns nothing.
const stranger = 65534

// ways to access a client of the same user
var ways = map[string]func(*child) *Process{"process_vm": (*child).open, "proc_mem": (*child).openMem}

func TestClientMemoryIsReadAndWritten(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c, g := startChild(t, 0), newFixture(t)
			addr := c.alloc(16*page, 0x11)
			r := g.region(c.memory(open(c), addr, 16*page), addr)
			got, err := g.read(r, addr+5, 3*page)
			if err != nil || !bytes.Equal(got, bytes.Repeat([]byte{0x11}, 3*page)) {
				t.Fatalf("read: %v", err)
			}
			g.io.Write(g, r, addr+page-3, []byte("hello, client"), true)
			if b := c.peek(addr+page-3, 13); b[0] != 0x11 {
				t.Error("a write was not queued")
			}
			g.io.Flush()
			if b := c.peek(addr+page-4, 15); string(b) != "\x11hello, client\x11" {
				t.Errorf("the client read %q", b)
			}
			g.wantFailures(nil)
		})
	}
}

func TestManyMessagesUseOneSystemCall(t *testing.T) {
	c, g := startChild(t, 0), newFixture(t)
	addr := c.alloc(64*page, 0)
	r := g.region(c.memory(c.open(), addr, 64*page), addr)
	var want []byte
	for m := range 16 { // messages of four and a half packets, one after another
		for k := range 5 {
			p := bytes.Repeat([]byte{byte(16*m + k + 1)}, 1024)
			if k == 4 {
				p = p[:100]
			}
			g.io.Write(m, r, addr+uint64(len(want)), p, k == 4)
			want = append(want, p...)
		}
	}
	b := g.io.anonymous.batch
	b.buildVectors(b.ops, 0)
	if len(b.remote) != 2*16 {
		t.Errorf("%d remote pieces for 16 messages, want a body and a tail each", len(b.remote))
	}
	for i, piece := range b.remote {
		if isTail := i%2 == 1; isTail != (piece.Len == tailLen) {
			t.Errorf("remote piece %d has %d bytes", i, piece.Len)
		}
	}
	if n, err := b.next(0, 0); n != len(want) || err != nil {
		t.Errorf("one call wrote %d bytes of %d: %v", n, len(want), err)
	}
	g.io.Flush()
	if got := c.peek(addr, len(want)); !bytes.Equal(got, want) {
		t.Error("the client read unexpected bytes")
	}
}

func TestLongQueueIsWrittenInOrder(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c, g := startChild(t, 0), newFixture(t)
			addr := c.alloc(page, 0)
			r := g.region(c.memory(open(c), addr, page), addr)
			want := make([]byte, page)
			rnd := newRand(9)
			for i := range 4*maxPieces + 100 {
				off, n := rnd.IntN(page-64), 1+rnd.IntN(64)
				p := bytes.Repeat([]byte{byte(i)}, n)
				copy(want[off:], p)
				g.io.Write(i%7, r, addr+uint64(off), p, i%3 == 0)
			}
			g.io.Flush()
			g.wantFailures(nil)
			if !bytes.Equal(c.peek(addr, page), want) {
				t.Error("overlapping writes were executed out of order")
			}
		})
	}
}

func TestReadAndAtomicSeeQueuedWrites(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c, g := startChild(t, 0), newFixture(t)
			addr := c.alloc(page, 0)
			r := g.region(c.memory(open(c), addr, page), 0)
			word := binary.NativeEndian.AppendUint64(nil, 41)
			g.io.Write(g, r, 8, word, true)
			if got, err := g.read(r, 8, 8); err != nil || !bytes.Equal(got, word) {
				t.Errorf("read: %v, %v", got, err)
			}
			word2 := binary.NativeEndian.AppendUint64(nil, 50)
			g.io.Write(g, r, 8, word2, true)
			if old, err := g.fetchAdd(r, 8, 1); err != nil || old != 50 {
				t.Errorf("fetch-add: %d, %v", old, err)
			}
			if old, err := g.compareSwap(r, 8, 51, 60); err != nil || old != 51 {
				t.Errorf("compare-swap: %d, %v", old, err)
			}
			if b := c.peek(addr+8, 8); binary.NativeEndian.Uint64(b) != 60 {
				t.Errorf("the client read %v", b)
			}
		})
	}
}

func TestRegionMaySpanAllAddresses(t *testing.T) {
	// IBV_ACCESS_ON_DEMAND allows address 0 with the maximum length.
	c, g := startChild(t, 0), newFixture(t)
	addr := c.alloc(page, 4)
	mem, err := c.open().Memory(0, math.MaxUint64, ib.AccessOnDemand)
	if err != nil {
		t.Fatal(err)
	}
	if mem.View(0, 1) != nil {
		t.Error("View returned memory")
	}
	r := g.region(mem, 0)
	if b, err := g.read(r, addr, 1); err != nil || b[0] != 4 {
		t.Errorf("read: %v", err)
	}
	if _, err := g.table.Local(g.pd, r.LKey(), math.MaxUint64-1, 10, 0); err != ErrBounds {
		t.Errorf("wrapping: %v", err)
	}
	if _, err := g.read(r, math.MaxUint64-1, 10); err != ErrBounds {
		t.Errorf("wrapping read: %v", err)
	}
	if _, err := g.read(r, math.MaxUint64-1, 1); err != ErrFault {
		t.Errorf("reading at the end: %v", err)
	}
}

func TestEndOfScatteredMessageIsStoredAfterItsBody(t *testing.T) {
	// A receive buffer of two SGEs: process memory, then mapped memory.
	c, g := startChild(t, 0), newFixture(t)
	addr := c.alloc(page, 0)
	heap := make([]byte, 16)
	r, mapped := g.region(c.memory(c.open(), addr, page), addr), g.region(HeapMemory(heap), 0)
	g.io.Write("m", r, addr, []byte("body"), false)
	g.io.Write("other", mapped, 8, []byte("x"), true)
	if b := c.peek(addr, 4); b[0] != 0 {
		t.Error("another message's end flushed the queue")
	}
	g.io.Write("m", mapped, 0, []byte("end"), true)
	if heap[0] != 0 {
		t.Error("the end was stored before the body")
	}
	g.io.Flush()
	if b := c.peek(addr, 4); string(b) != "body" || string(heap[:3]) != "end" {
		t.Errorf("memory holds %q and %q", b, heap[:3])
	}
}

func TestMemoryOfOtherUsers(t *testing.T) {
	if os.Getuid() != 0 {
		skipOrFail(t, "starting a process of another user needs root")
	}
	c, g := startChild(t, stranger), newFixture(t)
	addr := c.alloc(16*page, 3)
	if _, err := OpenProcess(c.cmd.Process.Pid, -1); !errors.Is(err, ErrPermission) {
		t.Errorf("by PID: %v", err)
	}
	if got := c.command("open %d", os.Getpid()); !strings.Contains(got, ErrPermission.Error()) {
		t.Errorf("a user opening root's process: %s", got)
	}
	c.command("unmap %d %d", addr+8*page, page)
	r := g.region(c.memory(c.openMem(), addr, 16*page), addr)
	writeFaulty(g, r, addr, addr+8*page)
	if got, err := g.read(r, addr+15*page, page); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{3}, page)) {
		t.Errorf("read: %v", err)
	}
	if b := c.peek(addr+page, 351); b[349] != 0xee || b[350] != 3 {
		t.Error("the client did not receive the message")
	}
	g.wantFailures(map[any]error{"b": ErrFault})
	if old, err := g.fetchAdd(r, addr+15*page, 1); err != nil || old != 0x0303030303030303 {
		t.Errorf("fetch-add: %#x, %v", old, err)
	}
	c.kill()
	if _, err := g.read(r, addr, 8); err != ErrGone {
		t.Errorf("read after the process ended: %v", err)
	}
}

func TestUndumpableProcessIsNotTakenForRoot(t *testing.T) {
	// Then root owns its files in /proc.
	if os.Getuid() != 0 {
		skipOrFail(t, "starting a process of another user needs root")
	}
	c := startChild(t, stranger)
	c.command("undumpable")
	if _, err := OpenProcess(c.cmd.Process.Pid, -1); !errors.Is(err, ErrPermission) {
		t.Errorf("OpenProcess: %v, want ErrPermission", err)
	}
}

func TestOpenProcessErrors(t *testing.T) {
	done := exec.Command("true")
	if err := done.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(done.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	done.Wait()
	if _, err := OpenProcess(done.Process.Pid, -1); !errors.Is(err, ErrGone) {
		t.Errorf("ended: %v", err)
	}
	if _, err := OpenProcess(os.Getpid(), pidfd); !errors.Is(err, ErrGone) {
		t.Errorf("ended, with its pidfd and reused PID: %v", err)
	}
	if _, err := OpenProcess(os.Getpid(), math.MaxInt32); err == nil {
		t.Error("an invalid descriptor was accepted")
	}
	if _, err := OpenProcess(-1, -1); err == nil {
		t.Error("process -1 was opened")
	}
	own, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := OpenProcess(os.Getpid(), own)
	unix.Close(own) // owned by the caller
	if err != nil || !p.alive() {
		t.Errorf("with a pidfd: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != ErrGone {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := p.Memory(0x1000, 1, ib.AccessOnDemand); err != ErrGone {
		t.Errorf("memory of a closed process: %v", err)
	}
}

func TestOpenProcessMemAcceptsOnlyMemFiles(t *testing.T) {
	open := func(name string, flags int) int {
		t.Helper()
		fd, err := unix.Open(name, flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	fake := t.TempDir() + "/7"
	if err := os.Mkdir(fake, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(fake+"/mem", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, fd := range map[string]int{
		"a device":                 open("/dev/zero", unix.O_RDWR),
		"a file of that name":      open(fake+"/mem", unix.O_RDWR),
		"another file in /proc":    open("/proc/self/comm", unix.O_RDWR),
		"memory for reading alone": open("/proc/self/mem", unix.O_RDONLY),
		"memory for writing alone": open("/proc/self/mem", unix.O_WRONLY),
		"nothing":                  math.MaxInt32,
	} {
		if _, err := OpenProcessMem(fd); !errors.Is(err, ErrNotMemory) {
			t.Errorf("%s: %v, want ErrNotMemory", name, err)
		}
	}
	for name, want := range map[string]bool{
		"/proc/12/mem": true, "/12/mem": true, "/proc/12/task/13/mem": true, "(unreachable)/12/mem": true,
		"/proc/mem": false, "mem": false, "": false, "/proc/12/mem/x": false, "/proc/-1/mem": false, "/proc/sys/12/maps": false,
	} {
		if isMemFile(name) != want {
			t.Errorf("isMemFile(%q) is %v", name, !want)
		}
	}
}

func TestProcessMemoryIsProbed(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c := startChild(t, 0)
			p := open(c)
			addr := c.alloc(2*page, 0)
			c.command("unmap %d %d", addr+page, page)
			for _, m := range []struct {
				base, length uint64
				a            ib.Access
				want         error
			}{
				{addr, page, 0, nil},
				{addr, page + 1, 0, ErrFault},
				{addr, page + 1, ib.AccessOnDemand, nil},
				{addr + page - 1, 2, 0, ErrFault},
				{0, 1, 0, ErrFault},
				{0, 0, 0, nil},
				{math.MaxUint64, 0, 0, nil},
				{math.MaxUint64, 1, 0, ErrFault},
				{math.MaxUint64, 2, 0, ErrBounds},
				{1 << 63, 1, 0, ErrFault},
				{0xffff_8000_0000_0000, page, 0, ErrFault}, // the kernel's
				{0, math.MaxUint64, ib.AccessOnDemand, nil},
				{1, math.MaxUint64, ib.AccessOnDemand, nil},
				{2, math.MaxUint64, ib.AccessOnDemand, ErrBounds},
			} {
				mem, err := p.Memory(m.base, m.length, m.a)
				if !errors.Is(err, m.want) {
					t.Errorf("%#x, %d bytes, %v: %v, want %v", m.base, m.length, m.a, err, m.want)
				}
				if err == nil {
					mem.Close()
					mem.Close() // counts once
				}
			}
			c.kill()
			if _, err := p.Memory(addr, 1, 0); !errors.Is(err, ErrGone) {
				t.Errorf("of a process that ended: %v", err)
			}
			if p.refs != 1 {
				t.Errorf("%d references left", p.refs)
			}
		})
	}
}

func TestProcessStaysOpenWithItsMemory(t *testing.T) {
	c, g := startChild(t, 0), newFixture(t)
	addr := c.alloc(page, 5)
	p := c.open()
	r := g.region(c.memory(p, addr, page), 0)
	p.Close()
	if got, err := g.read(r, 0, 1); err != nil || got[0] != 5 {
		t.Fatalf("read: %v", err)
	}
	g.table.Deregister(r)
	g.io.Epoch()
	if p.refs != 1 {
		t.Errorf("%d references after one epoch", p.refs)
	}
	g.io.Epoch()
	if p.refs != 0 {
		t.Errorf("%d references after two epochs", p.refs)
	}
	name, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(p.pidfd))
	if strings.Contains(name, "pidfd") {
		t.Error("the pidfd is still open")
	}
}

func TestPollingClientNeverSeesEndBeforeBody(t *testing.T) {
	for name, open := range ways {
		for _, n := range []int{64, 1024, 2048, 4096, 65536} {
			t.Run(fmt.Sprint(name, " ", n), func(t *testing.T) {
				c, g := startChild(t, 0), newFixture(t)
				const rounds = 300
				addr := c.alloc(n+8, 0)
				r := g.region(c.memory(open(c), addr, n+8), addr)
				fmt.Fprintf(c.in, "poll %d %d %d\n", addr, n, rounds)
				for i := 1; i <= rounds; i++ {
					p := bytes.Repeat([]byte{byte(i)}, n)
					for off := 0; off < n; off += 1024 { // packets
						end := min(off+1024, n)
						g.io.Write(g, r, addr+uint64(off), p[off:end], end == n)
					}
					g.io.Flush()
					deadline := time.Now().Add(2 * pollLimit) // the child has given up by then
					for seen := uint64(0); seen != uint64(i); unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) {
						if time.Now().After(deadline) {
							t.Fatalf("message %d: %s", i, c.reply())
						}
						word, err := g.read(r, addr+uint64(n), 8)
						if err != nil {
							t.Fatal(err)
						}
						seen = binary.NativeEndian.Uint64(word)
						g.io.Epoch()
					}
				}
				if stale := c.reply(); stale != "0" {
					t.Errorf("%s of %d messages were incomplete when their end was visible", stale, rounds)
				}
			})
		}
	}
}
