package check

import (
	"encoding/binary"
	"fmt"

	"softroce/packet"
)

// gsiQKey is the Q_Key of QP 1.
const gsiQKey = 0x80010000

// datagram judges a UD packet. Messages to QP 1 are those of the connection manager: they are
// counted by name, and their content is not judged.
func (j *judge) datagram(p *judgedPacket) {
	if p.DestQP != 1 {
		if p.AckReq {
			j.noteOn(p, noteAckReq)
		}
		return
	}
	if p.AckReq {
		j.noteOn(p, noteGSIAckReq)
	}
	if p.DETH.QKey != gsiQKey {
		j.violates(p, ruleQKey, "Q_Key %#08x", p.DETH.QKey)
	}
	j.CM[madName(p.Payload)]++
}

// Management datagrams of the connection manager (IBTA 13.4.3, 12.6): offsets of fields, and their
// values.
const (
	madLen    = 256
	madClass  = 1  // one byte
	madMethod = 3  // one byte
	madAttrID = 16 // two bytes

	classCM    = 7
	methodSend = 3
)

// cmAttributes are the messages of the connection manager.
var cmAttributes = map[uint16]string{
	0x10: "REQ", 0x11: "MRA", 0x12: "REJ", 0x13: "REP", 0x14: "RTU", 0x15: "DREQ", 0x16: "DREP",
	0x17: "SIDR_REQ", 0x18: "SIDR_REP", 0x19: "LAP", 0x1a: "APR",
}

// madName returns the name of a datagram to QP 1.
func madName(b []byte) string {
	if len(b) != madLen {
		return "unknown"
	}
	id := binary.BigEndian.Uint16(b[madAttrID:])
	if name := cmAttributes[id]; b[madClass] == classCM && b[madMethod] == methodSend && name != "" {
		return name
	}
	if b[madClass] != classCM {
		return fmt.Sprintf("class %#02x", b[madClass])
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
