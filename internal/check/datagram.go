package check

import (
	"errors"
	"fmt"

	"softroce/cm"
	"softroce/packet"
)

// datagram judges a UD packet. Messages to QP 1 are those of the connection manager: they are
// counted by name, and say how connections begin.
func (j *judge) datagram(p *judgedPacket) {
	if p.DestQP != cm.GSIQPN {
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
	case p.DETH.SrcQP != cm.GSIQPN:
		j.violates(p, ruleGSI, "from QP %#x", p.DETH.SrcQP)
	case len(p.Payload) != cm.MADSize:
		j.violates(p, ruleGSI, "%d bytes", len(p.Payload))
	}
	h, m, err := cm.Parse(p.Payload)
	j.CM[madName(h, m, err)]++
	if !p.cut() {
		j.message(p, m)
	}
}

// madName returns the name of a datagram to QP 1.
func madName(h cm.Header, m cm.Message, err error) string {
	switch {
	case m != nil:
		return m.Attribute().String()
	case !errors.Is(err, cm.ErrSize) && h.Class != cm.ClassCM:
		return fmt.Sprintf("class %#02x", h.Class)
	}
	return "unknown"
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
