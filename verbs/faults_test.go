package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
	"softroce/verbs"
	"softroce/verbs/verbstest"
	"softroce/wire/fault"
)

// mustCreate returns what a call returns, which must not fail.
func mustCreate[T any](t *testing.T) func(o T, err error) T {
	return func(o T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
}

// callsOfVerbs returns, for each verb, calls that fail if the verb does. Those that succeed leave
// what the next ones need.
func callsOfVerbs(t *testing.T, f *verbstest.Fabric) map[string]func(context.Context) error {
	ctx := t.Context()
	c := f.Open(0)
	x := verbstest.EndpointConfig{}.New(t, c)
	ud := verbstest.EndpointConfig{Type: verbs.UD}.New(t, c)
	if err := ud.ToDatagram(ctx, 1); err != nil {
		t.Fatal(err)
	}
	gids := mustCreate[[]verbs.GIDEntry](t)(c.GIDs(ctx))
	peer := gids[len(gids)-1].GID
	group := verbs.GID{10: 0xff, 11: 0xff, 12: 224, 15: 9}
	pd := mustCreate[*verbs.PD](t)(c.AllocPD(ctx))
	mr := mustCreate[*verbs.MR](t)(x.PD.RegMR(ctx, x.Buf, verbs.AccessLocalWrite))
	mw := mustCreate[*verbs.MW](t)(x.PD.AllocMW(ctx, verbs.MWType1))
	dm := mustCreate[*verbs.DM](t)(c.AllocDM(ctx, 64, 0))
	xrcd := mustCreate[*verbs.XRCD](t)(c.OpenXRCD(ctx, nil, os.O_CREATE))
	channel := mustCreate[*verbs.CompChannel](t)(c.CreateCompChannel(ctx))
	cq := mustCreate[*verbs.CQ](t)(c.CreateCQ(ctx, 4, nil))
	srq := mustCreate[*verbs.SRQ](t)(x.PD.CreateSRQ(ctx, verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}))
	qp := verbs.QPInitAttr{QPType: verbs.RC, SendCQ: x.CQ, RecvCQ: x.CQ, Cap: verbs.QPCap{MaxSendWR: 1}}
	pair := mustCreate[*verbs.QP](t)(x.PD.CreateQP(ctx, qp))
	err := func(_ any, err error) error { return err }
	return map[string]func(context.Context) error{
		"open_device": func(ctx context.Context) error {
			c, err := verbs.Open(ctx, "nic0", verbs.WithConn(f.Dial()))
			if err == nil {
				c.Close()
			}
			return err
		},
		"query_device": func(ctx context.Context) error { return err(c.QueryDevice(ctx)) },
		"query_port":   func(ctx context.Context) error { return err(c.QueryPort(ctx)) },
		"query_gid": func(ctx context.Context) error { // not from the copy of the table
			other, err := verbs.Open(ctx, "nic0", verbs.WithConn(f.Dial()))
			if err == nil {
				_, err = other.GIDs(ctx)
				other.Close()
			}
			return err
		},
		"query_pkey": func(ctx context.Context) error { return err(c.PKeys(ctx)) },
		"alloc_pd":   func(ctx context.Context) error { return err(c.AllocPD(ctx)) },
		"dealloc_pd": pd.Close,
		"reg_mr":     func(ctx context.Context) error { return err(x.PD.RegMR(ctx, x.Buf, verbs.AccessLocalWrite)) },
		"dereg_mr":   mr.Close,
		"alloc_mw":   func(ctx context.Context) error { return err(x.PD.AllocMW(ctx, verbs.MWType1)) },
		"dealloc_mw": mw.Close,
		"alloc_dm":   func(ctx context.Context) error { return err(c.AllocDM(ctx, 64, 0)) },
		"query_rt_values": func(ctx context.Context) error {
			_, _, err := c.QueryClock(ctx)
			return err
		},
		"memcpy_to_dm":   func(ctx context.Context) error { return dm.CopyTo(ctx, 0, make([]byte, 64)) },
		"memcpy_from_dm": func(ctx context.Context) error { return dm.CopyFrom(ctx, make([]byte, 64), 0) },
		"free_dm":        dm.Close,
		"open_xrcd":      func(ctx context.Context) error { return err(c.OpenXRCD(ctx, nil, os.O_CREATE)) },
		"close_xrcd":     xrcd.Close,
		"create_ah": func(ctx context.Context) error {
			return err(x.PD.CreateAH(ctx, verbs.AHAttr{GRH: verbs.GlobalRoute{DGID: peer}}))
		},
		"create_comp_channel":  func(ctx context.Context) error { return err(c.CreateCompChannel(ctx)) },
		"destroy_comp_channel": channel.Close,
		"create_cq":            func(ctx context.Context) error { return err(c.CreateCQ(ctx, 4, nil)) },
		"resize_cq":            func(ctx context.Context) error { return cq.Resize(ctx, 16) },
		"destroy_cq":           cq.Close,
		"create_srq":           func(ctx context.Context) error { return err(x.PD.CreateSRQ(ctx, verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})) },
		"modify_srq": func(ctx context.Context) error {
			return srq.Modify(ctx, verbs.SRQAttr{SRQLimit: 1}, verbs.SRQMaskLimit)
		},
		"query_srq":    func(ctx context.Context) error { return err(srq.Query(ctx)) },
		"destroy_srq":  srq.Close,
		"create_qp":    func(ctx context.Context) error { return err(x.PD.CreateQP(ctx, qp)) },
		"modify_qp":    func(ctx context.Context) error { return pair.ToInit(ctx, 0) },
		"query_qp":     func(ctx context.Context) error { return err(pair.Query(ctx)) },
		"destroy_qp":   pair.Close,
		"attach_mcast": func(ctx context.Context) error { return ud.AttachMcast(ctx, group) },
		"detach_mcast": func(ctx context.Context) error { return ud.DetachMcast(ctx, group) },
	}
}

// Every verb of the Go API fails with the error of its rule, and then not. The client of another
// NIC, and a rule for another client, are not concerned.
func TestVerbsFailByRule(t *testing.T) {
	f := verbstest.New(t)
	calls := callsOfVerbs(t, f)
	ctx := t.Context()
	other := f.Open(1)
	for _, verb := range fault.VerbNames {
		call := calls[verb]
		if strings.HasPrefix(verb, "rdma_") {
			continue // package rdmacm
		}
		if call == nil {
			// Handles of addresses are shared and closed later; package verbs lacks the others.
			if !slices.Contains([]string{"destroy_ah", "rereg_mr", "import_mr", "import_dm"}, verb) {
				t.Errorf("%s is not called", verb)
			}
			continue
		}
		f.SetFaults(0, "fail "+verb+" EXDEV")
		if err := call(ctx); !errors.Is(err, syscall.EXDEV) {
			t.Errorf("%s: %v, want EXDEV", verb, err)
		}
		if pd, err := other.AllocPD(ctx); err != nil || pd.Close(ctx) != nil {
			t.Errorf("%s: another NIC: %v", verb, err)
		}
		f.SetFaults(0, "fail "+verb+" EXDEV client 1,other")
		if err := call(ctx); err != nil {
			t.Errorf("%s with a rule for another client: %v", verb, err)
		}
	}
}

// A verb fails with every error number that a rule can name.
func TestVerbFailsWithEveryError(t *testing.T) {
	f := verbstest.New(t)
	c := f.Open(0)
	for e := syscall.Errno(1); e < 134; e++ {
		name := unix.ErrnoName(e)
		if name == "" {
			continue
		}
		f.SetFaults(0, "fail alloc_pd "+name)
		if _, err := c.AllocPD(t.Context()); !errors.Is(err, e) {
			t.Errorf("%v, want %s", err, name)
		}
	}
}

// sendOf is a work request for each opcode of rules.
func sendOf(opcode string, x, y *verbstest.Endpoint, mw *verbs.MW) verbs.SendWR {
	o := map[string]verbs.WROpcode{"send": verbs.WRSend, "recv": verbs.WRSend, "rdma_write": verbs.WRRDMAWrite, "rdma_read": verbs.WRRDMARead,
		"comp_swap": verbs.WRAtomicCmpAndSwp, "fetch_add": verbs.WRAtomicFetchAndAdd, "bind_mw": verbs.WRBindMW, "local_inv": verbs.WRLocalInv,
		"flush": verbs.WRFlush, "atomic_write": verbs.WRAtomicWrite}[opcode]
	wr := verbs.SendWR{WRID: 2, Opcode: o, SendFlags: verbs.SendSignaled, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}
	switch o {
	case verbs.WRBindMW:
		wr.BindMW = &verbs.BindMW{MW: mw}
	case verbs.WRLocalInv:
		wr.InvalidateRKey = mw.RKey()
	case verbs.WRFlush:
		wr.FlushLength = 8
	default:
		wr.SGList = x.SGE(0, 8)
	}
	return wr
}

// Every work request completes with every error that it can have. Its queue pair is in ERR, and
// another one of the same client goes on.
func TestWorkRequestsFailByRule(t *testing.T) {
	f := verbstest.New(t)
	a, b := f.Open(0), f.Open(1)
	config := verbstest.EndpointConfig{BufSize: 4096}
	u, v := config.Connect(t, a, b)
	tried := 0
	for _, name := range slices.Sorted(maps.Keys(ib.WCStatuses)) {
		status := verbs.WCStatus(ib.WCStatuses[name])
		for _, opcode := range []string{"send", "rdma_write", "rdma_read", "comp_swap", "fetch_add", "bind_mw", "local_inv", "flush", "atomic_write", "recv"} {
			rule := fmt.Sprintf("fail completion %s vendor_err 0x1234 opcode %s qp ", name, opcode)
			if _, err := fault.Parse(strings.NewReader(rule + "1")); err != nil {
				continue
			}
			tried++
			x, y := config.Connect(t, a, b)
			mw := mustCreate[*verbs.MW](t)(x.PD.AllocMW(t.Context(), verbs.MWType2))
			fails, nic, id := x, 0, uint64(2)
			if opcode == "recv" {
				fails, nic, id = y, 1, 1
			}
			f.SetFaults(nic, rule+fmt.Sprint(fails.QPNum()))
			y.Recv(1, 0, 8)
			x.Send(sendOf(opcode, x, y, mw))
			if wc := fails.Failure(status); wc.VendorErr != 0x1234 || wc.WRID != id {
				t.Errorf("%s: %+v", rule, wc)
			}
			if q, err := fails.Query(t.Context()); err != nil || q.QPState != verbs.QPSErr {
				t.Errorf("%s: state %v, %v", rule, q.QPState, err)
			}
			if opcode == "recv" {
				x.Failure(verbs.WCRemOpErr)
			}
			u.Send(sendOf("rdma_write", u, v, nil))
			u.Completion()
			f.SetFaults(nic, "")
			for _, e := range []*verbstest.Endpoint{x, y} {
				for _, o := range []interface{ Close(context.Context) error }{e.QP, e.MR, e.CQ} {
					if err := o.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	if tried < 80 {
		t.Errorf("tried only %d pairs of an opcode and a status", tried)
	}
}
