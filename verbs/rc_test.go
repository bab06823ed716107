package verbs_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// fill writes bytes that depend on position and seed.
func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	for i := len(b) &^ 7; i < len(b); i++ {
		b[i] = byte(r.Uint32())
	}
}

func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d of %d is %#x, want %#x", what, i, len(got), got[i], want[i])
		}
	}
}

// operations performs every RC operation with n bytes from x to y and checks the data.
func operations(t *testing.T, x, y *verbstest.Endpoint, n int) {
	half := len(x.Buf) / 2
	for i, op := range []struct {
		name string
		wr   verbs.SendWR
		recv bool // takes a receive of y
		imm  bool
		code verbs.WCOpcode
		at   verbs.WCOpcode
	}{
		{"SEND", verbs.SendWR{Opcode: verbs.WRSend}, true, false, verbs.WCSend, verbs.WCRecv},
		{"SEND with immediate", verbs.SendWR{Opcode: verbs.WRSendWithImm}, true, true, verbs.WCSend, verbs.WCRecv},
		{"RDMA WRITE", verbs.SendWR{Opcode: verbs.WRRDMAWrite}, false, false, verbs.WCRDMAWrite, 0},
		{"RDMA WRITE with immediate", verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm}, true, true, verbs.WCRDMAWrite, verbs.WCRecvRDMAWithImm},
		{"RDMA READ", verbs.SendWR{Opcode: verbs.WRRDMARead}, false, false, verbs.WCRDMARead, 0},
	} {
		what := fmt.Sprintf("%s of %d bytes", op.name, n)
		fill(x.Buf[:half], uint64(2*i))
		fill(y.Buf[:half], uint64(2*i+1))
		clear(x.Buf[half:])
		clear(y.Buf[half:])
		if op.recv {
			y.Recv(7, half, n)
		}
		wr := op.wr
		wr.WRID, wr.SGList, wr.Imm = uint64(100+i), x.SGE(0, n), 0x01020304
		wr.RemoteAddr, wr.RKey = y.MR.Addr()+uint64(half), y.MR.RKey()
		if wr.Opcode == verbs.WRRDMARead {
			wr.SGList, wr.RemoteAddr = x.SGE(half, n), y.MR.Addr()
		}
		x.Send(wr)
		if wc := x.Completion(); wc.WRID != wr.WRID || wc.Opcode != op.code || wc.QPNum != x.QPNum() {
			t.Fatalf("%s: completion %+v", what, wc)
		}
		if op.recv {
			wc := y.Completion()
			if wc.WRID != 7 || wc.Opcode != op.at || wc.ByteLen != uint32(n) || wc.QPNum != y.QPNum() {
				t.Fatalf("%s: receive completion %+v", what, wc)
			}
			if hasImm := wc.WCFlags&verbs.WCWithImm != 0; hasImm != op.imm || op.imm && wc.Imm != 0x01020304 {
				t.Fatalf("%s: immediate %v %#x", what, hasImm, wc.Imm)
			}
		}
		from, to := x.Buf, y.Buf
		if wr.Opcode == verbs.WRRDMARead {
			from, to = to, from
		}
		same(t, what, to[half:half+n], from[:n])
		same(t, what+", beyond", to[half+n:], make([]byte, half-n))
	}
}

func TestEveryOperationAtEveryPathMTUAndSize(t *testing.T) {
	a, b := verbstest.Pair(t)
	for mtu := verbs.MTU256; mtu <= verbs.MTU4096; mtu++ {
		x, y := verbstest.EndpointConfig{BufSize: 4 << 20, Options: func(o *verbs.ConnectOptions) { o.PathMTU = mtu }}.Connect(t, a, b)
		m := mtu.Bytes()
		for _, n := range []int{0, 1, 3, 4, m - 1, m, m + 1, 2 * m, 5*m + 7, 64 << 10, 1<<20 + 3} {
			operations(t, x, y, n)
		}
	}
}

func TestEveryOperationOnProcessMemory(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.EndpointConfig{BufSize: 1 << 20, Process: true}.Connect(t, a, b)
	if x.MR.Mapped() {
		t.Fatal("ordinary memory was mapped")
	}
	for _, n := range []int{0, 1, 7, 8, 9, 4096, 65537} {
		operations(t, x, y, n)
		operations(t, y, x, n)
	}
}

func TestBufferStaysMapped(t *testing.T) {
	c, _ := verbstest.Pair(t)
	ctx := t.Context()
	pd, err := c.AllocPD(ctx)
	noError(t, err)
	buf, err := c.AllocBuffer(1 << 20)
	noError(t, err)
	for _, access := range []verbs.Access{0, verbs.AccessLocalWrite, 0} {
		mr, err := pd.RegMR(ctx, buf.Bytes()[100:], access)
		noError(t, err)
		if !mr.Mapped() {
			t.Errorf("access %v: not mapped", access)
		}
		noError(t, mr.Close(ctx))
	}
	noError(t, buf.Close())
}

func TestConnectionAcrossEngines(t *testing.T) {
	a, b := verbstest.Pair(t, verbstest.WithEngines(2))
	x, y := verbstest.EndpointConfig{BufSize: 2 << 20}.Connect(t, a, b)
	for _, n := range []int{0, 1, 4096, 1 << 20} {
		operations(t, x, y, n)
	}
}

func TestIPv6AndLoopbackConnections(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.EndpointConfig{IPv6: true}.Connect(t, a, b)
	operations(t, x, y, 5000)
	x, y = verbstest.ConnectedRC(t, a, a)
	operations(t, x, y, 5000)
}

func TestAtomicsReturnPreviousValue(t *testing.T) {
	for _, process := range []bool{false, true} {
		t.Run(fmt.Sprintf("process=%v", process), func(t *testing.T) {
			a, b := verbstest.Pair(t)
			x, y := verbstest.EndpointConfig{Process: process}.Connect(t, a, b)
			atomic := func(op verbs.WROpcode, compareAdd, swap uint64) uint64 {
				t.Helper()
				x.Send(verbs.SendWR{Opcode: op, SGList: x.SGE(0, 8), RemoteAddr: y.MR.Addr() + 16, RKey: y.MR.RKey(),
					CompareAdd: compareAdd, Swap: swap})
				if wc := x.Completion(); wc.ByteLen != 8 {
					t.Fatalf("completion %+v", wc)
				}
				return binary.NativeEndian.Uint64(x.Buf)
			}
			word := func() uint64 { return binary.NativeEndian.Uint64(y.Buf[16:]) }
			binary.NativeEndian.PutUint64(y.Buf[16:], 40)
			if old := atomic(verbs.WRAtomicFetchAndAdd, 2, 0); old != 40 || word() != 42 {
				t.Fatalf("fetch-and-add returned %d, memory holds %d", old, word())
			}
			if old := atomic(verbs.WRAtomicCmpAndSwp, 41, 7); old != 42 || word() != 42 {
				t.Fatalf("compare-and-swap of another value returned %d, memory holds %d", old, word())
			}
			if old := atomic(verbs.WRAtomicCmpAndSwp, 42, 7); old != 42 || word() != 7 {
				t.Fatalf("compare-and-swap returned %d, memory holds %d", old, word())
			}
		})
	}
}

func TestInlineGatherScatterAndUnsignaledSends(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.ConnectedRC(t, a, b)
	fill(x.Buf, 1)

	data := []byte("inline data is copied while posting")
	y.Recv(1, 0, 100)
	wr := verbs.SendWR{Opcode: verbs.WRSend, SendFlags: verbs.SendInline, Inline: data}
	x.Send(wr)
	clear(data)
	x.Completion()
	if wc := y.Completion(); string(y.Buf[:wc.ByteLen]) != "inline data is copied while posting" {
		t.Fatalf("received %q", y.Buf[:wc.ByteLen])
	}

	err := y.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{y.MR.SGE(1000, 5), y.MR.SGE(3000, 0), y.MR.SGE(2000, 300)}})
	if err != nil {
		t.Fatal(err)
	}
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{x.MR.SGE(0, 100), x.MR.SGE(500, 1), x.MR.SGE(7, 99)}})
	x.Completion()
	y.Completion()
	want := append(append(append([]byte(nil), x.Buf[:100]...), x.Buf[500]), x.Buf[7:106]...)
	same(t, "first piece", y.Buf[1000:1005], want[:5])
	same(t, "second piece", y.Buf[2000:2195], want[5:])

	// Unsignaled work requests complete without completions: many more than the queue holds.
	depth := int(x.Cap().MaxSendWR)
	posted := 0
	for posted < 5*depth {
		for i := range depth {
			wr := verbs.SendWR{WRID: uint64(posted), Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 8),
				RemoteAddr: y.MR.Addr() + 4096, RKey: y.MR.RKey()}
			if i == depth-1 {
				wr.SendFlags = verbs.SendSignaled
			}
			if err := x.PostSend(wr); err != nil {
				t.Fatal(err)
			}
			posted++
		}
		if wc := x.Completion(); wc.WRID != uint64(posted-1) {
			t.Fatalf("completion of work request %d, posted %d", wc.WRID, posted)
		}
	}
}

// A region of length 0 has keys for messages without data.
func TestEmptyRegionServesMessagesWithoutData(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.ConnectedRC(t, a, b)
	for name, mem := range map[string][]byte{"none": nil, "process": make([]byte, 8)[:0], "mapped": x.Buf[:0]} {
		m, err := x.PD.RegMR(t.Context(), mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		y.Recv(1, 0, 0)
		for _, op := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMARead, verbs.WRSend} {
			x.Send(verbs.SendWR{Opcode: op, SGList: []verbs.SGE{m.SGE(0, 0)}, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
			x.Completion()
		}
		y.Completion()
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestFenceWaitsForReads(t *testing.T) {
	a, b := verbstest.Pair(t, verbstest.WithFaults(1, "delay 5ms send kind read_response nth 1"))
	x, y := verbstest.ConnectedRC(t, a, b)
	copy(y.Buf, "old")
	copy(x.Buf[100:], "new")
	err := x.PostSend(
		verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: x.SGE(0, 3), RemoteAddr: y.MR.Addr() + 4096, RKey: y.MR.RKey()},
		verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: x.SGE(200, 3), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()},
		// The WRITE sends the data of the READ, so it must wait for it.
		verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendFence | verbs.SendSignaled,
			SGList: x.SGE(200, 3), RemoteAddr: y.MR.Addr() + 500, RKey: y.MR.RKey()})
	if err != nil {
		t.Fatal(err)
	}
	x.Completion()
	if got := string(y.Buf[500:503]); got != "old" {
		t.Fatalf("the fenced WRITE carried %q", got)
	}
}
