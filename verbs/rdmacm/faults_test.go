package rdmacm_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"softroce/internal/fabrictest"
	"softroce/verbs"
	"softroce/verbs/rdmacm"
	"softroce/wire/fault"
)

// Every verb of the connection manager fails with the error of its rule, on the NIC of the rule
// only, and then not.
func TestVerbsFailByRule(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
	ctx := t.Context()
	tried := map[string]bool{}
	failing := func(nic int, verb string, call func(context.Context) error) {
		t.Helper()
		tried[verb] = true
		noError(t, f.SetFaults(nic, "fail "+verb+" EXDEV"))
		if err := call(ctx); !errors.Is(err, syscall.EXDEV) {
			t.Errorf("%s: %v, want EXDEV", verb, err)
		}
		noError(t, f.SetFaults(nic, ""))
		noError(t, f.SetFaults(1-nic, "fail "+verb+" EXDEV"))
		if err := call(ctx); err != nil {
			t.Errorf("%s with a rule for the other NIC: %v", verb, err)
		}
		noError(t, f.SetFaults(1-nic, ""))
	}

	var channel *rdmacm.EventChannel
	failing(0, "rdma_create_event_channel", func(ctx context.Context) (err error) {
		channel, err = client.CreateEventChannel(ctx)
		return err
	})
	failing(0, "rdma_destroy_event_channel", func(ctx context.Context) error { return channel.Close(ctx) })

	var listener *rdmacm.ID
	failing(1, "rdma_create_id", func(ctx context.Context) (err error) {
		listener, err = server.CreateID(ctx, server.ch, rdmacm.PSTCP, verbs.RC)
		return err
	})
	failing(1, "rdma_set_option", func(ctx context.Context) error { return listener.SetOption(ctx, rdmacm.OptionTOS, 0) })
	at := netip.MustParseAddrPort("192.0.2.2:0")
	failing(1, "rdma_bind_addr", func(ctx context.Context) error { return listener.BindAddr(ctx, at) })
	failing(1, "rdma_listen", func(ctx context.Context) error { return listener.Listen(ctx, 4) })
	info, err := listener.Info(ctx)
	noError(t, err)

	id := client.id(rdmacm.PSTCP, verbs.RC)
	failing(0, "rdma_resolve_addr", func(ctx context.Context) error {
		return id.ResolveAddr(ctx, netip.AddrPort{}, info.Src, time.Second)
	})
	client.event(rdmacm.EventAddrResolved)
	failing(0, "rdma_resolve_route", id.ResolveRoute)
	client.event(rdmacm.EventRouteResolved)
	failing(0, "rdma_init_qp_attr", func(ctx context.Context) error {
		_, _, err := id.InitQPAttr(ctx, verbs.QPSInit)
		return err
	})
	failing(0, "rdma_connect", func(ctx context.Context) error { return id.Connect(ctx, rdmacm.ConnParam{}) })
	request := server.event(rdmacm.EventConnectRequest).ID
	failing(1, "rdma_accept", func(ctx context.Context) error { return request.Accept(ctx, rdmacm.ConnParam{}) })
	client.event(rdmacm.EventConnectResponse)
	failing(0, "rdma_establish", id.Establish)
	server.event(rdmacm.EventEstablished)
	failing(1, "rdma_notify", request.Notify)
	failing(0, "rdma_disconnect", id.Disconnect)
	server.event(rdmacm.EventDisconnected)
	failing(1, "rdma_destroy_id", request.Destroy)
	client.event(rdmacm.EventDisconnected)

	rejected := client.routed(rdmacm.PSTCP, verbs.RC, info.Src)
	noError(t, rejected.Connect(ctx, rdmacm.ConnParam{}))
	request = server.event(rdmacm.EventConnectRequest).ID
	failing(1, "rdma_reject", func(ctx context.Context) error { return request.Reject(ctx, nil) })

	other, err := client.CreateEventChannel(ctx)
	noError(t, err)
	member := client.id(rdmacm.PSUDP, verbs.UD)
	failing(0, "rdma_migrate_id", func(ctx context.Context) error { return member.Migrate(ctx, other) })
	noError(t, member.BindAddr(ctx, netip.MustParseAddrPort("192.0.2.1:0")))
	group := netip.MustParseAddr("224.0.0.9")
	failing(0, "rdma_join_multicast", func(ctx context.Context) error { return member.JoinMulticast(ctx, group, 1) })
	failing(0, "rdma_leave_multicast", func(ctx context.Context) error { return member.LeaveMulticast(ctx, group) })
	noError(t, member.Destroy(ctx))
	noError(t, other.Close(ctx))

	for _, verb := range fault.VerbNames {
		if strings.HasPrefix(verb, "rdma_") && !tried[verb] {
			t.Errorf("%s is not called", verb)
		}
	}
}

// A rule for a NIC finds the verbs of an identifier once that is bound to the NIC, in a session of
// all NICs.
func TestRulesFindTheNICOfAnIdentifier(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	c := newCaller(t, f, "")
	ctx := t.Context()
	noError(t, f.SetFaults(1, "fail rdma_create_id,rdma_bind_addr,rdma_listen EXDEV"))
	for addr, want := range map[string]error{"192.0.2.1:0": nil, "192.0.2.2:0": syscall.EXDEV, "0.0.0.0:0": nil} {
		id := c.id(rdmacm.PSTCP, verbs.RC)
		noError(t, id.BindAddr(ctx, netip.MustParseAddrPort(addr)))
		if err := id.Listen(ctx, 4); !errors.Is(err, want) {
			t.Errorf("listening at %s: %v, want %v", addr, err, want)
		}
	}
	if l := f.Server.Snapshot().Devices[1].Faults; len(l) != 1 || l[0].Matched != 1 || l[0].Acted != 1 {
		t.Errorf("counted %+v", l)
	}
}
