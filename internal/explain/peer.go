package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"softroce/internal/daemon"
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
)

// A peer is the other end of a connection, as far as the daemon has it.
type peer struct {
	nic *daemon.Device // that has the address of the peer; nil: another daemon has it
	qp  *nic.QPInfo    // nil: it does not exist
	own bool           // it is in the history
}

// findPeer looks for the peer of a queue pair in the same daemon.
func findPeer(s *daemon.Snapshot, q *nic.QPInfo) (p peer) {
	if !q.Dst.IsValid() {
		return p
	}
	connected := func(o *nic.QPInfo) bool {
		return o.QPN == q.RemoteQPN && o.RemoteQPN == q.QPN && o.Src == q.Dst && o.Dst == q.Src
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		if !slices.ContainsFunc(d.GIDs, func(g daemon.GID) bool { return g.Addr == q.Dst.String() }) {
			continue
		}
		p.nic = d
		for k := range d.QPs {
			if o := &d.QPs[k]; connected(o) {
				return peer{nic: d, qp: o}
			}
		}
		for k := len(d.Ended) - 1; k >= 0; k-- {
			if o := &d.Ended[k].QPInfo; connected(o) {
				return peer{nic: d, qp: o, own: true}
			}
		}
		for k := range d.QPs { // it exists, and has another peer, or none yet
			if o := &d.QPs[k]; o.QPN == q.RemoteQPN {
				return peer{nic: d, qp: o}
			}
		}
	}
	return p
}

// explainPeer adds what the peer has recorded about the request that failed.
func (x *Explanation) explainPeer(f *transport.Failure, p peer) {
	switch f.Reason {
	case transport.ReasonRemoteAccess, transport.ReasonRemoteInvalid, transport.ReasonRemoteOperational:
		if p.qp == nil || p.qp.Failure == nil || p.qp.Failure.Reason == transport.ReasonModified {
			return
		}
		why, mend := explainFailure(p.qp)
		x.Peer = fmt.Sprintf("the peer, queue pair %d of %s, %s", p.qp.QPN, p.nic.Name, why)
		x.mendPeer(mend)
	case transport.ReasonRetryExceeded, transport.ReasonRNRExceeded:
		x.notePeer(p)
	}
}

// notePeer says what is wrong with a peer that does not take or acknowledge requests.
func (x *Explanation) notePeer(p peer) {
	if p.nic == nil {
		return
	}
	switch q := p.qp; {
	case p.nic.PortState != ib.PortActive:
		x.Peer = fmt.Sprintf("the port of the peer's NIC %s is %v", p.nic.Name, p.nic.PortState)
		x.Mend = "softroce link " + p.nic.Name + " up"
	case q == nil:
		x.Peer = fmt.Sprintf("%s has no queue pair %d: its program has ended, or has destroyed it", p.nic.Name, x.QP.RemoteQPN)
		x.Mend = "keep the peer's queue pair until this one has its completions, and exchange its number again for each connection"
	case p.own || q.State == "ERR" || q.State == "RESET" || q.State == "INIT":
		state := "is in " + q.State
		if p.own {
			state = "was destroyed or reset in " + q.State
		}
		x.Peer = fmt.Sprintf("the peer, queue pair %d of %s, %s and drops packets", q.QPN, p.nic.Name, state)
		switch {
		case q.State == "RESET" || q.State == "INIT":
			x.Mend = "on the peer: ibv_modify_qp to RTR before this side posts its first request"
		case q.Failure != nil && q.Failure.Reason != transport.ReasonModified:
			why, mend := explainFailure(q)
			x.Peer += ": it " + why
			x.mendPeer(mend)
		}
	case q.RemoteQPN != x.QP.QPN:
		x.Peer = fmt.Sprintf("queue pair %d of %s is connected to queue pair %d", q.QPN, p.nic.Name, q.RemoteQPN)
		x.Mend = "exchange the numbers of the queue pairs again: dest_qp_num of ibv_modify_qp to RTR must be the peer's qp_num"
	case q.RecvPosted == 0 && q.SRQ == 0 && waitsForReceive(&x.QP):
		x.Peer = fmt.Sprintf("the peer, queue pair %d of %s, has no receive posted", q.QPN, p.nic.Name)
	}
}

// mendPeer turns what mends the peer's queue pair into what is to be done from this side.
func (x *Explanation) mendPeer(mend string) {
	if here, ok := strings.CutPrefix(mend, onPeer); ok {
		x.Mend = here
	} else if mend != "" {
		x.Mend = onPeer + mend
	}
}

// onPeer precedes what is to be done on the other side.
const onPeer = "on the peer: "

func waitsForReceive(q *nic.QPInfo) bool {
	if f := q.Failure; f != nil {
		return f.Reason == transport.ReasonRNRExceeded
	}
	return q.Stall != nil && (q.Stall.For == transport.WaitRNR || q.Stall.For == transport.WaitCredits)
}

// explainLink adds what the NIC's own port says about packets that get no reply.
func (x *Explanation) explainLink(d *daemon.Device) {
	switch {
	case d.PortState != ib.PortActive:
		x.Why += fmt.Sprintf("; the port of %s is %v", d.Name, d.PortState)
		x.Mend = "softroce link " + d.Name + " up"
	case d.LinkError != "":
		x.Why += "; the last error of the link: " + d.LinkError
	}
	var drops []string
	for _, name := range slices.Sorted(maps.Keys(d.Counters.Drops)) {
		if v := d.Counters.Drops[name]; v > 0 && explainsSilence(name) {
			drops = append(drops, fmt.Sprintf("%s %d", name, v))
		}
	}
	if len(drops) > 0 {
		x.Why += fmt.Sprintf("; %s has dropped packets: %s", d.Name, strings.Join(drops, ", "))
	}
}

// explainsSilence reports whether packets that are dropped for a reason may be the replies that a
// queue pair waits for, or its own requests.
func explainsSilence(drop string) bool {
	switch drop {
	case "icrc", "pkey", "source", "unknown_qpn", "qp_state", "truncated", "unknown_gid":
		return true
	}
	return strings.HasPrefix(drop, "link_")
}
