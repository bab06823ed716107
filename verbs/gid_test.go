package verbs_test

import (
	"errors"
	"syscall"
	"testing"

	"softroce/internal/fabrictest"
	"softroce/nic"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// Queue pairs and address handles choose a GID of RoCE v2, and are refused one of RoCE v1.
func TestGIDsOfRoCEv1AreNotUsed(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{Identity: nic.Identity{RoCEv1GIDs: true}})
	a, b := f.Open(0), f.Open(1)
	gids, err := a.GIDs(t.Context())
	if err != nil || len(gids) != 6 {
		t.Fatalf("%d GIDs, %v", len(gids), err)
	}
	for i, g := range gids {
		if g.Index != i || g.RoCEv1 != (i%2 == 0) || g.GID != gids[i|1].GID {
			t.Errorf("GID %d: %+v", i, g)
		}
	}
	x, y := verbstest.EndpointConfig{}.New(t, a), verbstest.EndpointConfig{}.New(t, b)
	o := verbs.DefaultConnectOptions()
	o.GIDIndex = 2
	if err := x.Connect(t.Context(), y.Info, o); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("connecting with a GID of RoCE v1: %v", err)
	}
	o.GIDIndex = verbs.AnyGID
	if err := x.Connect(t.Context(), y.Info, o); err != nil {
		t.Error(err)
	}

	u, v := verbstest.Datagram(t, a), verbstest.Datagram(t, b)
	if _, err := u.PD.CreateAH(t.Context(), verbs.AHAttr{GRH: verbs.GlobalRoute{DGID: v.Info.GID, SGIDIndex: 2}}); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("an address handle with a GID of RoCE v1: %v", err)
	}
	u.AH(v.Info.GID)
	var grh verbs.GRH
	grh[20] = 0x45
	src, dst := u.Info.GID.Addr().As4(), v.Info.GID.Addr().As4()
	copy(grh[32:], src[:])
	copy(grh[36:], dst[:])
	reply, err := b.AHAttrFromWC(t.Context(), &verbs.WC{WCFlags: verbs.WCWithGRH}, grh[:])
	if err != nil || reply.GRH.SGIDIndex != 3 {
		t.Errorf("a reply has the GID at index %d, %v", reply.GRH.SGIDIndex, err)
	}
}
