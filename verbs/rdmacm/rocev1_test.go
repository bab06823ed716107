package rdmacm_test

import (
	"sync/atomic"
	"testing"

	"softroce/internal/fabrictest"
	"softroce/packet"
	"softroce/verbs"
	"softroce/verbs/rdmacm"
	"softroce/verbs/verbstest"
	"softroce/wire"
)

// A peer whose connection manager uses RoCE v1 is answered in it, and the connection uses it too.
func TestServerAcceptsConnectionOfRoCEv1(t *testing.T) {
	var v1, v2 atomic.Int64
	f := fabrictest.New(t, fabrictest.Config{WrapLink: func(i int, inner wire.Link) wire.Link {
		if i == 0 {
			return &translator{Link: inner}
		}
		return &networkCounter{inner, &v1, &v2}
	}})
	client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
	_, at := server.listen(rdmacm.PSTCP, verbs.RC, "192.0.2.2:0")
	x, y := verbstest.EndpointConfig{}.New(t, f.Open(0)), verbstest.EndpointConfig{}.New(t, f.Open(1))
	id := client.routed(rdmacm.PSTCP, verbs.RC, at)
	noError(t, id.ModifyQP(t.Context(), x.QP, verbs.QPSInit))
	noError(t, id.Connect(t.Context(), rdmacm.ConnParam{QPNum: x.QPNum()}))
	accept(t, client, server, id, x, y)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SendFlags: verbs.SendSignaled, SGList: x.SGE(0, 7)})
	y.Completion()
	x.Completion() // the ACK has arrived
	if v1.Load() < 2 || v2.Load() != 0 {
		t.Errorf("the server sent %d packets of RoCE v1 and %d of RoCE v2; want a REP and an ACK of RoCE v1", v1.Load(), v2.Load())
	}
	a, err := y.QP.Query(t.Context())
	noError(t, err)
	gids, err := y.Context.GIDs(t.Context())
	noError(t, err)
	for _, g := range gids {
		if g.Index == int(a.AHAttr.GRH.SGIDIndex) && (!g.RoCEv1 || g.GID.Addr() != at.Addr()) {
			t.Errorf("the server's queue pair has GID %+v", g)
		}
	}
}

// A translator is the link of a NIC whose packets are of RoCE v1 on the wire.
type translator struct {
	wire.Link
	paths map[*wire.Path]*wire.Path
}

func (l *translator) Send(now int64, batch []wire.TxFrame) (int, error) {
	if l.paths == nil {
		l.paths = map[*wire.Path]*wire.Path{}
	}
	for i := range batch {
		p := l.paths[batch[i].Path]
		if p == nil {
			c := *batch[i].Path
			c.Network, p = packet.RoCEv1, &c
			l.paths[batch[i].Path], l.paths[p] = p, p
		}
		batch[i].Path = p
	}
	return l.Link.Send(now, batch)
}

func (l *translator) Receive(now int64, batch []wire.RxFrame) (int, error) {
	n, err := l.Link.Receive(now, batch)
	for i := range batch[:n] {
		batch[i].Network = packet.RoCEv2
	}
	return n, err
}

// A networkCounter counts the packets that its NIC sends.
type networkCounter struct {
	wire.Link
	v1, v2 *atomic.Int64
}

func (l *networkCounter) Send(now int64, batch []wire.TxFrame) (int, error) {
	for i := range batch { // before a peer can have it
		if batch[i].Path.Network == packet.RoCEv1 {
			l.v1.Add(1)
		} else {
			l.v2.Add(1)
		}
	}
	return l.Link.Send(now, batch)
}
