package mrtable

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

// detached leaves batches to the test, as if their system calls did not return.
type detached struct {
	*fixture
	batches []*Batch
}

func (g *fixture) detach(leave func(*Batch)) *detached {
	d := &detached{fixture: g}
	g.io.Runner = func(b *Batch) bool {
		leave(b)
		d.batches = append(d.batches, b)
		return false
	}
	return d
}

// finish lets the batches return.
func (d *detached) finish() {
	for _, b := range d.batches {
		b.Run()
		d.io.Settle(b)
	}
	d.batches = nil
}

// leaves are the ways to leave a batch to another thread.
func (g *fixture) leaves() map[string]func(*Batch) {
	return map[string]func(*Batch){"detached": g.io.Detach, "copied": g.io.Copy}
}

func TestDetachedBatchIsSettledLater(t *testing.T) {
	for _, name := range []string{"detached", "copied"} {
		g := newFixture(t)
		d := g.detach(g.leaves()[name])
		b := bytesOf(make([]uint64, 512))
		copy(b[1000:], "there")
		proc := backings(t)["process"]
		slow := g.region(proc(b), 0)
		g.pd = g.table.AllocPD()
		g.pd.Client = &Client{Owner: "other"}
		other := g.region(proc(b[2048:]), 0)

		p := []byte("first")
		g.io.Write("w", slow, 0, p, true)
		g.io.FetchAdd("a", 5, slow, 64, 7)
		if err := g.io.QueueRead(&g.rd, slow, 1000, 5); err != nil {
			t.Fatal(err)
		}
		g.io.Flush()
		if name == "copied" {
			copy(p, "xxxxx") // belongs to the caller again
		}
		if len(d.batches) != 1 || g.rd.Done() || b[0] != 0 {
			t.Fatalf("%s: %d batches, read done %v, memory %q", name, len(d.batches), g.rd.Done(), b[:8])
		}

		// What came later would be carried out when its data is not there any more.
		var late Read
		g.io.Write("late", slow, 8, []byte("second"), true)
		_, _, err := g.io.CompareSwap("atomic", 6, slow, 72, 0, 7)
		if err != ErrWait || g.io.StoreWord("atomic", slow, 80, 7) != ErrWait || g.io.QueueRead(&late, slow, 0, 1) != ErrWait {
			t.Errorf("%s: atomic operation while a batch is in progress: %v", name, err)
		}
		g.wantFailures(map[any]error{"late": ErrWait})
		if g.io.HasPending() {
			t.Errorf("%s: something is queued", name)
		}

		// Another client goes on, with the arena.
		run := g.io.Runner
		g.io.Runner = nil
		var rd Read
		for range 1000 {
			if err := g.io.QueueRead(&rd, other, 0, 2000); err != nil {
				t.Fatal(err)
			}
			g.io.Flush()
			g.io.Epoch()
		}
		g.io.Runner = run
		d.finish()
		got, err := g.rd.Bytes()
		if !g.rd.Done() || err != nil || string(got) != "there" || string(b[:5]) != "first" || b[8] != 0 {
			t.Errorf("%s: read %q, %v; memory %q", name, got, err, b[:16])
		}
		results := 0
		g.io.Results(func(tag any, id, original uint64) {
			if results++; tag != "a" || id != 5 || original != 0 {
				t.Errorf("%s: result %v %d %d", name, tag, id, original)
			}
		})
		g.io.Write("w", slow, 8, []byte("second"), true)
		g.io.Flush()
		d.finish()
		if results != 1 || b[64] != 7 || b[72] != 0 || string(b[8:14]) != "second" {
			t.Errorf("%s: %d results, memory %q", name, results, b[:16])
		}
		g.wantFailures(nil)
	}
}

// What a batch has not begun is not carried out any more after deregistration.
func TestDeregistrationEndsDetachedBatch(t *testing.T) {
	g := newFixture(t)
	d := g.detach(g.io.Copy)
	b := make([]byte, page)
	of := backings(t)["process"]
	gone, stays := g.region(of(b[:100]), 0), g.region(of(b[100:200]), 0)
	g.io.Write("gone", gone, 0, []byte{1}, true)
	g.io.Write("stays", stays, 0, []byte{2}, true)
	g.io.Write("gone", stays, 8, []byte{3}, true)
	if err := g.io.QueueRead(&g.rd, gone, 0, 1); err != nil {
		t.Fatal(err)
	}
	g.io.Flush()
	g.table.Deregister(gone)
	g.io.Epoch()
	g.io.Epoch()
	if gone.process.closed {
		t.Error("memory of a batch in progress was closed")
	}
	d.finish()
	if !gone.process.closed {
		t.Error("memory was not closed after the batch")
	}
	if b[0] != 0 || b[100] != 2 || b[108] != 0 {
		t.Errorf("memory %v, %v", b[:2], b[100:110])
	}
	if _, err := g.rd.Bytes(); err != ErrKey {
		t.Errorf("read: %v", err)
	}
	g.wantFailures(map[any]error{"gone": ErrKey})
}

// A detached batch writes from mapped memory that is deregistered.
func TestMemoryOfDetachedBatchStaysMapped(t *testing.T) {
	g := newFixture(t)
	d := g.detach(g.io.Detach)
	fd := memfd(t, 4*page, 0, unix.F_SEAL_SHRINK)
	mem, err := MapFD(fd, 0, 4*page, allRights)
	if err != nil {
		t.Fatal(err)
	}
	source := g.region(mem, 0)
	unrelated := g.region(must(MapFD(memfd(t, page, 0, unix.F_SEAL_SHRINK), 0, page, allRights)), 0)
	b := make([]byte, page)
	target := g.region(backings(t)["guarded"](b), 0)
	p, err := g.io.Read(source, 2*page, 100)
	if err != nil {
		t.Fatal(err)
	}
	p[0] = 9
	g.io.Write("w", target, 0, p, true)
	g.io.Flush()
	for _, r := range []*Region{source, unrelated} {
		g.table.Deregister(r)
	}
	for range 5 {
		g.io.Epoch()
	}
	if source.Memory.(*mapped).mapping == nil || unrelated.Memory.(*mapped).mapping != nil {
		t.Error("the source is not mapped, or the unrelated memory is")
	}
	d.finish()
	if !bytes.Equal(b[:2], []byte{9, 0}) || source.Memory.(*mapped).mapping != nil {
		t.Errorf("memory %v; source %v", b[:2], source.Memory)
	}
}

func must(m Memory, err error) Memory {
	if err != nil {
		panic(err)
	}
	return m
}

// A client whose memory is slow may write all the time.
func TestCopiedWritesDoNotAllocate(t *testing.T) {
	g := newFixture(t)
	mem := make([]byte, 4*page)
	r := g.region(backings(t)["process"](mem), 0)
	p := bytes.Repeat([]byte{7}, page)
	g.io.Runner = func(b *Batch) bool {
		g.io.Copy(b)
		clear(p) // may be used for something else
		b.Run()
		return true
	}
	n := testing.AllocsPerRun(50, func() {
		for i := range p {
			p[i] = 7
		}
		for i := range 4 {
			g.io.Write(g, r, uint64(i*page), p, i == 3)
		}
		g.io.Flush()
	})
	g.wantFailures(nil)
	if n != 0 {
		t.Errorf("%v allocations for a batch", n)
	}
	if !bytes.Equal(mem, bytes.Repeat([]byte{7}, len(mem))) {
		t.Error("the memory holds something else")
	}
}

// References to an arena that Detach has replaced may be left anywhere, and each keeps all of it.
// So arenas are used again: never while a batch may still write to them, or within two epochs.
func TestReplacedArenasAreUsedAgain(t *testing.T) {
	g := newFixture(t)
	d := g.detach(g.io.Detach)
	b := bytesOf(make([]uint64, 512))
	copy(b, "first")
	slow := g.region(backings(t)["process"](b), 0)
	first := &g.io.arena.buf[0]
	leave := func(rd *Read) {
		t.Helper()
		if err := g.io.QueueRead(rd, slow, 0, 5); err != nil {
			t.Fatal(err)
		}
		g.io.Flush()
	}
	epochs := func(n int) {
		for range n {
			g.io.Epoch()
		}
	}
	isFirst := func() bool { return &g.io.arena.buf[0] == first }

	var kept Read
	leave(&kept)
	epochs(5)
	d.finish()
	epochs(1)
	leave(&g.rd)
	if isFirst() {
		t.Error("an arena is used again after one epoch")
	}
	d.finish()
	epochs(2)
	leave(&g.rd)
	if !isFirst() {
		t.Error("an arena is not used again")
	}
	d.finish()
	epochs(2)
	copy(b, "other")
	g.io.Runner = nil
	leave(&g.rd)
	if got, err := kept.Bytes(); err != nil || string(got) != "first" {
		t.Errorf("what a detached batch has read is %q, %v after its arena was used again", got, err)
	}

	g.io.Runner = nil
	d = g.detach(g.io.Detach)
	seen := map[*byte]bool{}
	for range 50 {
		leave(&g.rd)
		d.finish()
		epochs(2)
		seen[&g.io.arena.buf[0]] = true
	}
	if len(seen) > 2 {
		t.Errorf("%d arenas for one batch at a time", len(seen))
	}
}

func TestArenaOfBatchInProgressIsNotUsedAgain(t *testing.T) {
	g := newFixture(t)
	d := g.detach(g.io.Detach)
	of := backings(t)["process"]
	seen := map[*byte]bool{}
	for range maxSpares + 3 {
		g.pd = g.table.AllocPD()
		g.pd.Client = &Client{Owner: "one of many"}
		if err := g.io.QueueRead(new(Read), g.region(of(make([]byte, 8)), 0), 0, 5); err != nil {
			t.Fatal(err)
		}
		seen[&g.io.arena.buf[0]] = true
		g.io.Flush()
		g.io.Epoch()
		g.io.Epoch()
	}
	if len(seen) != maxSpares+3 || len(g.io.spares) != maxSpares {
		t.Errorf("%d arenas for %d batches in progress, %d spare ones", len(seen), maxSpares+3, len(g.io.spares))
	}
	d.finish()
}

// What a detached batch takes from memory whose owner may change it from now on is not written, and
// its writer fails. The data of others, and what Copy has copied, are written.
func TestRevokedDataAreNotWritten(t *testing.T) {
	for _, c := range []struct {
		name   string
		leave  string
		revoke func(b *Batch, from *Region)
		ends   bool // the writes of the revoked tag
		moved  bool // their data are not in the region
	}{
		{"writer", "detached", func(b *Batch, _ *Region) { b.Revoke(func(tag any) bool { return tag == "revoked" }) }, true, false},
		{"memory", "detached", func(b *Batch, from *Region) { b.RevokeMemory(from) }, true, false},
		{"copied data", "copied", func(b *Batch, _ *Region) { b.Revoke(func(tag any) bool { return tag == "revoked" }) }, false, false},
		{"data of the NIC", "detached", func(b *Batch, _ *Region) { b.Revoke(func(tag any) bool { return tag == "revoked" }) }, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newFixture(t)
			d := g.detach(g.leaves()[c.leave])
			b := make([]byte, page)
			to := g.region(backings(t)["process"](b), 0)
			mine, others := []byte{1, 2}, []byte{3}
			from := g.region(HeapMemory(mine), 0)
			if c.moved {
				mine = bytes.Clone(mine)
			}
			g.io.Write("revoked", to, 0, mine[:1], true)
			g.io.Write("stays", to, 1, others, true)
			g.io.Write("revoked", to, 2, mine[1:], true)
			g.io.Flush()
			c.revoke(d.batches[0], from)
			if !c.moved {
				mine[0], mine[1] = 0xee, 0xee
			}
			d.finish()
			if c.ends {
				g.wantFailures(map[any]error{"revoked": ErrGone})
				if !bytes.Equal(b[:3], []byte{0, 3, 0}) {
					t.Errorf("memory %v", b[:3])
				}
				return
			}
			g.wantFailures(map[any]error{})
			if !bytes.Equal(b[:3], []byte{1, 3, 2}) {
				t.Errorf("memory %v", b[:3])
			}
		})
	}
}

// An operation is listed once, however many regions contain its data, and not any more when it was
// revoked: each look for what to revoke takes the time of the list.
func TestDataOfManyRegionsAreListedOnce(t *testing.T) {
	g := newFixture(t)
	d := g.detach(g.io.Detach)
	to := g.region(backings(t)["process"](make([]byte, page)), 0)
	data, elsewhere := make([]byte, 8), make([]byte, 1)
	for _, part := range [][]byte{data, data, data[2:6], data[4:]} {
		g.region(HeapMemory(part), 0)
	}
	for i := range data {
		g.io.Write(i, to, uint64(i), data[i:i+1], true)
	}
	g.io.Write("elsewhere", to, 8, elsewhere, true)
	g.io.Flush()
	b := d.batches[0]
	for _, want := range []int{8, 7} {
		if len(b.borrowed) != want {
			t.Errorf("%d operations take data from mapped memory, want %d", len(b.borrowed), want)
		}
		b.Revoke(func(tag any) bool { return tag == 3 })
	}
	d.finish()
	g.wantFailures(map[any]error{3: ErrGone})
}

// Data that have been written when they are revoked may have changed before: their writer fails.
func TestWriterOfDataRevokedTooLateFails(t *testing.T) {
	g := newFixture(t)
	d := g.detach(g.io.Detach)
	b := make([]byte, page)
	to := g.region(backings(t)["process"](b), 0)
	mine := []byte{1}
	g.region(HeapMemory(mine), 0)
	g.io.Write("revoked", to, 0, mine, true)
	g.io.Write("stays", to, 1, []byte{2}, true)
	g.io.Flush()
	one := d.batches[0]
	one.Run()
	one.Revoke(func(tag any) bool { return tag == "revoked" })
	g.io.Settle(one)
	g.wantFailures(map[any]error{"revoked": ErrGone})
	g.io.Runner = nil
	g.io.Write("revoked", to, 0, []byte{3}, true) // another batch
	g.io.Flush()
	g.wantFailures(map[any]error{})
	if !bytes.Equal(b[:2], []byte{3, 2}) {
		t.Errorf("memory %v", b[:2])
	}
}
