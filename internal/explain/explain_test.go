package explain

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"softroce/internal/daemon"
	"softroce/internal/fabrictest"
	"softroce/transport"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// A provocation makes queue pair x fail, or wait. x is on nic0, its peer y on nic1.
type provocation struct {
	name    string
	reason  transport.Reason // of x
	options func(*verbs.ConnectOptions)
	config  verbstest.EndpointConfig
	faults  string // on nic0
	provoke func(t *testing.T, f *fabrictest.Fabric, x, y *verbstest.Endpoint)

	why, peer, mend []string
	peerReason      transport.Reason // of y
	counter         string
	severity        Severity
}

// quickly makes the requester give up after two timeouts.
func quickly(o *verbs.ConnectOptions) { o.Timeout, o.RetryCnt, o.RNRRetry, o.MinRNRTimer = 8, 1, 1, 1 }

var provocations = []provocation{
	{
		name: "region without remote write", reason: transport.ReasonRemoteAccess, peerReason: transport.ReasonRemoteMemory,
		provoke: func(t *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			mr := register(t, y, verbs.AccessLocalWrite|verbs.AccessRemoteRead)
			x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 64), RemoteAddr: mr.Addr(), RKey: mr.RKey()})
			x.Failure(verbs.WCRemAccessErr)
		},
		why: []string{"the peer refused RDMA_WRITE of 64 bytes", "NAK(remote access error)"}, peer: []string{"does not grant remote_write"},
		mend: []string{"on the peer: ibv_reg_mr with IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE"}, counter: "nic0 req_remote_access_errors",
	},
	{
		name: "unknown R_Key", reason: transport.ReasonRemoteAccess, peerReason: transport.ReasonRemoteMemory,
		provoke: func(_ *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			x.Send(verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: x.SGE(0, 64), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey() ^ 0xff})
			x.Failure(verbs.WCRemAccessErr)
		},
		why: []string{"the peer refused RDMA_READ of 64 bytes"}, peer: []string{"no memory region or window has its rkey 0x"},
		mend: []string{"use the rkey of a region that ibv_reg_mr has returned"},
	},
	{
		name: "range outside the region", reason: transport.ReasonRemoteAccess, peerReason: transport.ReasonRemoteMemory,
		provoke: func(_ *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 64), RemoteAddr: y.MR.Addr() + verbstest.BufSize - 63, RKey: y.MR.RKey()})
			x.Failure(verbs.WCRemAccessErr)
		},
		peer: []string{"64 bytes at 0x", "are not inside the memory region"}, mend: []string{"ibv_reg_mr for all of the memory"},
	},
	{
		name: "region of another PD", reason: transport.ReasonRemoteAccess, peerReason: transport.ReasonRemoteMemory,
		provoke: func(t *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			other := verbstest.EndpointConfig{}.New(t, y.Context)
			x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 8), RemoteAddr: other.MR.Addr(), RKey: other.MR.RKey()})
			x.Failure(verbs.WCRemAccessErr)
		},
		peer: []string{"of another protection domain"}, mend: []string{"ibv_reg_mr and ibv_create_qp with the same struct ibv_pd"},
	},
	{
		name: "queue pair that does not allow WRITE", reason: transport.ReasonRemoteInvalid, peerReason: transport.ReasonNotPermitted,
		options: func(o *verbs.ConnectOptions) { o.Access = verbs.AccessLocalWrite },
		provoke: func(_ *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 8), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
			x.Failure(verbs.WCRemInvReqErr)
		},
		why: []string{"NAK(invalid request)"}, peer: []string{"does not allow remote_write"},
		mend: []string{"ibv_modify_qp to INIT with qp_access_flags", "IBV_ACCESS_REMOTE_WRITE"}, counter: "nic0 req_remote_invalid_request",
	},
	{
		name: "receive that is too short", reason: transport.ReasonRemoteInvalid, peerReason: transport.ReasonRecvTooShort,
		provoke: func(_ *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			y.Recv(1, 0, 16)
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 100)})
			x.Failure(verbs.WCRemInvReqErr)
			y.Failure(verbs.WCLocLenErr)
		},
		peer: []string{"it has at least 100 bytes, and the posted receive 16"}, mend: []string{"on the peer: ibv_post_recv with a scatter/gather list as long as"},
	},
	{
		name: "receive with a wrong L_Key", reason: transport.ReasonRemoteOperational, peerReason: transport.ReasonRecvMemory,
		provoke: func(t *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			sge := y.SGE(0, 64)
			sge[0].LKey ^= 0xff
			if err := y.PostRecv(verbs.RecvWR{SGList: sge}); err != nil {
				t.Fatal(err)
			}
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 64)})
			x.Failure(verbs.WCRemOpErr)
		},
		why: []string{"NAK(remote operational error)"}, peer: []string{"could not use the scatter/gather list of a receive", "no memory region or window has its lkey"},
	},
	{
		name: "no receive", reason: transport.ReasonRNRExceeded, options: quickly,
		provoke: func(_ *testing.T, _ *fabrictest.Fabric, x, _ *verbstest.Endpoint) {
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
			x.Failure(verbs.WCRNRRetryExcErr)
		},
		why:  []string{"gave up SEND of 8 bytes", "no receive posted", "RNR NAK(timer 1)", "rnr_retry 1"},
		peer: []string{"has no receive posted"}, mend: []string{"ibv_post_recv"}, counter: "nic0 rnr_nak_retry_err",
	},
	{
		name: "peer destroyed", reason: transport.ReasonRetryExceeded, options: quickly,
		provoke: func(t *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			if err := y.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
			x.Failure(verbs.WCRetryExcErr)
		},
		why:  []string{"gave up SEND of 8 bytes: the peer replied nothing for 2 timeouts", "retry_cnt 1"},
		peer: []string{"nic1 has no queue pair", "has destroyed it"}, counter: "timeouts",
	},
	{
		name: "port of the peer down", reason: transport.ReasonRetryExceeded, options: quickly,
		provoke: func(_ *testing.T, f *fabrictest.Fabric, x, _ *verbstest.Endpoint) {
			f.Do(1, func() { f.Devices[1].SetLink(false) })
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
			x.Failure(verbs.WCRetryExcErr)
		},
		peer: []string{"the port of the peer's NIC nic1 is DOWN"}, mend: []string{"softroce link nic1 up"},
	},
	{
		name: "peer in INIT", reason: transport.ReasonRetryExceeded, options: quickly,
		provoke: func(t *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			modify(t, y, verbs.QPSReset)
			if err := y.ToInit(t.Context(), verbs.AccessLocalWrite); err != nil {
				t.Fatal(err)
			}
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
			x.Failure(verbs.WCRetryExcErr)
		},
		peer: []string{"is in INIT and drops packets"}, mend: []string{"ibv_modify_qp to RTR before this side posts its first request"},
	},
	{
		name: "send with a wrong L_Key", reason: transport.ReasonSendMemory,
		provoke: func(_ *testing.T, _ *fabrictest.Fabric, x, _ *verbstest.Endpoint) {
			sge := x.SGE(0, 64)
			sge[0].LKey ^= 0xff
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: sge})
			x.Failure(verbs.WCLocProtErr)
		},
		why: []string{"could not use the scatter/gather list of SEND of 64 bytes", "no memory region or window has its lkey"}, mend: []string{"ibv_reg_mr"},
	},
	{
		name: "READ into a region that may not be written", reason: transport.ReasonSendMemory,
		provoke: func(t *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			mr := register(t, x, 0)
			x.Send(verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{mr.SGE(0, 64)}, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
			x.Failure(verbs.WCLocProtErr)
		},
		why: []string{"does not grant local_write"}, mend: []string{"ibv_reg_mr with IBV_ACCESS_LOCAL_WRITE"},
	},
	{
		name: "READ without max_rd_atomic", reason: transport.ReasonReadDepth,
		options: func(o *verbs.ConnectOptions) { o.MaxRdAtomic = 0 },
		provoke: func(_ *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			x.Send(verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: x.SGE(0, 64), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
			x.Failure(verbs.WCLocQPOpErr)
		},
		why: []string{"its max_rd_atomic is 0"}, mend: []string{"ibv_modify_qp to RTS with max_rd_atomic"},
	},
	{
		name: "READ without max_dest_rd_atomic", reason: transport.ReasonRemoteInvalid, peerReason: transport.ReasonReadsExceeded,
		options: func(o *verbs.ConnectOptions) { o.MaxDestRdAtomic = 0 },
		provoke: func(_ *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			x.Send(verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: x.SGE(0, 64), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
			x.Failure(verbs.WCRemInvReqErr)
		},
		peer: []string{"than max_dest_rd_atomic 0"}, mend: []string{"on the peer: ibv_modify_qp to RTR with a max_dest_rd_atomic"},
	},
	{
		name: "atomic at an odd address", reason: transport.ReasonRemoteInvalid, peerReason: transport.ReasonMisaligned,
		provoke: func(_ *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			x.Send(verbs.SendWR{Opcode: verbs.WRAtomicFetchAndAdd, SGList: x.SGE(0, 8), RemoteAddr: y.MR.Addr() + 4, RKey: y.MR.RKey()})
			x.Failure(verbs.WCRemInvReqErr)
		},
		peer: []string{"is not a multiple of 8"}, mend: []string{"aligned wr.atomic.remote_addr"},
	},
	{
		name: "flush", reason: transport.ReasonModified, severity: Idle, options: func(o *verbs.ConnectOptions) { o.MinRNRTimer = 31 },
		provoke: func(t *testing.T, _ *fabrictest.Fabric, x, _ *verbstest.Endpoint) {
			x.Recv(1, 0, 8)
			modify(t, x, verbs.QPSErr)
			x.Failure(verbs.WCWRFlushErr)
		},
		why: []string{"was moved to ERR by its program"},
	},
	{
		name: "fault rule", reason: transport.ReasonInjected, faults: "fail completion LOC_PROT_ERR opcode send\n",
		provoke: func(_ *testing.T, _ *fabrictest.Fabric, x, _ *verbstest.Endpoint) {
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
			x.Failure(verbs.WCLocProtErr)
		},
		why: []string{"a rule of the fault program"}, mend: []string{"softroce show faults"},
	},
	{
		name: "full completion queue", reason: transport.ReasonCQ, config: verbstest.EndpointConfig{CQE: 4},
		provoke: func(t *testing.T, f *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			for range 8 {
				x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 8), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
			}
			waitUntil(t, f, x, func(e *Explanation) bool { return e.QP.Failure != nil })
		},
		why: []string{"completion queue, which had no room"}, mend: []string{"ibv_create_cq"},
	},
	{
		name: "waits for a receive", severity: Stalled, options: func(o *verbs.ConnectOptions) { o.MinRNRTimer = 31 },
		provoke: func(t *testing.T, f *fabrictest.Fabric, x, _ *verbstest.Endpoint) {
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
			waitUntil(t, f, x, func(e *Explanation) bool { return e.QP.RNRNAKsReceived > 0 })
		},
		why: []string{"waits with SEND of 8 bytes: the peer has no receive posted and last said RNR NAK", "rnr_retry 7"}, peer: []string{"has no receive posted"},
		mend: []string{"on the peer: ibv_post_recv"}, counter: "rnr_nak_received",
	},
	{
		name: "waits for a peer that is gone", severity: Stalled, options: func(o *verbs.ConnectOptions) { o.Timeout = 16 },
		provoke: func(t *testing.T, f *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			if err := y.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
			waitUntil(t, f, x, func(e *Explanation) bool { return e.QP.Timeouts > 0 })
		},
		why: []string{"the peer has replied nothing", "retries are left"}, peer: []string{"nic1 has no queue pair"},
	},
	{
		name: "unpolled completions", severity: Working,
		provoke: func(t *testing.T, f *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 8), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
			waitUntil(t, f, x, func(e *Explanation) bool { return strings.Contains(e.Why, "not polled") })
		},
		why: []string{"has nothing to send; 1 completions in its completion queue", "are not polled"}, mend: []string{"ibv_poll_cq"},
	},
	{
		name: "nothing posted", severity: Working, provoke: func(*testing.T, *fabrictest.Fabric, *verbstest.Endpoint, *verbstest.Endpoint) {},
		why: []string{"has nothing to send and no receive posted"}, mend: []string{"ibv_post_recv, if the peer sends"},
	},
	{
		name: "SQD", severity: Working,
		provoke: func(t *testing.T, _ *fabrictest.Fabric, x, y *verbstest.Endpoint) {
			modify(t, x, verbs.QPSSQD)
			x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 8), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
		},
		why: []string{"is in SQD"}, mend: []string{"ibv_modify_qp to RTS"},
	},
	{
		name: "INIT", severity: Idle,
		provoke: func(t *testing.T, _ *fabrictest.Fabric, x, _ *verbstest.Endpoint) {
			modify(t, x, verbs.QPSReset)
			if err := x.ToInit(t.Context(), verbs.AccessLocalWrite); err != nil {
				t.Fatal(err)
			}
		},
		why: []string{"is in INIT: it is not connected"}, mend: []string{"ibv_modify_qp to RTR", "rdma_connect"},
	},
	{
		name: "RESET", severity: Idle,
		provoke: func(t *testing.T, _ *fabrictest.Fabric, x, _ *verbstest.Endpoint) { modify(t, x, verbs.QPSReset) },
		why:     []string{"is in RESET"}, mend: []string{"ibv_modify_qp to INIT"},
	},
}

func TestFailuresAndWaitsAreExplained(t *testing.T) {
	for _, p := range provocations {
		t.Run(p.name, func(t *testing.T) {
			f := fabrictest.New(t, fabrictest.Config{Faults: map[int]string{0: p.faults}})
			p.config.Options = p.options
			x, y := p.config.Connect(t, f.Open(0), f.Open(1))
			p.provoke(t, f, x, y)
			e := find(t, f, x)
			if got := reasonOf(e); got != p.reason {
				t.Errorf("reason %q, want %q", got, p.reason)
			}
			if e.Severity != p.severity {
				t.Errorf("severity %v, want %v", e.Severity, p.severity)
			}
			if e.Ended {
				t.Error("it has not ended")
			}
			contains(t, "why", e.Why, p.why)
			contains(t, "peer", e.Peer, p.peer)
			contains(t, "mend", e.Mend, p.mend)
			if p.peerReason != transport.ReasonNone {
				if got := reasonOf(find(t, f, y)); got != p.peerReason {
					t.Errorf("reason of the peer %q, want %q", got, p.peerReason)
				}
			}
			if p.counter != "" && !has(e.Counters, p.counter) {
				t.Errorf("counters %v, want %s", e.Counters, p.counter)
			}
			t.Log(e.Line())
		})
	}
}

// TestEndedQueuePairsAreRemembered destroys a queue pair after it has failed, and its peer.
func TestEndedQueuePairsAreRemembered(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	a, b := f.Open(0), f.Open(1)
	x, y := verbstest.ConnectedRC(t, a, b)
	provocations[0].provoke(t, f, x, y)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, f, x, func(e *Explanation) bool { return e.Ended })
	waitUntil(t, f, y, func(e *Explanation) bool { return e.Ended })
	e := find(t, f, x)
	contains(t, "peer", e.Peer, provocations[0].peer)
	contains(t, "mend", e.Mend, provocations[0].mend)
	if e.QP.PID != os.Getpid() {
		t.Errorf("pid %d, want %d", e.QP.PID, os.Getpid())
	}
}

// TestSecretsOfOthersStayHidden looks at a failure as another user.
func TestSecretsOfOthersStayHidden(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	x, y := verbstest.ConnectedRC(t, f.Open(0), f.Open(1))
	provocations[1].provoke(t, f, x, y)
	own := daemon.NewSnapshot(f.Server.Snapshot(), nil)
	seen := daemon.NewSnapshot(f.Server.Snapshot().VisibleTo(uint32(os.Getuid())+1), nil)
	if q := own.Devices[1].QPs[0].Failure; q.Address == 0 || q.Key == 0 {
		t.Fatalf("the owner does not see address and key: %+v", q)
	}
	if q := seen.Devices[1].QPs[0].Failure; q == nil || q.Address != 0 || q.Key != 0 || q.PSN != 0 {
		t.Errorf("another user sees %+v", q)
	}
}

func TestEveryReasonHasWords(t *testing.T) {
	for _, r := range transport.Reasons() {
		if reasons[r].why == nil {
			t.Errorf("%v has no words", r)
		}
	}
}

func reasonOf(e *Explanation) transport.Reason {
	if e.QP.Failure == nil {
		return transport.ReasonNone
	}
	return e.QP.Failure.Reason
}

// register registers the buffer of an endpoint once more.
func register(t *testing.T, x *verbstest.Endpoint, access verbs.Access) *verbs.MR {
	t.Helper()
	mr, err := x.PD.RegMR(t.Context(), x.Buf, access)
	if err != nil {
		t.Fatal(err)
	}
	return mr
}

func modify(t *testing.T, x *verbstest.Endpoint, to verbs.QPState) {
	t.Helper()
	if err := x.Modify(context.Background(), &verbs.QPAttr{QPState: to}, verbs.QPMaskState); err != nil {
		t.Fatal(err)
	}
}

// find returns the explanation of an endpoint's queue pair.
func find(t *testing.T, f *fabrictest.Fabric, x *verbstest.Endpoint) *Explanation {
	t.Helper()
	s := daemon.NewSnapshot(f.Server.Snapshot(), nil)
	for _, e := range All(&s) {
		if e.QP.QPN == x.QPNum() && e.NIC == x.Context.Device() {
			return &e
		}
	}
	t.Fatalf("queue pair %d of %s is not explained", x.QPNum(), x.Context.Device())
	return nil
}

func waitUntil(t *testing.T, f *fabrictest.Fabric, x *verbstest.Endpoint, ok func(*Explanation) bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(find(t, f, x)); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited a minute; now: %s", find(t, f, x).Line())
		}
	}
}

func has(counters []Count, name string) bool {
	for _, c := range counters {
		if c.Name == name && c.Value > 0 {
			return true
		}
	}
	return false
}

func contains(t *testing.T, what, text string, want []string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%s: %q does not contain %q", what, text, w)
		}
	}
}
