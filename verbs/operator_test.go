package verbs_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/fabrictest"
	"softroce/internal/ib"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// clientAndOperator returns a client of nic0, and the requests of an operator of its daemon.
func clientAndOperator(t *testing.T) (*verbs.Context, *control.Client) {
	t.Helper()
	f := verbstest.New(t)
	c, err := control.NewClient(context.Background(), f.Dial())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return f.Open(0), c
}

func TestSetLinkChangesTheState(t *testing.T) {
	a, c := clientAndOperator(t)
	ctx := t.Context()
	for _, want := range []struct {
		up    bool
		state verbs.PortState
		event verbs.EventType
	}{{false, verbs.PortDown, verbs.EventPortErr}, {true, verbs.PortActive, verbs.EventPortActive}} {
		if err := c.SetLink(ctx, "nic0", want.up); err != nil {
			t.Fatal(err)
		}
		if e, err := a.AsyncEvent(ctx); err != nil || e.EventType != want.event || e.Port != 1 {
			t.Errorf("event %+v, %v", e, err)
		}
		if p, err := a.QueryPort(ctx); err != nil || p.State != want.state {
			t.Errorf("port %+v, %v", p, err)
		}
	}
	for _, name := range []string{"nic9", ""} {
		if err := c.SetLink(ctx, name, false); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("NIC %q: %v", name, err)
		}
	}
	req := abi.SetLinkRequest{Up: 2}
	abi.PutText(req.Device[:], "nic0")
	if _, err := c.Call(ctx, control.Request{Name: "set link", Op: abi.OpSetLink, Body: []any{req}}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a state that does not exist: %v", err)
	}
}

func TestSetPKeysChangesTheTable(t *testing.T) {
	a, c := clientAndOperator(t)
	ctx := t.Context()
	if err := c.SetPKeys(ctx, "nic0", []uint16{0xffff, 0x8005}); err != nil {
		t.Fatal(err)
	}
	if e, err := a.AsyncEvent(ctx); err != nil || e.EventType != verbs.EventPKeyChange || e.Port != 1 {
		t.Errorf("event %+v, %v", e, err)
	}
	if keys, err := a.PKeys(ctx); err != nil || !slices.Equal(keys, []uint16{0xffff, 0x8005}) {
		t.Errorf("P_Keys %#x, %v", keys, err)
	}
	for _, bad := range []struct {
		device string
		keys   []uint16
		want   error
	}{{"nic9", []uint16{0xffff}, syscall.ENODEV}, {"", []uint16{0xffff}, syscall.ENODEV}, {"nic0", nil, syscall.EINVAL}, {"nic0", []uint16{0x8000}, syscall.EINVAL},
		{"nic0", make([]uint16, 65), syscall.EINVAL}} {
		if err := c.SetPKeys(ctx, bad.device, bad.keys); !errors.Is(err, bad.want) {
			t.Errorf("%s %#x: %v, want %v", bad.device, bad.keys, err, bad.want)
		}
	}
}

// addFaults is AddFaults without the IDs.
func addFaults(ctx context.Context, c *control.Client, program string) error {
	_, _, err := c.AddFaults(ctx, program)
	return err
}

func TestFaultsOfRunningDaemon(t *testing.T) {
	a, c := clientAndOperator(t)
	ctx := t.Context()
	first, last, err := c.AddFaults(ctx, "# three rules\ndrop nic nic1 receive\nfail alloc_pd ENOMEM nth 2\n\nfail create_cq EAGAIN nic nic0")
	if err != nil || last != first+2 {
		t.Fatalf("rules %d to %d: %v", first, last, err)
	}
	create := func() error {
		cq, err := a.CreateCQ(ctx, 1, nil)
		if err == nil {
			err = cq.Close(ctx)
		}
		return err
	}
	alloc := func() error {
		pd, err := a.AllocPD(ctx)
		if err == nil {
			err = pd.Close(ctx)
		}
		return err
	}
	if err := alloc(); err != nil {
		t.Error(err)
	}
	if err := create(); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("create CQ: %v", err)
	}
	if more, again, err := c.AddFaults(ctx, "slow alloc_pd 1ns"); err != nil || more != last+1 || again != more {
		t.Errorf("rules %d to %d: %v", more, again, err)
	}
	if err := c.RemoveFault(ctx, last); err != nil {
		t.Error(err)
	}
	if err := create(); err != nil {
		t.Errorf("after the rule was removed: %v", err)
	}
	if err := alloc(); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a rule has lost its count: %v", err)
	}
	if err := c.RemoveFault(ctx, first); err != nil {
		t.Error(err)
	}
}

func TestWrongFaultsOfRunningDaemon(t *testing.T) {
	_, c := clientAndOperator(t)
	ctx := t.Context()
	for _, wrong := range []struct {
		program string
		want    error
	}{
		{"drop\ndorp", syscall.EINVAL}, {"drop nic nic9", syscall.ENODEV}, {"fail create_qp ENOMEM nic nic9", syscall.ENODEV},
		{strings.Repeat("#", abi.FaultsMax+1), syscall.EMSGSIZE},
	} {
		if err := addFaults(ctx, c, wrong.program); !errors.Is(err, wrong.want) {
			t.Errorf("%.30q: %v, want %v", wrong.program, err, wrong.want)
		}
	}
	if first, last, err := c.AddFaults(ctx, "# nothing"); err != nil || first != 1 || last != 0 {
		t.Errorf("no rule: %d to %d, %v", first, last, err)
	}
	if err := c.RemoveFault(ctx, 1); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a rule that does not exist: %v", err)
	}
	req := control.Request{Name: "add faults", Op: abi.OpAddFaults, Body: []any{abi.AddFaultsRequest{Length: 9}, []byte("drop")}}
	if _, err := c.Call(ctx, req); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a length above that of the message: %v", err)
	}
}

func TestOtherUsersAreNoOperators(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("left out: only root can start a process of another user")
	}
	f := fabrictest.New(t, fabrictest.Config{})
	path := listenFor(t, f)(0o666)
	if got := start(t, "operator", path, otherUser).line(t); got != "refused: 8" {
		t.Error(got)
	}
	f.Engines[0].Do(func() {
		if d := f.Devices[0]; d.QueryPort().State != ib.PortActive {
			t.Errorf("port state %v", d.QueryPort().State)
		}
	})
}
