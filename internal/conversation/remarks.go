package conversation

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"softroce/capture"
	"softroce/packet"
)

// Bounds on what Remarks remembers.
const (
	maxBetween = 1 << 10 // queue pairs of one host that another one sends to; replies to more are not assigned
	maxReads   = 1 << 8  // requests of a queue pair with a response of their own that is outstanding
	maxNAKs    = 1 << 3  // sequence NAKs that the requester of a queue pair has yet to follow
)

// Remarks says which packets of the reliable services were sent again, and why, and which replies
// answer them. It reads one packet at a time, in bounded memory, so it guesses where a judge, which
// has the whole capture, would know more: a reply belongs to the queue pair of the other host that
// last sent a PSN near its own.
type Remarks struct {
	tracks  map[trackKey]*track
	between map[[2]netip.Addr][]*track // by source and destination
}

// NewRemarks returns Remarks on a capture that begins with the next packet.
func NewRemarks() *Remarks {
	return &Remarks{tracks: map[trackKey]*track{}, between: map[[2]netip.Addr][]*track{}}
}

// A trackKey names the packets that go to one queue pair, as one interface has captured them.
type trackKey struct {
	iface    int
	src, dst netip.Addr
	qpn      uint32
}

// A track is the packets to one queue pair: the requests of its peer, and the peer's replies.
type track struct {
	iface int
	ids   Identifications
	last  Fingerprint
	mtu   PathMTU

	// Requests.
	begun  bool
	next   int64     // the unwrapped PSN after the highest
	at     time.Time // of the last request, or reply to one
	reads  []read    // in the order of their PSNs
	reason reason    // to send something again; its cause is empty if there is none
	naks   []reason  // sequence NAKs before it, which may reach the requester late
	resend resend    // the last time that packets were sent again

	answers *track // whose requests the replies are for
}

// A read is a request with responses of its own.
type read struct {
	seq, end int64 // unwrapped PSNs; end is not known before the path MTU is
	got      int64 // the PSN of the response that is expected next
}

// A reason is a packet that asks for a PSN to be sent again.
type reason struct {
	cause capture.Cause
	seq   int64
	no    int
	at    time.Time
}

// A resend is a run of packets that were sent again.
type resend struct {
	no         int   // number of the first packet; 0: there is none
	seq, until int64 // their PSNs
	open       bool  // nothing new was sent since
	again      capture.Again
}

// On returns the remark on the next packet of the capture, nil if there is none.
func (r *Remarks) On(p *capture.Packet) *capture.Remark {
	if s := p.Opcode.Service(); p.Err != nil || s != packet.RC && s != packet.XRC || !p.Cut && !p.ICRCOK() {
		return nil
	}
	t := r.track(p)
	if t == nil {
		return nil
	}
	if !p.Cut {
		before := t.last
		t.last = FingerprintOf(p)
		if !before.IsZero() && t.last.IsCopyOf(before, t.ids.CountUp()) {
			return &capture.Remark{Copy: true}
		}
	}
	_, late := t.ids.Add(p)
	if p.Opcode.Info().Request {
		return t.request(p, late == Late && t.ids.CountUp())
	}
	return r.reply(t, p)
}

func (r *Remarks) track(p *capture.Packet) *track {
	k := trackKey{p.Interface, p.Src, p.Dst, p.DestQP}
	t := r.tracks[k]
	if t == nil && len(r.tracks) < MaxFlows {
		t = &track{iface: p.Interface}
		r.tracks[k] = t
		hosts := [2]netip.Addr{p.Src, p.Dst}
		if l := r.between[hosts]; len(l) < maxBetween {
			r.between[hosts] = append(l, t)
		}
	}
	return t
}

// request remarks on a request.
func (t *track) request(p *capture.Packet, late bool) *capture.Remark {
	since := p.Time.Sub(t.at)
	t.at = p.Time.Add(max(0, -since))
	t.addMTU(p)
	mtu, shown := t.mtu.Value()
	if !shown {
		mtu = 0
	}
	seq := Unwrap(p.PSN, t.next)
	if !t.begun || max(seq-t.next, t.next-seq) > MaxPSNStep {
		seq = Origin + int64(p.PSN)
		*t = track{iface: t.iface, ids: t.ids, last: t.last, mtu: t.mtu, begun: true, next: seq, at: t.at, answers: t.answers}
	}
	part := NewPart(&p.Header, seq, mtu, t.mtu.Fits())
	if seq >= t.next {
		t.next = part.End()
		t.resend.open = false
		t.addRead(&part)
		return nil
	}
	if since < 0 { // the capture is not in the order of time: its reply may be before it
		return nil
	}
	if late {
		return &capture.Remark{Late: true}
	}
	t.next = max(t.next, part.End())
	s := &t.resend
	if s.open && seq >= s.until && (t.reason.cause == "" || seq != t.reason.seq || t.reason.no < s.no) {
		s.until = part.End() // it goes on with what was sent after the first one
		return &capture.Remark{Again: &s.again}
	}
	why := t.takeReason(seq)
	*s = resend{no: p.No, seq: seq, until: part.End(), open: true, again: capture.Again{Cause: capture.CauseTimeout, After: since}}
	if why.cause != "" {
		s.again = capture.Again{Cause: why.cause, Packet: why.no, After: p.Time.Sub(why.at)}
	}
	return &capture.Remark{Again: &s.again}
}

// takeReason removes and returns the reason to send again from seq on. Each NAK is one, but perhaps
// not before the requester has gone back for an earlier NAK, which was delayed, too.
func (t *track) takeReason(seq int64) (why reason) {
	i := slices.IndexFunc(t.naks, func(n reason) bool { return n.seq == seq })
	if i >= 0 && seq != t.reason.seq {
		why, t.naks = t.naks[i], t.naks[i+1:]
		return why
	}
	if t.reason.no > t.resend.no || seq == t.reason.seq {
		why = t.reason
	}
	t.reason, t.naks = reason{}, nil
	return why
}

func (t *track) addMTU(p *capture.Packet) {
	if !p.Cut {
		t.mtu.Add(&p.Header, len(p.Payload))
	}
}

// addRead remembers a new request that has responses of its own.
func (t *track) addRead(p *Part) {
	if !p.Info.Kind.HasOwnResponse() || len(t.reads) == maxReads {
		return
	}
	w := read{seq: p.Seq, end: p.End(), got: p.Seq}
	if p.NumPSNs == 0 {
		w.end = math.MaxInt64
	}
	t.reads = append(t.reads, w)
}

// reply remarks on a reply, which is a packet of t.
func (r *Remarks) reply(t *track, p *capture.Packet) *capture.Remark {
	q := r.requester(t, p)
	if q == nil {
		return nil
	}
	q.at = p.Time
	q.addMTU(p)
	seq := Unwrap(p.PSN, q.next)
	in := p.Opcode.Info()
	if in.Kind == packet.KindReadResponse {
		q.next = max(q.next, seq+1)
	}
	switch syn := p.AETH.Syndrome; {
	case in.Kind == packet.KindAck && syn == packet.NAKSequence:
		q.replaceReason(reason{capture.CauseNAK, seq, p.No, p.Time})
	case in.Kind == packet.KindAck && syn.IsRNR():
		q.replaceReason(reason{capture.CauseRNR, seq, p.No, p.Time})
	case q.reason.cause != "" && seq >= q.reason.seq && (in.Kind == packet.KindAck || seq == q.reason.seq):
		q.reason, q.naks = reason{}, nil // it was answered, or a missing response was only late
	}
	q.respond(p, in, seq)
	if s := &q.resend; s.no != 0 && seq >= s.seq && seq < s.until {
		return &capture.Remark{Answers: s.no}
	}
	return nil
}

// respond notes the response to a READ or atomic, or finds that a reply to a later request shows
// that one is missing (IBTA 9.7.5.1.1).
func (t *track) respond(p *capture.Packet, in *packet.Info, seq int64) {
	if len(t.reads) == 0 {
		return
	}
	w := &t.reads[0]
	isACK := in.Kind == packet.KindAck
	switch {
	case !isACK && seq == w.got && in.Position.EndsMessage():
		t.reads = t.reads[1:]
	case !isACK && seq == w.got:
		w.got++
	case !isACK && seq > w.got, isACK && p.AETH.Syndrome.IsACK() && seq >= w.end:
		t.missing(p, w.got)
	}
}

// replaceReason notes a NAK.
func (t *track) replaceReason(nak reason) {
	if t.reason.cause == capture.CauseNAK && len(t.naks) < maxNAKs {
		t.naks = append(t.naks, t.reason)
	}
	t.reason = nak
}

// missing notes that a packet shows the loss of a response.
func (t *track) missing(p *capture.Packet, seq int64) {
	if t.reason.cause == "" {
		t.reason = reason{capture.CauseResponse, seq, p.No, p.Time}
	}
}

// requester returns the track with the request that a reply is for: the one that it was for before,
// if that fits, or else the one that has last sent a PSN near it. The responses to a READ may be
// ahead of it while the path MTU is not known.
func (r *Remarks) requester(t *track, p *capture.Packet) *track {
	const near = 1 << 16
	ahead := int64(0)
	if p.Opcode.Info().Kind == packet.KindReadResponse {
		ahead = near
	}
	behind := func(q *track) int64 { return q.next - Unwrap(p.PSN, q.next) }
	fits := func(q *track) bool { return q.begun && behind(q) >= -ahead && behind(q) < near }
	if t.answers != nil && fits(t.answers) {
		return t.answers
	}
	distance := func(q *track) int64 { return max(behind(q), -behind(q)) }
	var best *track
	for _, q := range r.between[[2]netip.Addr{p.Dst, p.Src}] {
		if fits(q) && (best == nil || t.closer(q, best, distance)) {
			best = q
		}
	}
	if best != nil {
		t.answers = best
	}
	return best
}

// closer reports whether replies of t are rather for requests of q than of o. What one interface
// has captured belongs together.
func (t *track) closer(q, o *track, distance func(*track) int64) bool {
	if same := q.iface == t.iface; same != (o.iface == t.iface) {
		return same
	}
	if a, b := distance(q), distance(o); a != b {
		return a < b
	}
	return q.at.After(o.at)
}
