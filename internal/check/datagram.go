package check

import (
	"errors"

	"softroce/cm"
	"softroce/internal/ib"
	"softroce/packet"
)

// datagram judges a UD packet. Management datagrams are counted by name; those of the connection
// manager say how connections begin.
func (j *judge) datagram(p *judgedPacket) {
	switch p.DestQP {
	case ib.SMIQPN:
		j.smp(p)
		return
	case cm.GSIQPN:
	default:
		if p.AckReq {
			j.noteOn(p, noteAckReq)
		}
		return
	}
	if p.AckReq {
		j.noteOn(p, noteGSIAckReq)
	}
	switch {
	case p.headersCut:
		return
	case p.DETH.QKey != cm.GSIQKey:
		j.violates(p, ruleQKey, "Q_Key %#08x", p.DETH.QKey)
	case p.DETH.SrcQP != cm.GSIQPN && (p.Network != packet.InfiniBand || p.DETH.SrcQP == ib.SMIQPN):
		j.violates(p, ruleGSI, "from QP %#x", p.DETH.SrcQP)
	case len(p.Payload) != cm.MADSize:
		j.violates(p, ruleGSI, "%d bytes", len(p.Payload))
	}
	h, m, err := cm.Parse(p.Payload)
	switch {
	case m != nil:
		j.CM[m.Attribute().String()]++
	case errors.Is(err, cm.ErrSize) || h.Class == cm.ClassCM:
		j.CM["unknown"]++
	default:
		if ib.IsSubn(h.Class) {
			j.violates(p, ruleSMP, "%s to QP 1", ib.MADName(h.Class, h.Method, uint16(h.Attribute)))
		}
		j.countMAD(&h)
	}
	if !p.cut() {
		j.message(p, m)
	}
}

// smp judges a datagram to QP 0.
func (j *judge) smp(p *judgedPacket) {
	if p.headersCut {
		return
	}
	h, err := cm.ParseHeader(p.Payload)
	switch {
	case p.DETH.SrcQP != ib.SMIQPN:
		j.violates(p, ruleSMP, "from QP %#x", p.DETH.SrcQP)
	case err != nil:
		j.violates(p, ruleSMP, "%d bytes", len(p.Payload))
	case !p.cut() && !ib.IsSubn(h.Class):
		j.violates(p, ruleSMP, "%s to QP 0", ib.MADName(h.Class, h.Method, uint16(h.Attribute)))
	}
	if err == nil && !p.cut() {
		j.countMAD(&h)
	}
}

// maxMADs bounds the names of management datagrams that are counted.
const maxMADs = 256

func (j *judge) countMAD(h *cm.Header) {
	name := ib.MADName(h.Class, h.Method, uint16(h.Attribute))
	if _, ok := j.MADs[name]; !ok && len(j.MADs) >= maxMADs {
		name = "other"
	}
	j.MADs[name]++
}

// cnpLen is the number of bytes after the BTH of a CNP (annex A17).
const cnpLen = 16

// cnp judges a congestion notification packet.
func (j *judge) cnp(p *judgedPacket) {
	zero := true
	for _, b := range p.Payload {
		zero = zero && b == 0
	}
	if !p.BECN || p.PSN != 0 || p.AckReq || len(p.Payload) != cnpLen || !zero {
		j.violates(p, ruleCNP, "BECN %d, PSN %d, AckReq %d, % x", bit(p.BECN), p.PSN, bit(p.AckReq), p.Payload)
	}
	j.CNPs++
	f := p.flow
	if f == nil {
		return
	}
	if f.cnps > 0 && p.at >= f.cnpAt && p.at-f.cnpAt < cnpInterval {
		j.violates(p, ruleCNPPace, "%d ns after the previous one", p.at-f.cnpAt)
	}
	f.cnps++
	f.cnpAt = p.at
}

// mayNeedRNR reports whether a request of a kind may be answered with an RNR NAK. A WRITE without
// immediate consumes no receive and no responder resource.
func mayNeedRNR(in *packet.Info) bool { return in.Kind != packet.KindWrite || in.ConsumesRecv }
