package verbstest

import (
	"context"
	"testing"

	"softroce/verbs"
)

// QKey is the Q_Key of the endpoints that Datagram creates.
const QKey = 0x11111111

// Datagram creates a UD endpoint in RTS.
func Datagram(t testing.TB, c *verbs.Context) *Endpoint {
	t.Helper()
	x := EndpointConfig{Type: verbs.UD}.New(t, c)
	if err := x.ToDatagram(t.Context(), QKey); err != nil {
		t.Fatalf("verbstest: UD QP: %v", err)
	}
	return x
}

// AH creates an address handle for a GID of the address family of x.Info.
func (x *Endpoint) AH(to verbs.GID) *verbs.AH {
	x.t.Helper()
	gids, err := x.Context.GIDs(context.Background())
	if err != nil {
		x.t.Fatalf("verbstest: GIDs: %v", err)
	}
	for _, e := range gids {
		if e.GID != x.Info.GID || e.RoCEv1 {
			continue
		}
		a, err := x.PD.CreateAH(context.Background(), verbs.AHAttr{GRH: verbs.GlobalRoute{DGID: to, SGIDIndex: uint8(e.Index), HopLimit: 64}})
		if err != nil {
			x.t.Fatalf("verbstest: AH: %v", err)
		}
		return a
	}
	x.t.Fatalf("verbstest: GID %v is gone", x.Info.GID)
	return nil
}
