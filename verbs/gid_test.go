package verbs_test

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"softroce/internal/fabrictest"
	"softroce/nic"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// Queue pairs and address handles that leave the choice to the library use a GID of RoCE v2.
func TestGIDsOfRoCEv1AreUsedOnlyIfChosen(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{Identity: nic.Identity{RoCEv1GIDs: nic.RoCEv1GIDsBefore}})
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
	if err := x.Connect(t.Context(), y.Info, verbs.DefaultConnectOptions()); err != nil {
		t.Error(err)
	}
	if attr, err := x.QP.Query(t.Context()); err != nil || gids[attr.AHAttr.GRH.SGIDIndex].RoCEv1 {
		t.Errorf("connected with the GID at index %d, %v", attr.AHAttr.GRH.SGIDIndex, err)
	}

	u, v := verbstest.Datagram(t, a), verbstest.Datagram(t, b)
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

// indexV1 returns the index of the GID of RoCE v1 with the address of g.
func indexV1(t *testing.T, c *verbs.Context, g verbs.GID) int {
	t.Helper()
	gids, err := c.GIDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(gids, func(e verbs.GIDEntry) bool { return e.GID == g && e.RoCEv1 })
	if i < 0 {
		t.Fatalf("no GID %v of RoCE v1 among %+v", g, gids)
	}
	return gids[i].Index
}

func TestConnectionOverRoCEv1(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	x, y := verbstest.EndpointConfig{}.New(t, f.Open(0)), verbstest.EndpointConfig{}.New(t, f.Open(1))
	for _, e := range [][2]*verbstest.Endpoint{{x, y}, {y, x}} {
		o := verbs.DefaultConnectOptions()
		o.GIDIndex = indexV1(t, e[0].Context, e[0].Info.GID)
		if err := e[0].Connect(t.Context(), e[1].Info, o); err != nil {
			t.Fatal(err)
		}
	}
	y.Recv(0, 0, 100)
	copy(x.Buf, "RoCE v1")
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SendFlags: verbs.SendSignaled, SGList: x.SGE(0, 7)})
	if wc := y.Completion(); string(y.Buf[:wc.ByteLen]) != "RoCE v1" {
		t.Errorf("received %q", y.Buf[:wc.ByteLen])
	}
	x.Completion()
}

// A reply to a datagram goes the way that it came.
func TestReplyToDatagramOfRoCEv1(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	u, v := verbstest.Datagram(t, f.Open(0)), verbstest.Datagram(t, f.Open(1))
	ah, err := u.PD.CreateAH(t.Context(), verbs.AHAttr{GRH: verbs.GlobalRoute{DGID: v.Info.GID, SGIDIndex: uint8(indexV1(t, u.Context, u.Info.GID))}})
	if err != nil {
		t.Fatal(err)
	}
	v.Recv(0, 0, 100)
	u.Send(verbs.SendWR{Opcode: verbs.WRSend, AH: ah, RemoteQPN: v.QPNum(), RemoteQKey: verbstest.QKey, SGList: u.SGE(0, 7)})
	wc := v.Completion()
	g := verbs.GRH(v.Buf[:verbs.GRHLen])
	if g.IsIP() || g.Src() != u.Info.GID.Addr() || g.Dst() != v.Info.GID.Addr() {
		t.Errorf("GRH % x", g)
	}
	reply, err := v.Context.AHAttrFromWC(t.Context(), &wc, g[:])
	if want := indexV1(t, v.Context, v.Info.GID); err != nil || int(reply.GRH.SGIDIndex) != want || reply.GRH.DGID != u.Info.GID {
		t.Errorf("reply to %v with the GID at index %d, want %d; %v", reply.GRH.DGID, reply.GRH.SGIDIndex, want, err)
	}
}

// With a persona whose table has RoCE v1, a link that does not carry it names the reason.
func TestGIDsOfRoCEv1OnLinkWithoutIt(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{Identity: nic.Identity{RoCEv1GIDs: nic.RoCEv1GIDsBefore}, IPOnly: true})
	x, y := verbstest.EndpointConfig{}.New(t, f.Open(0)), verbstest.EndpointConfig{}.New(t, f.Open(1))
	o := verbs.DefaultConnectOptions()
	o.GIDIndex = 2
	err := x.Connect(t.Context(), y.Info, o)
	if !errors.Is(err, syscall.EOPNOTSUPP) || !strings.Contains(err.Error(), "the GID at index 2 is of RoCE v1, which the link of nic0 does not carry") {
		t.Errorf("connecting with a GID of RoCE v1: %v", err)
	}
	_, err = x.PD.CreateAH(t.Context(), verbs.AHAttr{GRH: verbs.GlobalRoute{DGID: y.Info.GID, SGIDIndex: 2}})
	if !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("an address handle with a GID of RoCE v1: %v", err)
	}
}
