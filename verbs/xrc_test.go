package verbs_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// initiator returns an endpoint with an XRC initiator.
func initiator(t *testing.T, c *verbs.Context) (*verbstest.Endpoint, *verbs.QP) {
	t.Helper()
	x := verbstest.EndpointConfig{}.New(t, c)
	q, err := x.PD.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.XRCSend, SendCQ: x.CQ, Cap: verbs.QPCap{MaxSendWR: 16, MaxSendSGE: 2}})
	if err != nil {
		t.Fatal(err)
	}
	return x, q
}

// One connection reaches two programs of the other machine, which share an XRC domain through a
// file.
func TestXRCBetweenPrograms(t *testing.T) {
	f := verbstest.New(t)
	a, b, c := f.Open(0), f.Open(1), f.Open(1)
	file, err := os.Create(filepath.Join(t.TempDir(), "domain"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	type program struct {
		*verbstest.Endpoint
		srq *verbs.SRQ
	}
	var programs []program
	var tgt *verbs.QP
	for i, ctx := range []*verbs.Context{b, c} {
		d, err := ctx.OpenXRCD(t.Context(), file, os.O_CREATE)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if tgt, err = d.CreateQP(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		y := verbstest.EndpointConfig{}.New(t, ctx)
		s, err := y.PD.CreateXRCSRQ(t.Context(), verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}, d, y.CQ)
		if err != nil {
			t.Fatal(err)
		}
		if s.Number() == 0 {
			t.Fatal("the SRQ has no number")
		}
		programs = append(programs, program{y, s})
	}
	x, ini := initiator(t, a)
	connect(t, ini, tgt)
	for i, y := range programs {
		fill(x.Buf[:20000], uint64(i))
		if err := y.srq.PostRecv(verbs.RecvWR{WRID: 8, SGList: y.SGE(0, 20000)}); err != nil {
			t.Fatal(err)
		}
		if err := ini.PostSend(verbs.SendWR{Opcode: verbs.WRSendWithImm, Imm: 3, SendFlags: verbs.SendSignaled,
			SGList: x.SGE(0, 20000), RemoteSRQN: y.srq.Number()}); err != nil {
			t.Fatal(err)
		}
		x.Completion()
		if wc := y.Completion(); wc.WRID != 8 || wc.ByteLen != 20000 || wc.Imm != 3 || wc.QPNum != tgt.QPNum() {
			t.Fatalf("completion %+v", wc)
		}
		same(t, "SEND", y.Buf[:20000], x.Buf[:20000])
		if err := ini.PostSend(verbs.SendWR{Opcode: verbs.WRRDMARead, SendFlags: verbs.SendSignaled, SGList: x.SGE(30000, 20000),
			RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(), RemoteSRQN: y.srq.Number()}); err != nil {
			t.Fatal(err)
		}
		x.Completion()
		same(t, "READ", x.Buf[30000:50000], y.Buf[:20000])
	}
	// The R_Key of one program with the SRQ of the other.
	if err := ini.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled, SGList: x.SGE(0, 8),
		RemoteAddr: programs[0].MR.Addr(), RKey: programs[0].MR.RKey(), RemoteSRQN: programs[1].srq.Number()}); err != nil {
		t.Fatal(err)
	}
	x.Failure(verbs.WCRemAccessErr)
	event(t, b, verbs.EventQPAccessErr)
}

func TestXRCObjectLifetimes(t *testing.T) {
	a, _ := verbstest.Pair(t)
	_, ini := initiator(t, a)
	if _, err := a.OpenXRCD(t.Context(), nil, 0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("opening an unnamed domain without O_CREAT: %v", err)
	}
	d, err := a.OpenXRCD(t.Context(), nil, os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	tgt, err := d.CreateQP(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := tgt.PostSend(verbs.SendWR{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("PostSend to an XRC target: %v", err)
	}
	for _, q := range []*verbs.QP{ini, tgt} {
		if err := q.PostRecv(verbs.RecvWR{}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("PostRecv to queue pair %v: %v", q, err)
		}
		if got, err := q.Query(t.Context()); err != nil || got.Cap.MaxRecvWR != 0 {
			t.Errorf("capacity %+v, %v", got.Cap, err)
		}
	}
	if err := d.Close(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closing a domain with a target: %v", err)
	}
	if err := tgt.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
