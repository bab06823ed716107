package transport

import (
	"bytes"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// thisProcess opens this process like that of a client: by process_vm_readv, or by /proc/self/mem
// where the system lacks that, as qemu-user does.
func thisProcess() (*mrtable.Process, error) {
	if _, err := unix.ProcessVMReadv(os.Getpid(), nil, nil, 0); err != unix.ENOSYS {
		return mrtable.OpenProcess(os.Getpid(), -1)
	}
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mrtable.OpenProcessMem(int(f.Fd()))
}

// useCopiedMemory gives s memory that must be copied, like that of another process, with room for
// room bytes at a time.
func (s *side) useCopiedMemory(room int) {
	s.t.Helper()
	p, err := thisProcess()
	must(s.t, err)
	addr := uint64(uintptr(unsafe.Pointer(&s.mem[0])))
	m, err := p.Memory(addr, uint64(len(s.mem)), ib.AccessLocalWrite)
	must(s.t, err)
	s.env.Mem = mrtable.NewIO(room)
	s.region, err = s.table.Register(s.qp.cfg.PD, m, sideBase, uint64(len(s.mem)), ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead|ib.AccessRemoteAtomic)
	must(s.t, err)
}

// removePage puts a page of an empty file in the place of a page. /proc/PID/mem can read protected
// pages, but not these.
func removePage(t *testing.T, b []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("empty", unix.MFD_CLOEXEC)
	must(t, err)
	defer unix.Close(fd)
	_, err = unix.MmapPtr(fd, 0, unsafe.Pointer(&b[0]), uintptr(len(b)), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED)
	must(t, err)
}

// What fails is the message whose memory is missing, not those that are read with it.
func TestReadAheadFailureIsOfItsMessage(t *testing.T) {
	const page = 4096
	for _, c := range []struct {
		op   ib.WROpcode
		want string
	}{{ib.WRRDMAWrite, "0:0 1:0 2:4 3:5"}, {ib.WRRDMARead, "0:0 1:0 2:11 3:5"}} {
		a, b := connect(t, defaults)
		from := a
		if c.op == ib.WRRDMARead {
			from = b
		}
		from.mem = mappedPages(t, 4)
		from.useCopiedMemory(1 << 20)
		fill(from.mem[:2*page], 5)
		removePage(t, from.mem[2*page:3*page])
		for i := range 4 {
			a.post(SendWR{ID: uint64(i), Opcode: c.op, Flags: ib.SendSignaled, RemoteAddr: sideBase + uint64(i)*page,
				RKey: b.region.RKey(), SGEs: a.sge(i*page, page)})
		}
		run(t, a, b, deliverAll)
		if got := statuses(a.done); got != c.want {
			t.Errorf("operation %d: completions %s, want %s", c.op, got, c.want)
		}
		if !bytes.Equal(a.mem[:2*page], b.mem[:2*page]) {
			t.Errorf("operation %d: data differ", c.op)
		}
	}
}

func mappedPages(t *testing.T, n int) []byte {
	b, err := unix.Mmap(-1, 0, n*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

// One batch of reads serves all messages that can be sent.
func TestReadAheadOfManyMessagesIsOneBatch(t *testing.T) {
	for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead} {
		o := defaults
		o.rdAtomic = 16
		a, b := connect(t, o)
		from := a
		if op == ib.WRRDMARead {
			from = b
		}
		from.useCopiedMemory(1 << 20)
		fill(from.mem[:1000], 3)
		batches := 0
		from.env.Mem.Runner = func(r *mrtable.Batch) bool {
			batches++
			r.Run()
			return true
		}
		for i := range 10 {
			a.post(SendWR{ID: uint64(i), Opcode: op, RemoteAddr: sideBase + uint64(i)*100, RKey: b.region.RKey(), SGEs: a.sge(i*100, 100)})
		}
		run(t, a, b, deliverAll)
		if batches != 1 || !bytes.Equal(a.mem[:1000], b.mem[:1000]) {
			t.Errorf("operation %d: 10 messages in %d batches", op, batches)
		}
	}
}

// The memory of a client may take so long that packets arrive between reading and sending. What was
// read for a repeated READ must not be sent as the response to a later one.
func TestReadAheadIsDiscardedWhenPacketsArrive(t *testing.T) {
	o := defaults
	o.rdAtomic = 1
	_, b := connect(t, o)
	b.useCopiedMemory(1 << 20)
	b.request(packet.ReadRequest, o.psn, 0, reth(sideBase, 8))
	b.transmit()
	b.request(packet.ReadRequest, o.psn, 0, reth(sideBase, 8)) // repeated
	b.flush()
	b.mem[0], b.out = 9, nil
	b.request(packet.ReadRequest, packet.PSNAdd(o.psn, 1), 0, reth(sideBase, 8))
	b.transmit()
	if len(b.out) != 1 || b.out[0].Payload[0][0] != 9 {
		t.Errorf("%d packets, the first with %v; want one with 9", len(b.out), b.out[0].Payload)
	}
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
