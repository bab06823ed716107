package attach_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/attach"
	"softroce/capture"
	"softroce/internal/abi"
	"softroce/internal/fabrictest"
	"softroce/wire"
	"softroce/wire/fault"
)

// Every verb that a rule can name fails with the error of the rule, and only on its NIC.
func TestVerbsFailByTheFaultProgram(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	r := connect(t, f)
	if have, want := slices.Sorted(maps.Values(attach.Verbs)), slices.Sorted(slices.Values(fault.VerbNames)); !slices.Equal(have, want) {
		t.Errorf("operations for\n%v\nwant\n%v", have, want)
	}
	for op, verb := range attach.Verbs {
		if err := f.SetFaults(0, "fail "+verb+" EXDEV"); err != nil {
			t.Fatal(err)
		}
		r.wantErrno(verb, syscall.EXDEV, r.call(op, nil, make([]byte, attach.BodyOf(op))))
		if err := f.SetFaults(0, ""); err != nil {
			t.Fatal(err)
		}
		if p := r.call(op, nil, make([]byte, attach.BodyOf(op))); syscall.Errno(p.Header.Errno) == syscall.EXDEV {
			t.Errorf("%s fails without a rule", verb)
		}
		if err := f.SetFaults(1, "fail "+verb+" EXDEV"); err != nil {
			t.Fatal(err)
		}
		if p := r.call(op, nil, make([]byte, attach.BodyOf(op))); syscall.Errno(p.Header.Errno) == syscall.EXDEV {
			t.Errorf("%s fails by a rule for another NIC", verb)
		}
		f.SetFaults(1, "")
	}
}

func TestVerbsFailWithEveryError(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	r := connect(t, f)
	for op, verb := range attach.Verbs {
		var errnos []syscall.Errno
		var program strings.Builder
		for e := syscall.Errno(1); e < 134; e++ {
			if name := unix.ErrnoName(e); name != "" {
				errnos = append(errnos, e)
				fmt.Fprintf(&program, "fail %s %s count 1\n", verb, name)
			}
		}
		if err := f.SetFaults(0, program.String()); err != nil {
			t.Fatal(err)
		}
		for _, e := range errnos {
			r.wantErrno(verb+" "+unix.ErrnoName(e), e, r.call(op, nil, make([]byte, attach.BodyOf(op))))
		}
	}
}

// A verb that takes long delays neither other clients nor other verbs of its client, and ends with
// its connection.
func TestSlowVerbDelaysItsCallerAlone(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	if err := f.SetFaults(0, "slow alloc_pd 1h nth 1"); err != nil {
		t.Fatal(err)
	}
	slow, other := connect(t, f), connect(t, f)
	slow.send(abi.Header{Version: abi.Version, Op: abi.OpAllocPD}, nil)
	slow.mustCall(abi.OpQueryDevice, nil)
	other.mustCall(abi.OpAllocPD, nil)
	slow.mustCall(abi.OpAllocPD, nil)
	if l := f.Server.Snapshot().Devices[0].Faults; len(l) != 1 || l[0].Matched != 3 || l[0].Acted != 1 || l[0].Rule != "slow alloc_pd 1h nth 1" {
		t.Errorf("the rules counted %+v", l)
	}
}

func TestSlowVerbIsCarriedOut(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	if err := f.SetFaults(0, "slow alloc_pd,reg_mr 1ms\nfail dealloc_pd EBUSY nth 1\nslow dealloc_pd 1ms"); err != nil {
		t.Fatal(err)
	}
	r := connect(t, f)
	pd := abi.HandleRequest{Handle: handleOf(r.mustCall(abi.OpAllocPD, nil))}
	r.wantErrno("the first time", syscall.EBUSY, r.call(abi.OpDeallocPD, nil, pd))
	r.mustCall(abi.OpDeallocPD, nil, pd)
}

// A rule ends the connection on which its verb is called, after the delays of rules before it, and
// no other connection.
func TestConnectionsEndByRule(t *testing.T) {
	recorder := capture.NewRecorder()
	f := fabrictest.New(t, fabrictest.Config{Sinks: map[int]wire.FrameSink{0: recorder}})
	if err := f.SetFaults(0, "slow alloc_pd 1h nth 1\nclose alloc_pd nth 1,2"); err != nil {
		t.Fatal(err)
	}
	slow, ended, other := connect(t, f), connect(t, f), connect(t, f)
	slow.send(abi.Header{Version: abi.Version, Op: abi.OpAllocPD}, nil)
	slow.mustCall(abi.OpQueryDevice, nil)
	ended.send(abi.Header{Version: abi.Version, Op: abi.OpAllocPD}, nil)
	if p, err := ended.receive(); err != nil || p.Header.Op != abi.OpGoodbye || !strings.Contains(string(p.Body), "line 2: close alloc_pd") {
		t.Errorf("message %+v %q, %v; want the end of the connection and its rule", p.Header, p.Body, err)
	}
	if p, err := ended.receive(); err == nil {
		t.Errorf("message %+v after the end", p.Header)
	}
	other.mustCall(abi.OpAllocPD, nil)
	slow.mustCall(abi.OpQueryDevice, nil)
	// That of the slow call and its end, and that of the second call.
	var notes []string
	for _, n := range recorder.Notes() {
		what, _, _ := strings.Cut(n.Text, ", alloc_pd (nic0, pid ")
		notes = append(notes, what)
	}
	if want := []string{"fault rule: slow alloc_pd 1h nth 1", "fault rule: close alloc_pd nth 1,2", "fault rule: close alloc_pd nth 1,2"}; !slices.Equal(notes, want) {
		t.Errorf("notes %q, want %q", notes, want)
	}
}

// A verb that is held is carried out when its rule is removed, and ends with its connection. Others
// do not wait.
func TestHeldVerbWaitsForTheEndOfTheRule(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	if err := f.SetFaults(0, "hold alloc_pd nth 1,2"); err != nil {
		t.Fatal(err)
	}
	held, gone, other := connect(t, f), connect(t, f), connect(t, f)
	gone.send(abi.Header{Version: abi.Version, Op: abi.OpAllocPD}, nil)
	gone.mustCall(abi.OpQueryDevice, nil)
	held.send(abi.Header{Version: abi.Version, Op: abi.OpAllocPD}, nil)
	tag := held.tag
	held.mustCall(abi.OpQueryDevice, nil)
	other.mustCall(abi.OpAllocPD, nil)
	gone.sock.Close()
	if n := len(f.Server.Snapshot().Devices[0].PDs); n != 1 {
		t.Errorf("%d protection domains while the verb is held, want 1", n)
	}
	if err := f.SetFaults(0, ""); err != nil {
		t.Fatal(err)
	}
	if p, err := held.receive(); err != nil || p.Header.Tag != tag || p.Header.Errno != 0 {
		t.Errorf("reply %+v, %v", p.Header, err)
	}
}
