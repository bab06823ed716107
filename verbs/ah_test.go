package verbs_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"softroce/attach"
	"softroce/internal/fabrictest"
	"softroce/verbs"
	"softroce/verbs/verbstest"
	"softroce/wire"
)

// daemonAHs returns how many address handles the daemon has.
func daemonAHs(f *fabrictest.Fabric) int { return len(f.Server.Snapshot().Devices[0].AHs) }

func TestAddressHandlesWithTheSameAttributesShareOne(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	e := verbstest.EndpointConfig{Type: verbs.UD}.New(t, f.Open(0))
	ctx := t.Context()
	create := func(label uint32) *verbs.AH {
		t.Helper()
		ah, err := e.PD.CreateAH(ctx, verbs.AHAttr{GRH: verbs.GlobalRoute{DGID: e.Info.GID, SGIDIndex: 1, FlowLabel: label}})
		noError(t, err)
		return ah
	}
	start := time.Now()
	var same []*verbs.AH
	for range 10 {
		same = append(same, create(1))
	}
	other := create(2)
	if n := daemonAHs(f); n != 2 && time.Since(start) < time.Second {
		t.Errorf("the daemon has %d address handles for two destinations", n)
	}
	// An address handle is used until the last of the program is closed.
	noError(t, e.ToDatagram(ctx, verbstest.QKey))
	for i, ah := range same {
		e.Recv(uint64(i), 0, 100)
		e.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: e.SGE(0, 8), AH: ah, RemoteQPN: e.QPNum(), RemoteQKey: verbstest.QKey})
		e.Completions(2)
		noError(t, ah.Close(ctx))
	}
	e.Send(verbs.SendWR{Opcode: verbs.WRSend, AH: same[0], RemoteQPN: e.QPNum()})
	e.Failure(verbs.WCLocQPOpErr)
	noError(t, other.Close(ctx))
	noError(t, e.QP.Close(ctx))
	noError(t, e.MR.Close(ctx))
	noError(t, e.PD.Close(ctx))
	if n := daemonAHs(f); n != 0 {
		t.Errorf("%d address handles of a closed PD are left", n)
	}
}

// The daemon keeps few address handles that no program uses, and destroys them when there are no
// others.
func TestUnusedAddressHandlesAreBounded(t *testing.T) {
	for _, limit := range []int{0, 2} {
		f := fabrictest.New(t, fabrictest.Config{Limits: attach.Limits{AHs: limit}})
		e := verbstest.EndpointConfig{Type: verbs.UD}.New(t, f.Open(0))
		for label := range uint32(40) {
			ah, err := e.PD.CreateAH(t.Context(), verbs.AHAttr{GRH: verbs.GlobalRoute{DGID: e.Info.GID, SGIDIndex: 1, FlowLabel: label}})
			noError(t, err)
			noError(t, ah.Close(t.Context()))
		}
		if n := daemonAHs(f); n > 16 {
			t.Errorf("%d unused address handles", n)
		}
	}
}

// An addressable is an interface whose addresses a test changes.
type addressable struct {
	wire.Interface

	mu      sync.Mutex
	addrs   []netip.Prefix
	changed []func()
}

func (i *addressable) Addresses() []netip.Prefix {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.addrs
}

func (i *addressable) OnChange(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.changed = append(i.changed, f)
}

func (i *addressable) set(addrs ...netip.Prefix) {
	i.mu.Lock()
	i.addrs = addrs
	changed := i.changed
	i.mu.Unlock()
	for _, f := range changed {
		f()
	}
}

// The daemon hangs: what needs no round trip succeeds, until the addresses of the NIC change.
func TestKnownAddressesNeedNoRoundTrip(t *testing.T) {
	var iface *addressable
	f := fabrictest.New(t, fabrictest.Config{NICs: 1, WrapInterface: func(_ int, inner wire.Interface) wire.Interface {
		iface = &addressable{Interface: inner, addrs: inner.Addresses()}
		return iface
	}})
	d := newSlowDaemon(t, f)
	ctx := t.Context()
	c, err := verbs.Open(ctx, "nic0", verbs.WithConn(d.client))
	noError(t, err)
	pd, err := c.AllocPD(ctx)
	noError(t, err)
	gids, err := c.GIDs(ctx)
	noError(t, err)
	gids[1].GID[0] = 1 // the program's copy
	create := func(ctx context.Context) error {
		ah, err := pd.CreateAH(ctx, verbs.AHAttr{GRH: verbs.GlobalRoute{DGID: gids[2].GID, SGIDIndex: 2}})
		if err == nil {
			err = ah.Close(ctx)
		}
		return err
	}
	made := time.Now()
	noError(t, create(ctx))

	d.set(true, false)
	again, err := c.GIDs(ctx)
	noError(t, err)
	if len(again) != 6 || again[1].GID.Addr() != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("GIDs %v", again)
	}
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	if create(short) != nil && time.Since(made) < time.Second {
		t.Error("an address handle that the process had was not used again")
	}
	cancel()
	iface.set(netip.MustParsePrefix("2001:db8::1/64"), netip.MustParsePrefix("2001:db8::7/64"))
	f.Engines[0].Do(func() {}) // the change was posted before
	shortly(t, "GIDs", func(ctx context.Context) error { _, err := c.GIDs(ctx); return err })
	shortly(t, "CreateAH", create)
	d.set(false, false)
	gids, err = c.GIDs(ctx)
	noError(t, err)
	if len(gids) != 6 || gids[1].GID.Addr() != netip.MustParseAddr("2001:db8::7") {
		t.Errorf("GIDs %v", gids)
	}
	noError(t, c.Close())
}
