package verbs_test

import (
	"context"
	"errors"
	"os"
	"slices"
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

func TestOtherUsersAreNoOperators(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("left out: only root can start a process of another user")
	}
	f := fabrictest.New(t, fabrictest.Config{})
	path := listenFor(t, f)(0o666)
	if got := start(t, "operator", path, otherUser).line(t); got != "refused: 3" {
		t.Error(got)
	}
	f.Engines[0].Do(func() {
		if d := f.Devices[0]; d.QueryPort().State != ib.PortActive {
			t.Errorf("port state %v", d.QueryPort().State)
		}
	})
}
