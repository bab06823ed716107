package replay

import (
	"errors"
	"fmt"
	"slices"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
	"softroce/transport"
)

// A RequesterSession is the record of a RequesterScript that was played to a live responder: the
// packets at the player, and what is known of the responder, so that it need not be inferred.
type RequesterSession struct {
	Service         packet.Service  // RC, UC
	Packets         capture.Packets // in order; those of other queue pairs are ignored
	Player, Peer    End             // Peer has the responder
	PathMTU         int
	FirstPSN        uint32
	MinRNRTimer     uint8
	MaxDestRDAtomic uint8
	Access          ib.Access      // of the queue pair
	Regions         []Region       // of the live NIC
	Receives        []Receive      // in the order in which they were posted
	Windows         []uint32       // R_Keys of windows that SENDs of the live queue pair invalidate, each once
	Writes          []ProgramWrite // by the program, during the session

	// Completions of the receive queue, in order, up to the first flushed one. Whole says that they
	// were polled after all requests were answered.
	Completions []transport.Completion
	Whole       bool

	// Memory is the content of each region at the end, nil if it was not read.
	Memory [][]byte
}

// A Receive is a receive work request.
type Receive struct {
	At     int // number of packets before it
	Length uint32
}

// A ProgramWrite is a write by the program after At packets.
type ProgramWrite struct {
	At int
	Write
}

// ErrSession is returned for a session without a request.
var ErrSession = errors.New("there is no request in the session")

// Judge compares the live responder's replies with those of softroce's responder.
func (l *RequesterSession) Judge(o Options) (*Stream, error) {
	if l.Service == packet.UC {
		return l.judgeUnreliable()
	}
	var requests, replies []*conversation.Transmission
	for i, p := range l.Packets {
		in := p.Opcode.Info()
		if p.Opcode.Service() != packet.RC || conversation.Usable(p) != nil {
			continue
		}
		t := conversation.NewTransmission(p, i)
		switch {
		case in.Request && p.Src == l.Player.Addr && p.Dst == l.Peer.Addr && p.BTH.DestQP == l.Peer.QPN:
			requests = append(requests, t)
		case !in.Request && p.Src == l.Peer.Addr && p.Dst == l.Player.Addr && p.BTH.DestQP == l.Player.QPN:
			replies = append(replies, t)
		}
	}
	var completions []transport.Completion
	r, err := l.responder(requests, replies, func(c *transport.Completion) { completions = append(completions, *c) })
	if err != nil {
		return nil, err
	}
	r.run()
	r.advance(len(l.Packets))
	r.compare(o.Strict)
	resolve([]*Verdict{r.v})
	r.compareCompletions(completions)
	r.compareMemory()
	return r.s.report, nil
}

// planLive creates the queue pair and the memory that the live responder has.
func (r *liveResponder) planLive() (err error) {
	l := r.session
	r.qp, err = transport.New(transport.Config{QPN: 1, Service: l.Service, PD: r.pd, Recv: &r.receives})
	if err != nil {
		return err
	}
	a := ib.QPAttr{PathMTU: l.PathMTU, RQPSN: l.FirstPSN, DestQPN: l.Player.QPN, MaxDestRDAtomic: l.MaxDestRDAtomic,
		MinRNRTimer: l.MinRNRTimer, Access: l.Access}
	if err := r.connect(a, l.Service, false); err != nil {
		return err
	}
	if err := r.planWindows(); err != nil {
		return err
	}
	for _, x := range l.Regions {
		sh := newShadow(&r.views)
		sh.fixed = true
		for _, w := range x.Content {
			sh.write(w.Addr, w.Data)
		}
		region, err := r.register(&memoryRange{sparseMemory: sh, base: x.Addr, length: x.Length}, x.Addr, x.Access)
		if err != nil {
			return fmt.Errorf("region of R_Key %#x: %w", x.RKey, err)
		}
		r.shadows[x.RKey], r.regions[x.RKey] = sh, region
	}
	return nil
}

// planWindows creates the windows that SENDs invalidate.
func (r *liveResponder) planWindows() error {
	l := r.session
	r.invalidated = map[uint32]uint32{}
	if len(l.Windows) == 0 {
		return nil
	}
	region, err := r.register(mrtable.HeapMemory(make([]byte, 1)), 0, ib.AccessLocalWrite|ib.AccessMWBind)
	if err != nil {
		return err
	}
	for _, key := range l.Windows {
		w, err := r.env.Table.AllocWindow(r.pd, mrtable.Type2B)
		if err != nil {
			return err
		}
		if err := r.env.Table.Bind(mrtable.Binding{PD: r.pd, QPN: r.qp.QPN(), RKey: w.RKey(), LKey: region.LKey(), Length: 1, Access: ib.AccessRemoteWrite}); err != nil {
			return err
		}
		r.invalidated[key] = w.RKey()
	}
	return nil
}

// invalidation returns text for the window that a completion says was invalidated: its index in the
// session's list.
func invalidation(c *transport.Completion, key func(live uint32) uint32, l *RequesterSession) string {
	if c.Flags&ib.WCWithInv == 0 {
		return ""
	}
	for i, live := range l.Windows {
		if key(live) == c.Imm {
			return fmt.Sprintf(", window %d invalidated", i+1)
		}
	}
	return fmt.Sprintf(", key %#x invalidated", c.Imm)
}

// A liveResponder is a responderModel, and its mode, with the queue pair, the memory and the
// receives of a live responder.
type liveResponder struct {
	*responderModel
	judging
	session *RequesterSession
	written int // of session.Writes
}

// advance implements responderMode.
func (r *liveResponder) advance(index int) {
	l := r.session
	for n := len(r.receives.posted); n < len(l.Receives) && l.Receives[n].At <= index; n++ {
		r.receives.posted = append(r.receives.posted, l.Receives[n].Length)
	}
	for ; r.written < len(l.Writes) && l.Writes[r.written].At <= index; r.written++ {
		w := &l.Writes[r.written]
		if sh := r.shadows[w.RKey]; sh != nil {
			sh.write(w.Addr, w.Data)
		}
	}
}

// known implements responderMode.
func (r *liveResponder) known() bool { return true }

// compareCompletions compares the live program's receive completions with softroce's.
func (r *liveResponder) compareCompletions(ours []transport.Completion) {
	l := r.session
	ours = slices.DeleteFunc(ours, func(c transport.Completion) bool { return c.Status == ib.WCWRFlushErr })
	for i, c := range l.Completions {
		if i >= len(ours) {
			if !r.unsure() {
				r.differAtEnd(fmt.Sprintf("completion of receive %d", i+1), completionText(&c), "none")
			}
			return
		}
		if c.Status == ib.WCLocQPOpErr && ours[i].Status == ib.WCLocLenErr && r.v.deviated(deviationTooLong) {
			continue // the status that goes with the deviation
		}
		have := completionText(&c) + invalidation(&c, func(k uint32) uint32 { return k }, l)
		want := completionText(&ours[i])
		if ours[i].Flags&ib.WCWithInv != 0 && have == want {
			r.v.deviateAtEnd(deviationFlag)
			continue
		}
		if want += invalidation(&ours[i], func(k uint32) uint32 { return r.invalidated[k] }, l); have != want {
			r.differAtEnd(fmt.Sprintf("completion of receive %d", i+1), have, want)
		}
	}
	if n := len(l.Completions); l.Whole && n < len(ours) && !r.unsure() {
		r.differAtEnd(fmt.Sprintf("completion of receive %d", n+1), "none", completionText(&ours[n]))
	}
}

// unsure reports whether the two responders may be in different states: it is not known whether all
// requests arrived, or there was a difference.
func (r *liveResponder) unsure() bool {
	if r.session.Service == packet.UC {
		return false
	}
	last := r.s.Requests[len(r.s.Requests)-1]
	return len(r.v.Differences) > 0 || r.qp.State() != ib.QPSErr && r.epsn < last.End()
}

func completionText(c *transport.Completion) string {
	if c.Status != ib.WCSuccess {
		return fmt.Sprint(c.Status)
	}
	s := fmt.Sprintf("%v, %d bytes", c.Status, c.ByteLen)
	if c.Flags&ib.WCWithImm != 0 {
		s += fmt.Sprintf(", immediate %#x", c.Imm)
	}
	return s
}

func (r *responderModel) differAtEnd(field, captured, softroce string) {
	r.v.Differences = append(r.v.Differences, Difference{Field: field, Captured: captured, Softroce: softroce})
}

// compareMemory compares the live responder's memory at the end with softroce's.
func (r *liveResponder) compareMemory() {
	l := r.session
	if r.unsure() {
		return
	}
	for i, b := range l.Memory {
		x := &l.Regions[i]
		if b == nil || uint64(len(b)) != x.Length {
			continue
		}
		want := r.shadows[x.RKey].copyOut(x.Addr, len(b))
		for k := range b {
			if b[k] != want[k] {
				r.differAtEnd(fmt.Sprintf("memory at %#x, byte %d of %d", x.Addr+uint64(k), k, len(b)), fmt.Sprintf("%#02x", b[k]), fmt.Sprintf("%#02x", want[k]))
				break
			}
		}
	}
	r.views.release()
}

// responder returns softroce's responder with the objects and the work requests of the live one. It
// calls done with each completion.
func (l *RequesterSession) responder(requests, replies []*conversation.Transmission, done func(*transport.Completion)) (*liveResponder, error) {
	if len(requests) == 0 {
		return nil, ErrSession
	}
	s := liveStream(requests, replies, l.Packets, l.PathMTU, l.FirstPSN)
	s.report.From, s.report.To = l.Player, l.Peer
	model, err := newResponderModel(s, false)
	if err != nil {
		return nil, err
	}
	r := &liveResponder{responderModel: model, session: l}
	r.responderMode = r
	r.receives.bounded = true
	r.onComplete = done
	return r, r.planLive()
}
