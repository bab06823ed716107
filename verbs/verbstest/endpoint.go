package verbstest

import (
	"context"
	"testing"
	"time"

	"softroce/verbs"
)

// An End is one end of a connection, with what a test usually needs around it.
type Endpoint struct {
	*verbs.QP
	Context *verbs.Context
	PD      *verbs.PD
	CQ      *verbs.CQ // of both queues
	MR      *verbs.MR // all of Buf, with every right
	Buf     []byte    // BufSize bytes that the NIC has mapped
	Info    verbs.Info

	t testing.TB
}

// BufSize is the size of Endpoint.Buf in bytes, unless EndpointConfig.BufSize says otherwise.
const BufSize = 64 << 10

// Ends says what Connect makes. The zero value gives what ConnectedRC does.
type EndpointConfig struct {
	Type    verbs.QPType // RC unless set
	Cap     verbs.QPCap  // 64 work requests of 4 SGEs each way and 64 bytes inline where it is zero
	CQE     int          // 256 unless set
	BufSize int
	Process bool // Buf is ordinary memory, which the NIC reaches for in the process
	SigAll  bool
	IPv6    bool

	// Options, if not nil, changes what is given to QP.Connect, for both ends.
	Options func(*verbs.ConnectOptions)
	// PSN of the first packet, of both ends; random unless set.
	PSN *uint32
}

// ConnectedRC returns the two ends of an RC connection in RTS.
func ConnectedRC(t testing.TB, a, b *verbs.Context) (x, y *Endpoint) {
	t.Helper()
	return EndpointConfig{}.Connect(t, a, b)
}

// Connect makes an end on each of two contexts, which may be the same, and connects them.
func (e EndpointConfig) Connect(t testing.TB, a, b *verbs.Context) (x, y *Endpoint) {
	t.Helper()
	x, y = e.New(t, a), e.New(t, b)
	e.Join(t, x, y)
	return x, y
}

// New makes an end that is not connected yet.
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
		gid = 2 // the addresses follow the link-local entry: IPv4, IPv6
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

// Join connects two ends.
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

// completionTimeout is how long a test waits for a completion before it gives up.
const completionTimeout = 30 * time.Second

// Completions waits for n completions, of whatever status, and returns them in order.
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

// Completion waits for one completion, which must be a success, and returns it.
func (x *Endpoint) Completion() verbs.WC {
	x.t.Helper()
	wc := x.Completions(1)[0]
	if err := wc.Err(); err != nil {
		x.t.Fatalf("verbstest: %v", err)
	}
	return wc
}

// Failure waits for one completion, which must have the given status.
func (x *Endpoint) Failure(want verbs.WCStatus) verbs.WC {
	x.t.Helper()
	wc := x.Completions(1)[0]
	if wc.Status != want {
		x.t.Fatalf("verbstest: QP %#x: work request %#x ended with %q instead of %q", wc.QPNum, wc.WRID, wc.Status, want)
	}
	return wc
}

// Send posts a send work request, signaled unless it has flags of its own.
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

// SGE names n bytes of Buf from offset on; none for n = 0.
func (x *Endpoint) SGE(offset, n int) []verbs.SGE {
	if n == 0 {
		return nil
	}
	return []verbs.SGE{x.MR.SGE(offset, n)}
}
