package verbstest_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"softroce/capture"
	"softroce/packet"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

func TestCaptureRecordsTheLink(t *testing.T) {
	rec := capture.NewRecorder()
	a, b := verbstest.Pair(t, verbstest.WithCapture(rec))
	psn := uint32(0xfffffe)
	x, y := verbstest.EndpointConfig{PSN: &psn, Options: func(o *verbs.ConnectOptions) { o.PathMTU = verbs.MTU1024 }}.Connect(t, a, b)

	x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 3000), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	x.Completion()

	requests := rec.Where(capture.Request(), capture.DestQP(y.QPNum()))
	if len(requests) != 3 {
		t.Fatalf("%d requests:\n%v", len(requests), requests)
	}
	for i, want := range []struct {
		op  packet.Opcode
		psn uint32
	}{{packet.WriteFirst, 0xfffffe}, {packet.WriteMiddle, 0xffffff}, {packet.WriteLast, 0}} {
		if p := requests[i]; p.Opcode != want.op || p.BTH.PSN != want.psn || !p.ICRCOK() {
			t.Errorf("packet %d is %v", i, p)
		}
	}
	if ack := rec.Find(capture.Opcode(packet.Acknowledge)); ack == nil || ack.BTH.PSN != 0 {
		t.Errorf("acknowledged by %v", ack)
	}
}

func TestFaultsApplyToOneNICAndCanBeReplaced(t *testing.T) {
	rec := capture.NewRecorder()
	f := verbstest.New(t, verbstest.WithCapture(rec), verbstest.WithFaults(0, "drop send kind request nth 1"))
	x, y := verbstest.EndpointConfig{Options: func(o *verbs.ConnectOptions) { o.Timeout = 10 }}.Connect(t, f.Open(0), f.Open(1))
	y.Recv(1, 0, 8)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
	x.Completion()
	y.Completion()
	// The first was dropped above the cable: what it carried is what was sent again.
	if sent := rec.Where(capture.Request()); len(sent) != 1 {
		t.Errorf("the cable carried\n%v", sent)
	}

	f.SetFaults(0, "")
	rec.Reset()
	y.Recv(2, 0, 8)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
	x.Completion()
	if sent := rec.Where(capture.Request()); len(sent) != 1 {
		t.Errorf("the cable carried\n%v", sent)
	}
	y.Completion()
}

func TestCaptureSaysWhichAccessIsRefused(t *testing.T) {
	rec := capture.NewRecorder()
	f := verbstest.New(t, verbstest.WithCaptureAt(1, rec), verbstest.WithFaults(1, "fail access"))
	x, y := verbstest.EndpointConfig{}.Connect(t, f.Open(0), f.Open(1))
	x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 8), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	x.Failure(verbs.WCRemAccessErr)
	notes := rec.Notes()
	want := fmt.Sprintf("fault rule: fail access, access with R_Key %#x (nic1, pid %d, ", y.MR.RKey(), os.Getpid())
	if len(notes) != 1 || !strings.HasPrefix(notes[0].Text, want) || notes[0].QP != y.QPNum() {
		t.Errorf("notes %+v, want one of QP %#x that begins %q", notes, y.QPNum(), want)
	}
}

// A NIC that stands still for a time goes on with everything that has waited for it.
func TestStalledNICGoesOn(t *testing.T) {
	rec := capture.NewRecorder()
	f := verbstest.New(t, verbstest.WithCaptureAt(1, rec), verbstest.WithFaults(1, "stall time ..1s"))
	x, y := f.Connected(verbstest.EndpointConfig{Options: func(o *verbs.ConnectOptions) { o.Timeout = 18 }}) // 1 s
	for id := range uint64(3) {
		x.Send(verbs.SendWR{WRID: id, Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 8), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	}
	for id := range uint64(3) {
		if wc := x.Completion(); wc.WRID != id {
			t.Errorf("work request %d completes, want %d", wc.WRID, id)
		}
	}
	if !strings.Contains(fmt.Sprint(rec.Packets()[0].Comments, rec.Notes()), "stall time ..1s") {
		t.Errorf("the rule is not in the capture: %v", rec.Notes())
	}
}

// A NIC whose stall is removed goes on at once. What another stall holds waits on.
func TestRemovedStallReleasesPackets(t *testing.T) {
	f := verbstest.New(t)
	slow := func(o *verbs.ConnectOptions) { o.Timeout = 31 } // hours
	x, y := f.Connected(verbstest.EndpointConfig{Options: slow})
	u, v := f.Connected(verbstest.EndpointConfig{Options: slow})
	stalls := f.AddFaults(fmt.Sprintf("stall nic nic1 receive qp %d time ..1h\nstall nic nic1 receive qp %d time ..1h", y.QPNum(), v.QPNum()))
	write := func(a, b *verbstest.Endpoint, id uint64) {
		a.Send(verbs.SendWR{WRID: id, Opcode: verbs.WRRDMAWrite, SGList: a.SGE(0, 8), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()})
	}
	write(u, v, 9)
	for id := range uint64(3) {
		write(x, y, id)
	}
	acted := func() (n uint64) {
		for _, r := range f.Faults() {
			n += r.Acted
		}
		return n
	}
	for deadline := time.Now().Add(30 * time.Second); acted() < 4 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	f.RemoveFault(stalls[0])
	for id := range uint64(3) {
		if wc := x.Completion(); wc.WRID != id {
			t.Errorf("work request %d completes, want %d", wc.WRID, id)
		}
	}
	if n, err := u.CQ.Poll(make([]verbs.WC, 1)); n != 0 || err != nil {
		t.Errorf("%d completions of a queue pair that is stalled, %v", n, err)
	}
	f.RemoveFault(stalls[1])
	u.Completion()
}

// A NIC that has forgotten a queue pair does not answer its peer, and serves the others.
func TestForgottenQueuePair(t *testing.T) {
	f := verbstest.New(t)
	a, b := f.Open(0), f.Open(1)
	config := verbstest.EndpointConfig{Options: func(o *verbs.ConnectOptions) { o.Timeout, o.RetryCnt = 8, 2 }}
	x, y := config.Connect(t, a, b)
	u, v := verbstest.ConnectedRC(t, a, b)
	f.SetFaults(1, fmt.Sprintf("drop receive qp %d", y.QPNum()))
	x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 8), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	x.Failure(verbs.WCRetryExcErr)
	u.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: u.SGE(0, 8), RemoteAddr: v.MR.Addr(), RKey: v.MR.RKey()})
	u.Completion()
}

// A failing records whether a test fails, in place of failing it.
type failing struct {
	testing.TB
	cleanups []func()
	failed   bool
}

func (f *failing) Cleanup(c func())      { f.cleanups = append(f.cleanups, c) }
func (f *failing) Errorf(string, ...any) { f.failed = true }
func (f *failing) Failed() bool          { return f.failed }
func (f *failing) finish() {
	for i := len(f.cleanups) - 1; i >= 0; i-- {
		f.cleanups[i]()
	}
}

func TestLeakFailsTheTest(t *testing.T) {
	clean := &failing{TB: t}
	verbstest.Pair(clean)
	clean.finish()
	if clean.failed {
		t.Error("a test that leaves nothing behind failed")
	}

	leaking := &failing{TB: t}
	f := verbstest.New(leaking)
	sock := f.Dial() // never closed
	leaking.finish()
	sock.Close()
	if !leaking.failed {
		t.Error("a test that leaves a socket open passed")
	}
}

// Both NICs of a fabric have one engine, one each, or two engines together.
func TestLinksAndEventsOfEachNIC(t *testing.T) {
	for name, option := range map[string]verbstest.Option{
		"one engine": verbstest.WithEngines(1), "one each": verbstest.WithEngines(2), "two together": verbstest.WithEnginesPerNIC(2),
	} {
		f := verbstest.New(t, option)
		for nic := range 2 {
			c := f.Open(nic)
			f.SetLink(nic, false)
			f.SetLink(nic, true)
			f.Fire(nic, verbs.EventGIDChange, 0)
			for _, want := range []verbs.EventType{verbs.EventPortErr, verbs.EventPortActive, verbs.EventGIDChange} {
				if e, err := c.AsyncEvent(t.Context()); err != nil || e.EventType != want {
					t.Errorf("%s, NIC %d: %v, %v, want %v", name, nic, e.EventType, err, want)
				}
			}
		}
	}
}

// Rules are added, counted and removed by their IDs, beside each other; those of one NIC do nothing
// at the other.
func TestAddedFaultsAreCountedAndRemoved(t *testing.T) {
	f := verbstest.New(t)
	x, y := f.Connected(verbstest.EndpointConfig{})
	ids := f.AddFaults("# two rules\nhold completion opcode rdma_write nic nic0\nfail alloc_pd ENOMEM count 1")
	if len(ids) != 2 || ids[1] != ids[0]+1 {
		t.Fatalf("IDs %v", ids)
	}
	x.Send(verbs.SendWR{WRID: 1, Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 5), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	y.Send(verbs.SendWR{WRID: 2, Opcode: verbs.WRRDMAWrite, SGList: y.SGE(0, 5), RemoteAddr: x.MR.Addr(), RKey: x.MR.RKey()})
	y.Completion()
	if _, err := x.Context.AllocPD(t.Context()); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("alloc_pd: %v", err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for f.Faults()[0].Acted == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	want := []verbstest.Fault{
		{NIC: "nic0", ID: ids[0], Line: 2, Rule: "hold completion opcode rdma_write nic nic0", Matched: 1, Acted: 1},
		{NIC: "nic0", ID: ids[1], Line: 3, Rule: "fail alloc_pd ENOMEM count 1", Matched: 1, Acted: 1},
		{NIC: "nic1", ID: ids[1], Line: 3, Rule: "fail alloc_pd ENOMEM count 1"},
	}
	if got := f.Faults(); !slices.Equal(got, want) {
		t.Errorf("rules %+v, want %+v", got, want)
	}
	if n, err := x.CQ.Poll(make([]verbs.WC, 1)); n != 0 || err != nil {
		t.Errorf("%d completions that are held, %v", n, err)
	}
	f.RemoveFault(ids[0])
	x.Completion()
	if got := f.Faults(); len(got) != 2 || got[0].ID != ids[1] {
		t.Errorf("rules %+v after one was removed", got)
	}
	f.SetCounter(0, "out_of_sequence", 7)
	if n := f.Counter(0, "out_of_sequence"); n != 7 {
		t.Errorf("the counter is %d, want 7", n)
	}
}

// A NIC with a persona reports it, and connects to one without.
func TestPersona(t *testing.T) {
	f := verbstest.New(t, verbstest.WithPersona(0, "connectx-7"))
	for _, c := range []struct {
		nic    int
		vendor uint32
	}{{0, 0x2c9}, {1, 0xffffff}} {
		if a, err := f.Open(c.nic).QueryDevice(t.Context()); err != nil || a.VendorID != c.vendor {
			t.Errorf("NIC %d: vendor %#x, %v; want %#x", c.nic, a.VendorID, err, c.vendor)
		}
	}
	for _, ipv6 := range []bool{false, true} {
		x, y := f.Connected(verbstest.EndpointConfig{IPv6: ipv6})
		x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 5), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
		x.Completion()
		x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 5), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey() + 1})
		if wc := x.Failure(verbs.WCRemAccessErr); wc.VendorErr != 0x88 {
			t.Errorf("vendor error %#x, want 0x88", wc.VendorErr)
		}
	}
}
