package rdmacm_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"softroce/verbs"
	"softroce/verbs/rdmacm"
	"softroce/verbs/verbstest"
)

// check ends an example that fails.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A server listens and a client connects, by address and port. WithDevice separates the two NICs,
// which belong to one daemon here.
func Example() {
	fabric, err := verbstest.NewFabric()
	check(err)
	defer fabric.Close()
	ctx := context.Background()
	x, y := fabric.Endpoint(0, verbstest.EndpointConfig{}), fabric.Endpoint(1, verbstest.EndpointConfig{})

	// The server.
	server, err := rdmacm.Open(ctx, rdmacm.WithConn(fabric.Dial()))
	check(err)
	defer server.Close()
	requests, err := server.CreateEventChannel(ctx)
	check(err)
	listener, err := server.CreateID(ctx, requests, rdmacm.PSTCP, verbs.RC)
	check(err)
	check(listener.BindAddr(ctx, netip.MustParseAddrPort("192.0.2.2:7000")))
	check(listener.Listen(ctx, 16))

	// The client resolves the address and the route.
	client, err := rdmacm.Open(ctx, rdmacm.WithDevice("nic0"), rdmacm.WithConn(fabric.Dial()))
	check(err)
	defer client.Close()
	events, err := client.CreateEventChannel(ctx)
	check(err)
	id, err := client.CreateID(ctx, events, rdmacm.PSTCP, verbs.RC)
	check(err)
	next := func(ch *rdmacm.EventChannel) *rdmacm.Event {
		e, err := ch.GetEvent(ctx)
		check(err)
		fmt.Println(e.Type)
		return e
	}
	check(id.ResolveAddr(ctx, netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.2:7000"), time.Second))
	next(events)
	check(id.ResolveRoute(ctx))
	next(events)

	// It connects a queue pair, and the server accepts.
	attr := func(e *verbstest.Endpoint) verbs.QPInitAttr {
		return verbs.QPInitAttr{
			QPType: verbs.RC, SendCQ: e.CQ, RecvCQ: e.CQ,
			Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64},
		}
	}
	qp, err := id.CreateQP(ctx, x.PD, attr(x))
	check(err)
	check(id.Connect(ctx, rdmacm.ConnParam{RetryCount: 7, RNRRetryCount: 7}))
	request := next(requests)
	accepted, err := request.ID.CreateQP(ctx, y.PD, attr(y))
	check(err)
	check(accepted.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{y.MR.SGE(0, 64)}}))
	check(request.ID.Accept(ctx, rdmacm.ConnParam{RNRRetryCount: 7}))
	next(events)
	check(id.Establish(ctx))
	next(requests)

	check(qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SendFlags: verbs.SendInline, Inline: []byte("connected")}))
	wc := y.Completion()
	fmt.Printf("%s\n", y.Buf[:wc.ByteLen])
	check(id.Disconnect(ctx))
	next(requests)
	// Output:
	// ADDR_RESOLVED
	// ROUTE_RESOLVED
	// CONNECT_REQUEST
	// CONNECT_RESPONSE
	// ESTABLISHED
	// connected
	// DISCONNECTED
}
