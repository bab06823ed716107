package verbs_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"softroce/attach"
	"softroce/internal/fabrictest"
	"softroce/nic"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// small has limits that a test can reach. Ring sizes are powers of two, as granted sizes are.
var small = nic.Limits{MaxQP: 3, MaxQPWR: 16, MaxSGE: 5, MaxInline: 100, MaxCQ: 2, MaxCQE: 64, MaxMR: 2, MaxPD: 3, MaxAH: 2,
	MaxSRQ: 2, MaxSRQWR: 32, MaxSRQSGE: 4, MaxMcastGroups: 3, MaxMcastQPs: 2, MaxMW: 2, MaxXRCD: 2, MaxRDAtomic: 9}

// A device grants as many objects as it reports; one more is ENOMEM until another is closed.
func TestObjectLimitsAreReportedAndEnforced(t *testing.T) {
	type closer interface{ Close(context.Context) error }
	for _, c := range []struct {
		name     string
		limit    int
		reported func(*verbs.DeviceAttr) uint32
		before   int // objects that exist already
		make     func(e *verbstest.Endpoint) (closer, error)
	}{
		{"PD", small.MaxPD, func(a *verbs.DeviceAttr) uint32 { return a.MaxPD }, 1,
			func(e *verbstest.Endpoint) (closer, error) { return e.Context.AllocPD(t.Context()) }},
		{"CQ", small.MaxCQ, func(a *verbs.DeviceAttr) uint32 { return a.MaxCQ }, 1,
			func(e *verbstest.Endpoint) (closer, error) { return e.Context.CreateCQ(t.Context(), 4, nil) }},
		{"MR", small.MaxMR, func(a *verbs.DeviceAttr) uint32 { return a.MaxMR }, 1,
			func(e *verbstest.Endpoint) (closer, error) { return e.PD.RegMR(t.Context(), e.Buf[:64], 0) }},
		{"MW", small.MaxMW, func(a *verbs.DeviceAttr) uint32 { return a.MaxMW }, 0,
			func(e *verbstest.Endpoint) (closer, error) { return e.PD.AllocMW(t.Context(), verbs.MWType2) }},
		{"QP", small.MaxQP, func(a *verbs.DeviceAttr) uint32 { return a.MaxQP }, 1,
			func(e *verbstest.Endpoint) (closer, error) {
				return e.PD.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.UD, SendCQ: e.CQ, RecvCQ: e.CQ})
			}},
		{"SRQ", small.MaxSRQ, func(a *verbs.DeviceAttr) uint32 { return a.MaxSRQ }, 0,
			func(e *verbstest.Endpoint) (closer, error) {
				return e.PD.CreateSRQ(t.Context(), verbs.SRQAttr{MaxWR: 1, MaxSGE: 1})
			}},
		{"AH", small.MaxAH, func(a *verbs.DeviceAttr) uint32 { return a.MaxAH }, 0,
			func(e *verbstest.Endpoint) (closer, error) {
				return e.PD.CreateAH(t.Context(), verbs.AHAttr{GRH: verbs.GlobalRoute{DGID: e.Info.GID, SGIDIndex: 1}})
			}},
		{"XRCD", small.MaxXRCD, nil, 0, // verbs has no place to report it
			func(e *verbstest.Endpoint) (closer, error) { return e.Context.OpenXRCD(t.Context(), nil, os.O_CREATE) }},
	} {
		limited := func(t *testing.T, config fabrictest.Config) {
			f := fabrictest.New(t, config)
			a := f.Open(0)
			e := smallEndpoint.New(t, a)
			d, err := a.QueryDevice(t.Context())
			if err != nil || c.reported != nil && c.reported(&d) != uint32(c.limit) {
				t.Fatalf("reported limit %d, %v", c.reported(&d), err)
			}
			var last closer
			for range c.limit - c.before {
				if last, err = c.make(e); err != nil {
					t.Fatalf("creating within the limit: %v", err)
				}
			}
			if _, err := c.make(e); !errors.Is(err, syscall.ENOMEM) {
				t.Fatalf("creating beyond the limit: %v", err)
			}
			if err := last.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := c.make(e); err != nil {
				t.Errorf("creating after one was closed: %v", err)
			}
		}
		t.Run(c.name+"s of the device", func(t *testing.T) { limited(t, fabrictest.Config{DeviceLimits: small}) })
		if c.name != "XRCD" {
			t.Run(c.name+"s of the client", func(t *testing.T) { limited(t, fabrictest.Config{Limits: smallClient}) })
		}
	}
}

// smallClient is small for each client.
var smallClient = attach.Limits{QPs: small.MaxQP, CQs: small.MaxCQ, MRs: small.MaxMR, PDs: small.MaxPD, AHs: small.MaxAH, SRQs: small.MaxSRQ}

// What a program may do in bytes and in multicast groups is in its device's attributes, too.
func TestLimitsOfClientAreReported(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{Limits: attach.Limits{Registered: 1 << 20, Rings: 1 << 20, Groups: 5, QPs: 10}})
	c := f.Open(0)
	d, err := c.QueryDevice(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d.MaxMRSize != 1<<20 || d.MaxMcastGrp != 5 || d.MaxMcastQPAttach != 5 || d.MaxTotalMcastQPAttach != 5 || d.MaxResRdAtom != 10*d.MaxQPRdAtom {
		t.Errorf("attributes %+v", d)
	}
	q, err := c.CreateCQ(t.Context(), int(d.MaxCQE), nil)
	if err != nil {
		t.Fatalf("CQ of the reported %d entries: %v", d.MaxCQE, err)
	}
	q.Close(t.Context())
	if _, err := c.CreateCQ(t.Context(), 2*int(d.MaxCQE), nil); err == nil {
		t.Errorf("CQ of twice the reported %d entries was created", d.MaxCQE)
	}
}

// It holds for memory of the process and for DMA buffers.
func TestLimitOfTheSizeOfARegion(t *testing.T) {
	const most = 8192
	f := fabrictest.New(t, fabrictest.Config{DeviceLimits: nic.Limits{MaxMRSize: most}})
	c := f.Open(0)
	if d, err := c.QueryDevice(t.Context()); err != nil || d.MaxMRSize != most {
		t.Errorf("reports %d bytes (%v)", d.MaxMRSize, err)
	}
	pd, err := c.AllocPD(t.Context())
	ok(t, err)
	buf, file := make([]byte, most+1), newFile(t, 2*most)
	for what, register := range map[string]func(n int) (*verbs.MR, error){
		"memory": func(n int) (*verbs.MR, error) { return pd.RegMR(t.Context(), buf[:n], verbs.AccessLocalWrite) },
		"a DMA buffer": func(n int) (*verbs.MR, error) {
			return pd.RegDMABuf(t.Context(), file, 0, uint64(n), 0, verbs.AccessLocalWrite)
		},
	} {
		if _, err := register(most + 1); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s of %d bytes: error %v, want EINVAL", what, most+1, err)
		}
		m, err := register(most)
		if err != nil {
			t.Errorf("%s of %d bytes: %v", what, most, err)
			continue
		}
		ok(t, m.Close(t.Context()))
	}
}

var smallEndpoint = verbstest.EndpointConfig{CQE: 16, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 32}}

// A device grants the sizes that it reports; one more is EINVAL.
func TestSizeLimitsAreReportedAndEnforced(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{DeviceLimits: small})
	a := f.Open(0)
	e := smallEndpoint.New(t, a)
	d, err := a.QueryDevice(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	qp := func(set func(c *verbs.QPCap, n uint32)) func(n uint32) error {
		return func(n uint32) error {
			c := verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
			set(&c, n)
			q, err := e.PD.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: e.CQ, RecvCQ: e.CQ, Cap: c})
			if err == nil {
				err = q.Close(t.Context())
			}
			return err
		}
	}
	srq := func(set func(s *verbs.SRQAttr, n uint32)) func(n uint32) error {
		return func(n uint32) error {
			s := verbs.SRQAttr{MaxWR: 1, MaxSGE: 1}
			set(&s, n)
			q, err := e.PD.CreateSRQ(t.Context(), s)
			if err == nil {
				err = q.Close(t.Context())
			}
			return err
		}
	}
	for _, c := range []struct {
		name            string
		limit, reported uint32
		try             func(n uint32) error
	}{
		{"max_cqe", uint32(small.MaxCQE), d.MaxCQE, func(n uint32) error {
			q, err := a.CreateCQ(t.Context(), int(n), nil)
			if err == nil {
				err = q.Close(t.Context())
			}
			return err
		}},
		{"max_cqe of a resize", uint32(small.MaxCQE), d.MaxCQE, func(n uint32) error { return e.CQ.Resize(t.Context(), int(n)) }},
		{"max_qp_wr, sends", uint32(small.MaxQPWR), d.MaxQPWR, qp(func(c *verbs.QPCap, n uint32) { c.MaxSendWR = n })},
		{"max_qp_wr, receives", uint32(small.MaxQPWR), d.MaxQPWR, qp(func(c *verbs.QPCap, n uint32) { c.MaxRecvWR = n })},
		{"max_sge, sends", uint32(small.MaxSGE), d.MaxSGE, qp(func(c *verbs.QPCap, n uint32) { c.MaxSendSGE = n })},
		{"max_sge, receives", uint32(small.MaxSGE), d.MaxSGE, qp(func(c *verbs.QPCap, n uint32) { c.MaxRecvSGE = n })},
		{"max_inline_data", uint32(small.MaxInline), d.MaxInlineData, qp(func(c *verbs.QPCap, n uint32) { c.MaxInlineData = n })},
		{"max_srq_wr", uint32(small.MaxSRQWR), d.MaxSRQWR, srq(func(s *verbs.SRQAttr, n uint32) { s.MaxWR = n })},
		{"max_srq_sge", uint32(small.MaxSRQSGE), d.MaxSRQSGE, srq(func(s *verbs.SRQAttr, n uint32) { s.MaxSGE = n })},
		{"max_qp_init_rd_atom", uint32(small.MaxRDAtomic), d.MaxQPInitRdAtom, func(n uint32) error {
			return connectWith(t, f, func(o *verbs.ConnectOptions) { o.MaxRdAtomic = uint8(n) })
		}},
		{"max_qp_rd_atom", uint32(small.MaxRDAtomic), d.MaxQPRdAtom, func(n uint32) error {
			return connectWith(t, f, func(o *verbs.ConnectOptions) { o.MaxDestRdAtomic = uint8(n) })
		}},
	} {
		if c.reported != c.limit {
			t.Errorf("%s: reported as %d, want %d", c.name, c.reported, c.limit)
		}
		if err := c.try(c.limit); err != nil {
			t.Errorf("%s: %d, the limit: %v", c.name, c.limit, err)
		}
		if err := c.try(c.limit + 1); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %d, beyond the limit: %v", c.name, c.limit+1, err)
		}
	}
}

// connectWith connects a queue pair of the second NIC to itself.
func connectWith(t *testing.T, f *fabrictest.Fabric, set func(*verbs.ConnectOptions)) error {
	c := f.Open(1)
	defer c.Close()
	e := smallEndpoint.New(t, c)
	o := verbs.DefaultConnectOptions()
	o.MaxRdAtomic, o.MaxDestRdAtomic = 1, 1
	set(&o)
	return e.Connect(context.Background(), e.Info, o)
}

func TestMulticastLimitsAreEnforced(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{DeviceLimits: small})
	a := f.Open(0)
	d, err := a.QueryDevice(t.Context())
	if err != nil || d.MaxMcastGrp != 3 || d.MaxMcastQPAttach != 2 || d.MaxTotalMcastQPAttach != 6 {
		t.Fatalf("max_mcast_grp %d, max_mcast_qp_attach %d, max_total_mcast_qp_attach %d, %v", d.MaxMcastGrp, d.MaxMcastQPAttach, d.MaxTotalMcastQPAttach, err)
	}
	config := smallEndpoint
	config.Type = verbs.UD
	e := config.New(t, a)
	qps := []*verbs.QP{e.QP}
	for range 2 {
		q, err := e.PD.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.UD, SendCQ: e.CQ, RecvCQ: e.CQ})
		if err != nil {
			t.Fatal(err)
		}
		qps = append(qps, q)
	}
	group := func(n byte) verbs.GID { return verbs.GroupGID(netip.AddrFrom4([4]byte{239, 0, 0, n})) }
	for i := range byte(3) {
		if err := qps[0].AttachMcast(t.Context(), group(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := qps[0].AttachMcast(t.Context(), group(3)); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("joining a fourth group: %v", err)
	}
	if err := qps[1].AttachMcast(t.Context(), group(0)); err != nil {
		t.Fatal(err)
	}
	if err := qps[2].AttachMcast(t.Context(), group(0)); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("attaching a third QP to a group: %v", err)
	}
}
