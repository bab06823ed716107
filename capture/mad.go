package capture

import (
	"fmt"

	"softroce/cm"
	"softroce/packet"
)

// MAD returns the management datagram that the packet carries, if it is one: UD to QP 1. The message is nil
// where it is none of the connection manager.
func (p *Packet) MAD() (cm.Header, cm.Message, bool) {
	if p.Err != nil || p.Opcode.Service() != packet.UD || p.DestQP != cm.GSIQPN {
		return cm.Header{}, nil, false
	}
	h, m, err := cm.Parse(p.Payload)
	return h, m, err != cm.ErrSize
}

// appendMAD appends the fields of a management datagram.
func (p *Packet) appendMAD(b []byte) []byte {
	h, m, ok := p.MAD()
	if !ok {
		return b
	}
	if m == nil {
		return fmt.Appendf(b, " mad.class=%#x mad.method=%#x mad.attribute=%#x mad.status=%#x mad.tid=%#x",
			h.Class, h.Method, uint16(h.Attribute), h.Status, h.TID)
	}
	b = fmt.Appendf(b, " mad.message=%v mad.tid=%#x", m.Attribute(), h.TID)
	for _, f := range cm.Describe(m) {
		if s, ok := f.Value.(string); ok {
			b = fmt.Appendf(b, " mad.%s=%q", f.Name, s)
		} else {
			b = fmt.Appendf(b, " mad.%s=%v", f.Name, f.Value)
		}
	}
	return b
}

type jsonMAD struct {
	Class     uint8          `json:"class"`
	Method    uint8          `json:"method"`
	Attribute uint16         `json:"attribute"`
	Status    uint16         `json:"status"`
	TID       hex64          `json:"tid"`
	Message   string         `json:"message,omitempty"` // of the connection manager: "REQ"
	Fields    map[string]any `json:"fields,omitempty"`  // what it says
}

func (j *jsonPacket) setMAD(p *Packet) {
	h, m, ok := p.MAD()
	if !ok {
		return
	}
	j.MAD = &jsonMAD{Class: h.Class, Method: h.Method, Attribute: uint16(h.Attribute), Status: h.Status, TID: hex64(h.TID)}
	if m == nil {
		return
	}
	j.MAD.Message, j.MAD.Fields = m.Attribute().String(), map[string]any{}
	for _, f := range cm.Describe(m) {
		if v, ok := f.Value.(cm.Hex64); ok {
			f.Value = hex64(v)
		}
		j.MAD.Fields[f.Name] = f.Value
	}
}
