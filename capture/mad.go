package capture

import (
	"fmt"
	"strconv"

	"softroce/cm"
	"softroce/internal/ib"
	"softroce/packet"
)

// A MAD is a management datagram: the payload of a UD packet to QP 1 or, of subnet management, QP
// 0.
type MAD struct {
	Class     uint8
	Method    uint8
	Attribute uint16
	Status    uint16
	TID       uint64

	// Message is the name of a connection manager message ("REQ"), or that of another MAD in the
	// notation of the specification ("SubnGet(NodeInfo)").
	Message string
	// Fields are the fields of a connection manager or subnet management message, in the order in
	// which Decode prints them.
	Fields []MADField
}

// A MADField is a field of a message.
type MADField struct {
	Name  string
	Value any    // uint32, uint64, string, netip.Addr or netip.AddrPort
	Text  string // Value as Decode prints it: identifiers in hexadecimal, strings in quotes
}

// MAD returns the management datagram that the packet carries; false if it carries none.
func (p *Packet) MAD() (MAD, bool) {
	if p.Err != nil || p.Opcode.Service() != packet.UD || p.DestQP != cm.GSIQPN && p.DestQP != ib.SMIQPN {
		return MAD{}, false
	}
	h, m, err := cm.Parse(p.Payload)
	if err == cm.ErrSize {
		return MAD{}, false
	}
	d := MAD{Class: h.Class, Method: h.Method, Attribute: uint16(h.Attribute), Status: h.Status, TID: h.TID}
	var fields []cm.Field
	switch {
	case m != nil:
		d.Message, fields = m.Attribute().String(), cm.Describe(m)
	case ib.IsSubn(h.Class):
		fields = smpFields(&d, p.Payload)
		fallthrough
	default:
		d.Message = ib.MADName(h.Class, h.Method, d.Attribute)
	}
	for _, f := range fields {
		d.Fields = append(d.Fields, madField(f))
	}
	return d, true
}

func madField(f cm.Field) MADField {
	o := MADField{f.Name, f.Value, fmt.Sprint(f.Value)}
	switch v := f.Value.(type) {
	case string:
		o.Text = strconv.Quote(v)
	case uint8:
		o.Value = uint32(v)
	case uint16:
		o.Value = uint32(v)
	case cm.Hex:
		o.Value = uint32(v)
	case cm.Hex64:
		o.Value = uint64(v)
	}
	return o
}

// appendMAD appends the fields of a management datagram.
func (p *Packet) appendMAD(b []byte) []byte {
	d, ok := p.MAD()
	if !ok {
		return b
	}
	b = fmt.Appendf(b, " mad.message=%s", d.Message)
	if d.Class != ib.ClassCM || len(d.Fields) == 0 {
		b = fmt.Appendf(b, " mad.class=%#x mad.method=%#x mad.attribute=%#x mad.status=%#x", d.Class, d.Method, d.Attribute, d.Status)
	}
	b = fmt.Appendf(b, " mad.tid=%#x", d.TID)
	for _, f := range d.Fields {
		b = fmt.Appendf(b, " mad.%s=%s", f.Name, f.Text)
	}
	return b
}

type jsonMAD struct {
	Class     uint8          `json:"class"`
	Method    uint8          `json:"method"`
	Attribute uint16         `json:"attribute"`
	Status    uint16         `json:"status"`
	TID       hex64          `json:"tid"`
	Message   string         `json:"message"`          // "REQ", "SubnGet(NodeInfo)"
	Fields    map[string]any `json:"fields,omitempty"` // of the message
}

func (j *jsonPacket) setMAD(p *Packet) {
	d, ok := p.MAD()
	if !ok {
		return
	}
	j.MAD = &jsonMAD{
		Class: d.Class, Method: d.Method, Attribute: d.Attribute, Status: d.Status, TID: hex64(d.TID), Message: d.Message,
	}
	if len(d.Fields) == 0 {
		return
	}
	j.MAD.Fields = map[string]any{}
	for _, f := range d.Fields {
		if v, ok := f.Value.(uint64); ok {
			f.Value = hex64(v)
		}
		j.MAD.Fields[f.Name] = f.Value
	}
}
