package check

import (
	"cmp"
	"errors"
	"hash/maphash"
	"slices"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

// A judge is the second pass over a capture.
type judge struct {
	*Report
	*flows
	views    *conversation.Views
	mirror   *conversation.Mirror // nil if there is no mirror port
	ids      identifications
	setups   setups
	seed     maphash.Seed // of the hashes of contents
	requests int          // kept, of all streams
}

func newJudge(fs *flows) *judge {
	return &judge{Report: newReport(), flows: fs, views: conversation.NewViews(), ids: identifications{}, seed: maphash.MakeSeed()}
}

// A judgedPacket is a packet that the rules are applied to.
type judgedPacket struct {
	*capture.Packet
	info *packet.Info
	at   int64 // nanoseconds
	flow *flow // nil for UD and CNP, and beyond conversation.MaxFlows

	counter *counter // of the Identifications between its hosts
	counted int      // its number there

	late conversation.Lateness

	headersCut bool // the capture ends inside the headers
	accused    bool // it violates a rule
}

// name names the packets that go where p does. A stray packet has the flow of its owner.
func (p *judgedPacket) name() string {
	k := conversation.KeyOf(p.Packet)
	if p.flow != nil && p.flow.FlowKey == k {
		return p.flow.name
	}
	return k.String()
}

// cut reports whether the capture has only a part of the packet.
func (p *judgedPacket) cut() bool { return conversation.IsCut(p.Record) }

// captured returns how many bytes of the packet from the BTH on the capture has.
func (p *judgedPacket) captured() int {
	return len(p.Transport) - max(0, p.Length-len(p.Trailer)-len(p.Data))
}

// violates reports the first violation by p. Further ones have the same cause.
func (j *judge) violates(p *judgedPacket, r Rule, format string, a ...any) {
	if p.accused {
		return
	}
	p.accused = true
	j.violation(r, p.No, p.name(), p.isRequest(), format, a...)
}

// isRequest reports whether p is a request. If its opcode is not assigned, the PSN and the other
// packets of its flow show that.
func (p *judgedPacket) isRequest() bool {
	if p.info.Valid || p.flow == nil {
		return p.info.Request
	}
	meant := *p
	meant.info = &packet.Info{Request: true}
	if meant.info.Request = false; len(p.Transport) == packet.BTHLen+packet.AETHLen+packet.ICRCLen && p.flow.expects(&meant) {
		return false
	}
	response := p.flow.expects(&meant) && p.flow.peer.stream.awaitsResponse(p.PSN)
	meant.info.Request = true
	return p.flow.expects(&meant) || !response && 2*p.flow.Requests > p.flow.Packets
}

func (j *judge) noteOn(p *judgedPacket, kind Rule) { j.note(kind, p.No, p.name()) }

// record judges the next frame.
func (j *judge) record(rec capture.Record) {
	cp, err := conversation.ParseBTH(rec)
	switch {
	case errors.Is(err, packet.ErrNotRoCE):
		j.Other++
		return
	case err != nil:
		j.unreadable(rec, err)
		return
	}
	j.RoCE++
	j.RoCEv1 += bit(cp.Network == packet.RoCEv1)
	j.InfiniBand += bit(cp.Network == packet.InfiniBand)
	if j.mirror.IsCopy(cp) || j.views.IsAnother(cp) {
		j.Views++
		return
	}
	p := &judgedPacket{Packet: cp, info: cp.Opcode.Info(), at: cp.Time.UnixNano()}
	p.flow = j.of(cp)
	if p.cut() {
		j.note(noteCut, rec.No, "")
		p.headersCut = p.captured() < p.info.HeaderLen
	}
	j.Services[service(cp.Opcode)]++
	j.ids.add(p)
	if !j.readable(p) {
		j.reject(p)
		return
	}
	if p.IsCE() {
		j.CEMarks++
	}
	j.service(p)
	j.headers(p)
	switch {
	case p.info.Service == packet.CNP:
		j.cnp(p)
	case p.info.Service == packet.UD:
		j.datagram(p)
	case p.flow == nil:
		j.Beyond++
		j.note(noteMany, p.No, "")
	default:
		j.connected(p)
	}
}

func service(o packet.Opcode) string {
	switch s := o.Service(); s {
	case packet.RC, packet.UC, packet.RD, packet.UD, packet.CNP, packet.XRC:
		return s.String()
	}
	return "other"
}

// unreadable judges a frame to RoCEv2's UDP port, of RoCE v1 or of InfiniBand whose headers cannot
// be parsed.
func (j *judge) unreadable(rec capture.Record, err error) {
	j.RoCE++
	j.RoCEv1 += bit(isRoCEv1(rec))
	j.InfiniBand += bit(rec.LinkType == capture.InfiniBand)
	if rec.Length > len(rec.Data) {
		j.Cut++
		j.note(noteCut, rec.No, "")
		return
	}
	p := withUDPLength(rec, err)
	if p == nil {
		j.violation(ruleFrame, rec.No, "?", true, "%v", err)
		return
	}
	p.flow = j.of(p.Packet)
	j.violates(p, ruleFrame, "%v", err)
	j.reject(p)
}

// isRoCEv1 reports whether a frame that cannot be parsed is one of RoCE v1.
func isRoCEv1(rec capture.Record) bool {
	var f packet.Frame
	return rec.LinkType == capture.Ethernet && packet.ParseFrame(rec.Data, &f) != nil && f.Network == packet.RoCEv1
}

// readable applies the rules that all others depend on, and reports whether p keeps to them.
func (j *judge) readable(p *judgedPacket) bool {
	switch s := p.Opcode.Service(); {
	case !p.cut() && !p.VCRCOK():
		vcrc, _ := p.VCRC()
		j.violates(p, ruleVCRC, "%v with VCRC %#04x, expected %#04x", p.Opcode, vcrc, packet.VCRC(p.Link))
		return false
	case !p.cut() && !p.ICRCOK():
		j.violates(p, ruleICRC, "%v with ICRC %#08x, expected %#08x", p.Opcode, p.ICRC(), packet.ICRCBytes(&p.Addressing, p.Transport[:len(p.Transport)-packet.ICRCLen]))
		return false
	case s == packet.RD || s > packet.XRC || s == packet.CNP && p.Network != packet.RoCEv2:
		j.RD++
		j.noteOn(p, noteForeign)
		return false
	case errors.Is(p.Err, packet.ErrOpcode):
		j.violates(p, ruleOpcode, "opcode %#02x", uint8(p.Opcode))
		return false
	case errors.Is(p.Err, packet.ErrPad):
		j.violates(p, rulePad, "%v with a pad of %d and no payload", p.Opcode, p.Pad)
		return false
	case p.Err != nil:
		j.violates(p, ruleShort, "%v: %v", p.Opcode, p.Err)
		return false
	}
	return true
}

// connected judges a packet of RC, XRC or UC.
func (j *judge) connected(p *judgedPacket) {
	j.findOwner(p)
	f := p.flow
	j.constants(p)
	late := f.order.lateness(p)
	p.late = late
	if !p.info.Request {
		if f.peer != nil && !f.order.isDuplicate(p) {
			j.streamOf(f.peer).reply(p, late)
		}
		return
	}
	j.streamOf(f)
	if p.info.Service == packet.UC {
		f.stream.ucRequest(p, late)
	} else {
		f.stream.request(p, late)
	}
}

func (j *judge) streamOf(f *flow) *stream {
	if f.stream == nil {
		f.stream = &stream{judge: j, flow: f}
	}
	return f.stream
}

// constants judges fields that do not change within a flow or connection.
func (j *judge) constants(p *judgedPacket) {
	f := p.flow
	if !f.seen {
		f.seen, f.migReq = true, p.MigReq
		j.Flows++
		j.MigReq[bit(p.MigReq)]++
	}
	if p.MigReq != f.migReq {
		j.noteOn(p, noteMigReq)
		f.migReq = p.MigReq
	}
	if p.SrcPort != f.port {
		j.noteOn(p, noteSourcePort)
		f.port = p.SrcPort
	}
	j.partition(p)
	if p.IsCE() && p.info.Request {
		f.lastCE = p.No
	}
	if p.info.Request {
		f.requests++
	} else {
		f.replies++
	}
}

// partition judges the P_Key, and reports each other one once.
func (j *judge) partition(p *judgedPacket) {
	const membership = 0x8000
	f := p.flow
	if f.peer == nil {
		return
	}
	first, other := f.PKeys, f.peer.PKeys
	if f.Number > f.peer.Number {
		first, other = other, first
	}
	want := first.Value()
	if other.Votes() > first.Votes() {
		want = other.Value()
	}
	if got := p.PKey &^ membership; got != want && p.PKey != f.wrongPKey {
		f.wrongPKey = p.PKey
		j.violates(p, rulePKey, "P_Key %#04x, most packets of the connection have %#04x", p.PKey, want|p.PKey&membership)
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (j *judge) finish() {
	for _, f := range j.list {
		switch {
		case f.peer == nil && f.Reliable():
			j.unpaired(f)
		case f.peer != nil && f.Number <= f.peer.Number:
			j.Connections++
		}
		if f.lastCE != 0 && (f.peer == nil || f.peer.cnps == 0) {
			j.note(noteNoCNP, f.lastCE, f.name)
		}
		if f.stream != nil {
			f.stream.finish()
		}
	}
	slices.SortStableFunc(j.Violations, func(a, b Violation) int { return cmp.Compare(a.Packet, b.Packet) })
	j.NotJudged, j.Verdict = append([]string{}, j.Incomplete()...), j.verdict()
}
