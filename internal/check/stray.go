package check

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

// A stray packet belongs to a connection by its PSN, but has another address or destination queue
// pair. To the survey it is a flow of its own, of a packet or two.

// maxStray is the number of packets of a flow that may be stray, maxOwners the number of flows that
// are considered as its owner.
const (
	maxStray  = 2
	maxOwners = 64
)

// A nearFlows finds paired flows that have two of source, destination and queue pair in common with
// a stray one.
type nearFlows map[nearKey][]*flow

// A nearKey is the key of a flow without one of its parts.
type nearKey struct {
	src, dst netip.Addr
	qpn      uint32
}

const anyQPN = 1 << 24

// nearKeys returns what a flow has in common with one that differs in one part.
func nearKeys(k conversation.FlowKey) [3]nearKey {
	return [3]nearKey{{src: k.Src, dst: k.Dst, qpn: anyQPN}, {dst: k.Dst, qpn: k.QPN}, {src: k.Src, qpn: k.QPN}}
}

// findStrays prepares the search for the owners of stray packets.
func (fs *flows) findStrays() {
	wanted := map[nearKey]bool{}
	for _, f := range fs.list {
		if f.stray = f.peer == nil && f.Packets <= maxStray; f.stray {
			for _, k := range nearKeys(f.FlowKey) {
				wanted[k] = true
			}
		}
	}
	fs.near = nearFlows{}
	for _, f := range fs.list {
		if f.peer == nil {
			continue
		}
		for _, k := range nearKeys(f.FlowKey) {
			if wanted[k] && len(fs.near[k]) < maxOwners {
				fs.near[k] = append(fs.near[k], f)
			}
		}
	}
}

// findOwner makes p a packet of the connection that it belongs to, if it is a stray one.
func (j *judge) findOwner(p *judgedPacket) {
	if !p.flow.stray {
		return
	}
	for _, k := range nearKeys(p.flow.FlowKey) {
		for _, f := range j.near[k] {
			if p.No < f.Last+maxOwners && (f.First < p.No && f.expects(p) || j.isFirst(p, f)) {
				j.violates(p, ruleStray, "%v with PSN %d from %v to %v QP %#x, the connection is from %v to QP %#x", p.Opcode, p.PSN, p.Src, p.Dst, p.DestQP, f.Src, f.QPN)
				p.flow = f
				return
			}
		}
	}
}

// isFirst reports whether p is the first request of f according to the connection manager.
func (j *judge) isFirst(p *judgedPacket, f *flow) bool {
	s := j.setups.flows.get(f.FlowKey)
	return s != nil && p.info.Request && p.PSN == s.psn
}

// expects reports whether p has the PSN that the connection of f expects next, or repeats a
// request.
func (f *flow) expects(p *judgedPacket) bool {
	s := f.stream
	if !p.info.Request {
		if f.peer == nil {
			return false
		}
		s = f.peer.stream
	}
	if s == nil || !s.started {
		return false
	}
	seq := s.unwrap(p.PSN)
	if p.info.Request {
		return seq == s.next || s.repeats(p, seq)
	}
	return seq > s.accepted && seq < s.next
}

// awaitsResponse reports whether a request with a response of its own has a PSN.
func (s *stream) awaitsResponse(psn uint32) bool {
	r := s.requestAt(s.unwrap(psn))
	return r != nil && r.Info.Kind.HasOwnResponse()
}

// repeats reports whether p is the request with its PSN once more.
func (s *stream) repeats(p *judgedPacket, seq int64) bool {
	r := s.requestAt(seq)
	if r == nil || r.opcode != p.Opcode {
		return false
	}
	if r.Seq != seq {
		return s.isPartOf(p, r, seq)
	}
	content, captured := s.contentOf(p)
	return content == r.content && captured == r.captured
}

// service judges whether p has the service of its queue pair. If only the service is wrong, p is
// judged on as if it were right.
func (j *judge) service(p *judgedPacket) {
	f := p.flow
	if f == nil || p.info.Service == packet.CNP {
		return
	}
	right := packet.Service(f.Services.Value())
	if p.info.Service == right {
		return
	}
	meant := *p
	meant.Packet = &capture.Packet{}
	*meant.Packet = *p.Packet
	meant.Opcode = packet.Opcode(right) | p.Opcode&0x1f
	meant.info = meant.Opcode.Info()
	if !meant.info.Valid || !f.expects(&meant) {
		return
	}
	if !f.otherService {
		j.violates(p, ruleService, "%v with PSN %d, the service of QP %#x is %v", p.Opcode, p.PSN, p.DestQP, right)
		f.otherService = true
	}
	p.Packet, p.info, p.accused = meant.Packet, meant.info, true
}

// reject keeps a packet that a queue pair discards before it looks at its connection. What a
// responder acknowledges nevertheless is not missing in the capture.
func (j *judge) reject(p *judgedPacket) {
	f := p.flow
	if f == nil || errors.Is(p.Err, packet.ErrShort) && len(p.Transport) < packet.BTHLen {
		return
	}
	if p.isRequest() && (f.stream != nil || j.isFirst(p, f)) {
		j.streamOf(f).keepStandIn(p)
	}
	if f.peer != nil && f.peer.stream != nil && !p.isRequest() {
		f.peer.stream.explains(p)
		if r := f.peer.stream.requestAt(f.peer.stream.unwrap(p.PSN)); r != nil {
			r.reported = true
		}
	}
}

// A standIn is a packet that is in the capture where a PSN is missing.
type standIn struct {
	request
	known bool // its headers are readable
}

// maxStandIns bounds those of a stream.
const maxStandIns = 64

func (s *stream) keepStandIn(p *judgedPacket) {
	if !s.started {
		s.rejectedFirst = p
		return
	}
	seq := s.unwrap(p.PSN)
	s.nak.served = s.nak.served || s.nak.active && seq == s.nak.seq
	if r := s.requestAt(seq); r != nil {
		r.transmissions++ // a responder may answer it
		if p.Err == nil && seq > r.Seq {
			s.isPartialRead(p, r, seq)
		}
	}
	if seq < s.contiguous || s.far(seq) {
		return
	}
	s.keepAs(p, seq)
}

// keepAs keeps p as the request with a PSN, in case that it is acknowledged.
func (s *stream) keepAs(p *judgedPacket, seq int64) {
	in := standIn{request: request{Part: conversation.Part{Info: p.info, Seq: seq, NumPSNs: 1}, no: p.No, at: p.at}}
	if p.Err == nil && p.info.Valid {
		in = standIn{request: s.newRequest(p, seq), known: true}
		in.accused = true
	}
	if len(s.standIns) == maxStandIns {
		s.standIns = append(s.standIns[:0], s.standIns[1:]...)
	}
	s.standIns = append(s.standIns, in)
}

// rejectedOf returns how many rejected packets have a PSN.
func (s *stream) rejectedOf(seq int64) (n int) {
	for i := range s.standIns {
		n += bit(s.standIns[i].Seq == seq)
	}
	return n
}

// useStandIn inserts the packet kept for the first PSN that is missing, and reports whether there
// is one.
func (s *stream) useStandIn() bool {
	for i, in := range s.standIns {
		if in.Seq != s.contiguous {
			continue
		}
		s.standIns = append(s.standIns[:i], s.standIns[i+1:]...)
		end := in.End()
		if in.known {
			s.insert(in.request)
		} else {
			s.skip(end)
			s.unread = end
		}
		s.next = max(s.next, end)
		return true
	}
	return false
}

// answersUnread reports whether p is one more packet of the response to a packet that cannot be
// read, and was kept as a request: a READ, whose PSNs only its response shows.
func (s *stream) answersUnread(p *judgedPacket, seq int64) bool {
	if p.info.Kind != packet.KindReadResponse || seq != s.unread || seq != s.contiguous {
		return false
	}
	s.skip(seq + 1)
	s.next = max(s.next, seq+1)
	s.unread = seq + 1
	return true
}

// withUDPLength returns the packet that a frame would be with the right UDP length, nil if
// something else is wrong.
func withUDPLength(rec capture.Record, err error) *judgedPacket {
	var pe *packet.ParseError
	if !errors.As(err, &pe) || pe.Reason != packet.ErrUDPLength || pe.Offset < packet.IPv4Len+4 || pe.Offset+2 > len(rec.Data) {
		return nil
	}
	ip := rec.Data[pe.Offset-4-packet.IPv4Len:]
	if ip[0] != 0x45 {
		return nil
	}
	b := slices.Clone(rec.Data)
	binary.BigEndian.PutUint16(b[pe.Offset:], binary.BigEndian.Uint16(ip[2:])-packet.IPv4Len)
	rec.Data = b
	cp, err := conversation.ParseBTH(rec)
	if err != nil {
		return nil
	}
	return &judgedPacket{Packet: cp, info: cp.Opcode.Info(), at: cp.Time.UnixNano()}
}
