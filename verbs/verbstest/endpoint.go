package verbstest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"softroce/verbs"
)

// An Endpoint is a queue pair with a PD, a CQ and a memory region.
type Endpoint struct {
	*verbs.QP
	Context *verbs.Context
	PD      *verbs.PD
	CQ      *verbs.CQ // of both queues
	MR      *verbs.MR // all of Buf, with all access rights
	Buf     []byte    // BufSize bytes that the NIC has mapped
	Info    verbs.Info

	t testing.TB
}

// BufSize is the size of Endpoint.Buf in bytes, unless EndpointConfig.BufSize says otherwise.
const BufSize = 64 << 10

// EndpointConfig describes endpoints. The zero value gives those of ConnectedRC.
type EndpointConfig struct {
	Type    verbs.QPType // RC unless set
	Cap     verbs.QPCap  // if zero: 64 work requests of 4 SGEs in each direction, 64 bytes inline
	CQE     int          // 256 unless set
	BufSize int
	Process bool // Buf is ordinary memory of the process, which the NIC does not map
	SigAll  bool
	IPv6    bool

	// Options, if not nil, changes the options of QP.Connect on both sides.
	Options func(*verbs.ConnectOptions)
	// PSN is the first PSN of both sides; random unless set.
	PSN *uint32
}

// ConnectedRC returns two connected RC endpoints in RTS.
func ConnectedRC(t testing.TB, a, b *verbs.Context) (x, y *Endpoint) {
	t.Helper()
	return EndpointConfig{}.Connect(t, a, b)
}

// Connect creates an endpoint on each of two contexts, which may be the same, and connects them.
func (e EndpointConfig) Connect(t testing.TB, a, b *verbs.Context) (x, y *Endpoint) {
	t.Helper()
	x, y = e.New(t, a), e.New(t, b)
	e.Join(t, x, y)
	return x, y
}

// New creates an endpoint that is not connected.
func (e EndpointConfig) New(t testing.TB, c *verbs.Context) *Endpoint {
	t.Helper()
	e.defaults()
	x := &Endpoint{Context: c, t: t}
	var err error
	must := func(what string) {
		t.Helper()
		if err != nil {
			t.Fatalf("verbstest: %s: %v", what, err)
		}
	}
	x.PD, err = c.AllocPD(t.Context())
	must("PD")
	x.CQ, err = c.CreateCQ(t.Context(), e.CQE, nil)
	must("CQ")
	if e.Process {
		x.Buf = make([]byte, e.BufSize)
	} else {
		var buf *verbs.Buffer
		buf, err = c.AllocBuffer(e.BufSize)
		must("buffer")
		x.Buf = buf.Bytes()
	}
	x.MR, err = x.PD.RegMR(t.Context(), x.Buf, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic)
	must("MR")
	x.QP, err = x.PD.CreateQP(t.Context(), verbs.QPInitAttr{
		QPType: e.Type, SendCQ: x.CQ, RecvCQ: x.CQ, Cap: e.Cap, SQSigAll: e.SigAll,
	})
	must("QP")
	if e.PSN != nil {
		x.QP.SetPSN(*e.PSN)
	}
	gid := verbs.AnyGID
	if e.IPv6 {
		var gids []verbs.GIDEntry
		gids, err = c.GIDs(t.Context())
		must("GIDs")
		for _, g := range gids {
			if a := netip.AddrFrom16(g.GID); !g.RoCEv1 && a.IsGlobalUnicast() && !a.Is4In6() {
				gid = g.Index
			}
		}
	}
	x.Info, err = x.QP.Info(t.Context(), gid)
	must("info")
	return x
}

func (e *EndpointConfig) defaults() {
	if e.Type == 0 {
		e.Type = verbs.RC
	}
	if e.Cap == (verbs.QPCap{}) {
		e.Cap = verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}
	}
	if e.CQE == 0 {
		e.CQE = 256
	}
	if e.BufSize == 0 {
		e.BufSize = BufSize
	}
}

// Join connects two endpoints.
func (e EndpointConfig) Join(t testing.TB, x, y *Endpoint) {
	t.Helper()
	o := verbs.DefaultConnectOptions()
	if e.Options != nil {
		e.Options(&o)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := x.Connect(ctx, y.Info, o); err != nil {
		t.Fatalf("verbstest: connect: %v", err)
	}
	if err := y.Connect(ctx, x.Info, o); err != nil {
		t.Fatalf("verbstest: connect: %v", err)
	}
}

// completionTimeout bounds the wait for a completion.
const completionTimeout = 30 * time.Second

// Completions waits for n completions of any status and returns them in order.
func (x *Endpoint) Completions(n int) []verbs.WC {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	wc := make([]verbs.WC, n)
	for got := 0; got < n; {
		if err := x.CQ.Wait(ctx); err != nil {
			x.t.Fatalf("verbstest: QP %#x: %d of %d completions: %v", x.QPNum(), got, n, err)
		}
		k, err := x.CQ.Poll(wc[got:])
		if err != nil {
			x.t.Fatalf("verbstest: QP %#x: poll: %v", x.QPNum(), err)
		}
		got += k
	}
	return wc
}

// Completion waits for a successful completion and returns it. Any other status fails the test.
func (x *Endpoint) Completion() verbs.WC {
	x.t.Helper()
	wc := x.Completions(1)[0]
	if err := wc.Err(); err != nil {
		x.t.Fatalf("verbstest: %v", err)
	}
	return wc
}

// Failure waits for a completion with status want and returns it. Any other status fails the test.
func (x *Endpoint) Failure(want verbs.WCStatus) verbs.WC {
	x.t.Helper()
	wc := x.Completions(1)[0]
	if wc.Status != want {
		x.t.Fatalf("verbstest: QP %#x: work request %#x completed with %q, want %q", wc.QPNum, wc.WRID, wc.Status, want)
	}
	return wc
}

// Send posts a send work request, signaled unless wr has flags other than SendInline.
func (x *Endpoint) Send(wr verbs.SendWR) {
	x.t.Helper()
	if wr.SendFlags&^verbs.SendInline == 0 {
		wr.SendFlags |= verbs.SendSignaled
	}
	if err := x.PostSend(wr); err != nil {
		x.t.Fatalf("verbstest: post send: %v", err)
	}
}

// Recv posts a receive of n bytes of Buf from offset on.
func (x *Endpoint) Recv(id uint64, offset, n int) {
	x.t.Helper()
	wr := verbs.RecvWR{WRID: id, SGList: []verbs.SGE{x.MR.SGE(offset, n)}}
	if n == 0 {
		wr.SGList = nil
	}
	if err := x.PostRecv(wr); err != nil {
		x.t.Fatalf("verbstest: post receive: %v", err)
	}
}

// SGE returns a list of one element for n bytes of Buf from offset on, nil for n = 0.
func (x *Endpoint) SGE(offset, n int) []verbs.SGE {
	if n == 0 {
		return nil
	}
	return []verbs.SGE{x.MR.SGE(offset, n)}
}
