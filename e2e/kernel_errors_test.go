package e2e

import (
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/e2e/verbspeer"
	"softroce/verbs"
)

const (
	ok    = verbs.WCSuccess
	flush = verbs.WCWRFlushErr
)

// TestNAKsWithKernel provokes every NAK that a verbs program can, in both directions. The responder
// must not access any byte, the requester's operation must end with the status of the NAK, and
// later operations must be flushed.
func TestNAKsWithKernel(t *testing.T) {
	few := func(o *verbspeer.Options) { o.Recvs = 2 }
	short := func(o *verbspeer.Options) { o.Recvs, o.RecvSize = 2, 1000 }
	without := func(a verbs.Access) func(*verbspeer.Options) {
		return func(o *verbspeer.Options) { o.Access &^= a }
	}
	nak := func(name, ops string, want ...verbs.WCStatus) exchange {
		return exchange{name: name, ops: ops, client: optionsWith(), server: optionsWith(few), want: want}
	}
	access := []exchange{
		nak("in the middle of a pipeline", "+write:5000 +badwrite:3000 +write:100@9000 send:4", ok, verbs.WCRemAccessErr, flush, flush),
		nak("WRITE with a wrong rkey", "badwrite:100 send:4", verbs.WCRemAccessErr, flush),
		nak("READ with a wrong rkey", "badread:100 send:4", verbs.WCRemAccessErr, flush),
		nak("atomic with a wrong rkey", "badatomic send:4", verbs.WCRemAccessErr, flush),
		nak("WRITE past the region", "oobwrite:4000 send:4", verbs.WCRemAccessErr, flush),
		nak("READ past the region", "oobread:4000 send:4", verbs.WCRemAccessErr, flush),
		nak("after operations that succeeded", "write:3000 faa:1 send:5 badread:8 read:8", ok, ok, ok, verbs.WCRemAccessErr, flush),
	}
	tooLong := exchange{name: "SEND longer than the receive", ops: "send:3000 send:4", client: optionsWith(), server: optionsWith(short)}

	harness.OverEachLink(t, func(t *testing.T, s *harness.Testbed) {
		v := harness.IPVersions[0]
		if !s.OnFirstLink() {
			runInBothRoles(t, s, v, access[:1])
			return
		}
		runInBothRoles(t, s, v, access)

		// The kernel answers "remote operational error" where IBTA 9.7.5.2.4 requires "invalid
		// request".
		tooLong.want = []verbs.WCStatus{verbs.WCRemOpErr, flush}
		t.Run(tooLong.name+"/kernel serves", func(t *testing.T) { runExchange(t, s, v, tooLong, false) })
		tooLong.want = []verbs.WCStatus{verbs.WCRemInvReqErr, flush}
		t.Run(tooLong.name+"/kernel connects", func(t *testing.T) { runExchange(t, s, v, tooLong, true) })

		// vprobe grants every access right, so only softroce's end can lack one.
		for _, c := range []struct {
			name, ops string
			lacks     verbs.Access
		}{
			{"WRITE without the right", "write:100 send:4", verbs.AccessRemoteWrite},
			{"READ without the right", "read:100 send:4", verbs.AccessRemoteRead},
			{"atomic without the right", "faa:1 send:4", verbs.AccessRemoteAtomic},
		} {
			conv := exchange{name: c.name, ops: c.ops, client: optionsWith(), server: optionsWith(few, without(c.lacks))}
			t.Run(c.name, func(t *testing.T) {
				conv.want = []verbs.WCStatus{verbs.WCRemInvReqErr, flush} // the access flags of the queue pair forbid it
				runExchange(t, s, v, conv, true)
			})
		}
	})
}

func TestReceiverNotReadyWithKernel(t *testing.T) {
	late := func(d time.Duration, code int) func(*verbspeer.Options) {
		return func(o *verbspeer.Options) { o.Late, o.MinRNR = d, code }
	}
	retries := func(n int) func(*verbspeer.Options) { return func(o *verbspeer.Options) { o.RNRRetry = n } }
	harness.OverEachLink(t, func(t *testing.T, s *harness.Testbed) {
		list := []exchange{
			{name: "with work behind it", ops: "+write:5000 +send:3000 +write:5000@9000 read:100@70000", client: optionsWith(), server: optionsWith(late(200*time.Millisecond, 22))},
			{name: "receives come late", ops: "send:100", client: optionsWith(), server: optionsWith(late(200*time.Millisecond, 22))},
			{name: "for a SEND of three packets", ops: "send:3000", client: optionsWith(), server: optionsWith(late(200*time.Millisecond, 22))},
			{name: "for a WRITE with immediate", ops: "writeimm:3000", client: optionsWith(), server: optionsWith(late(200*time.Millisecond, 22))},
			{name: "with a short timer", ops: "send:100", client: optionsWith(), server: optionsWith(late(100*time.Millisecond, 14))},
			{
				name: "retries run out", ops: "send:100 send:4", client: optionsWith(retries(2)), server: optionsWith(late(9*time.Second, 14)),
				want: []verbs.WCStatus{verbs.WCRNRRetryExcErr, flush},
			},
		}
		if !s.OnFirstLink() {
			list = list[:1]
		}
		runInBothRoles(t, s, harness.IPVersions[0], list)
	})
}

func TestPSNWrapWithKernel(t *testing.T) {
	psn := func(n int) func(*verbspeer.Options) { return func(o *verbspeer.Options) { o.PSN = n } }
	harness.OverEachLink(t, func(t *testing.T, s *harness.Testbed) {
		list := []exchange{
			{name: "in a WRITE", ops: "send:100 write:5000 read:3000@9000", client: optionsWith(psn(0xfffffd)), server: optionsWith(psn(0xfffffe))},
			{name: "in the responses of a READ", ops: "read:100000@100000 send:3000 faa:1", client: optionsWith(psn(0xffffd0)), server: optionsWith(psn(0))},
			{name: "between messages", ops: "send:100 send:100 write:1 faa:1 cas:1,2@8 read:1@16", client: optionsWith(psn(0xffffff)), server: optionsWith(psn(0xffffff))},
		}
		if !s.OnFirstLink() {
			list = list[:1]
		}
		runInBothRoles(t, s, harness.IPVersions[0], list)
	})
}

// TestOutstandingReadsWithKernel posts more READs and atomics than the requester may have
// outstanding, or than the responder accepts. A requester keeps to its own limit. The kernel's
// responder accepts more than max_dest_rd_atomic; softroce's refuses what exceeds it at that moment
// (IBTA 9.7.5.2.3).
func TestOutstandingReadsWithKernel(t *testing.T) {
	out := func(n int) func(*verbspeer.Options) { return func(o *verbspeer.Options) { o.RdOut = n } }
	in := func(n int) func(*verbspeer.Options) { return func(o *verbspeer.Options) { o.RdIn = n } }
	reads := "+read:2000 +read:2000@2048 +read:2000@4096 +read:2000@8192 +read:2000@12288 +read:2000@16384 +read:2000@20480 read:2000@24576"
	pipeline := "+send:2000 +write:2000 +read:3000@4096 +faa:1@300000 +send:1 +write:100@200000 send:4"
	harness.OverEachLink(t, func(t *testing.T, s *harness.Testbed) {
		runInBothRoles(t, s, harness.IPVersions[1], []exchange{
			{name: "all kinds in a pipeline", ops: pipeline, client: optionsWith(), server: optionsWith()},
		})
		if !s.OnFirstLink() {
			return
		}
		runInBothRoles(t, s, harness.IPVersions[0], []exchange{
			{name: "requester limited to two", ops: reads, client: optionsWith(out(2)), server: optionsWith(in(2))},
			{name: "requester limited to one", ops: reads, client: optionsWith(out(1)), server: optionsWith(in(1))},
			{name: "atomics", ops: "+faa:1 +faa:2@8 +faa:3@16 +faa:4@24 +faa:5@32 +faa:6@40 faa:7@48", client: optionsWith(out(2)), server: optionsWith(in(2))},
		})
		excess := exchange{name: "responder promised two, gets eight", ops: reads, client: optionsWith(out(16)), server: optionsWith(in(2))}
		t.Run(excess.name+"/kernel serves", func(t *testing.T) { runExchange(t, s, harness.IPVersions[0], excess, false) })
		excess.responderDepth = 2
		t.Run(excess.name+"/kernel connects", func(t *testing.T) { runExchange(t, s, harness.IPVersions[0], excess, true) })
	})
}

func TestSilentKernelTimesOut(t *testing.T) {
	tries := func(o *verbspeer.Options) { o.Timeout, o.Retry = 14, 3 }
	harness.OverEachLink(t, func(t *testing.T, s *harness.Testbed) {
		families := harness.IPVersions
		if !s.OnFirstLink() {
			families = families[:1]
		}
		for _, v := range families {
			t.Run(v.Name, func(t *testing.T) {
				if err := s.Guest.DropIngress(t.Context()); err != nil {
					t.Fatal(err)
				}
				defer s.ClearImpairments(t)
				start := time.Now()
				runExchange(t, s, v, exchange{
					ops: "send:3000 write:100", client: optionsWith(tries), server: optionsWith(),
					want: []verbs.WCStatus{verbs.WCRetryExcErr, flush},
				}, false)
				// The local ACK timeout with code 14 is 67 ms, and there are four transmissions.
				// There is no upper bound: it would depend on the load of the machine.
				if took := time.Since(start); took < 4*67*time.Millisecond {
					t.Errorf("gave up after %v", took)
				}
			})
		}
	})
}
