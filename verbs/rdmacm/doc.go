// Package rdmacm connects queue pairs by IP address and port: the connection manager of librdmacm,
// for the queue pairs of package verbs.
//
// A Manager is a connection to the daemon's connection manager. Identifiers (ID) and event channels
// (EventChannel) come from it. As in rdma_cm, an operation of an ID starts something and an Event
// on its channel reports how it ended. A client does
//
//	m, err := rdmacm.Open(ctx)
//	ch, err := m.CreateEventChannel(ctx)
//	id, err := m.CreateID(ctx, ch, rdmacm.PSTCP, verbs.RC)
//	err = id.ResolveAddr(ctx, netip.AddrPort{}, server, time.Second) // EventAddrResolved
//	err = id.ResolveRoute(ctx)                                       // EventRouteResolved
//	qp, err := id.CreateQP(ctx, pd, attr)
//	err = id.Connect(ctx, rdmacm.ConnParam{})                        // EventConnectResponse
//	err = id.Establish(ctx)
//
// and a server BindAddr and Listen, then CreateQP and Accept on the ID of each EventConnectRequest.
//
// Every method may be called from several goroutines at once. Errors are those of package verbs.
package rdmacm
