package capture

import (
	"fmt"
	"strconv"

	"softroce/cm"
	"softroce/packet"
)

// A MAD is a management datagram: the payload of a UD packet to QP 1.
type MAD struct {
	Class     uint8
	Method    uint8
	Attribute uint16
	Status    uint16
	TID       uint64

	// Message is the name of a connection manager message ("REQ"), empty for any other MAD.
	Message string
	// Fields are the fields of a connection manager message, in the order in which Decode prints
	// them.
	Fields []MADField
}

// A MADField is a field of a connection manager message.
type MADField struct {
	Name  string
	Value any    // uint32, uint64, string, netip.Addr or netip.AddrPort
	Text  string // Value as Decode prints it: identifiers in hexadecimal, strings in quotes
}

// MAD returns the management datagram that the packet carries; false if it carries none.
func (p *Packet) MAD() (MAD, bool) {
	if p.Err != nil || p.Opcode.Service() != packet.UD || p.DestQP != cm.GSIQPN {
		return MAD{}, false
	}
	h, m, err := cm.Parse(p.Payload)
	if err == cm.ErrSize {
		return MAD{}, false
	}
	d := MAD{Class: h.Class, Method: h.Method, Attribute: uint16(h.Attribute), Status: h.Status, TID: h.TID}
	if m != nil {
		d.Message = m.Attribute().String()
		for _, f := range cm.Describe(m) {
			d.Fields = append(d.Fields, madField(f))
		}
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
	if d.Message == "" {
		return fmt.Appendf(b, " mad.class=%#x mad.method=%#x mad.attribute=%#x mad.status=%#x mad.tid=%#x",
			d.Class, d.Method, d.Attribute, d.Status, d.TID)
	}
	b = fmt.Appendf(b, " mad.message=%s mad.tid=%#x", d.Message, d.TID)
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
	Message   string         `json:"message,omitempty"` // of the connection manager: "REQ"
	Fields    map[string]any `json:"fields,omitempty"`  // of the message
}

func (j *jsonPacket) setMAD(p *Packet) {
	d, ok := p.MAD()
	if !ok {
		return
	}
	j.MAD = &jsonMAD{
		Class: d.Class, Method: d.Method, Attribute: d.Attribute, Status: d.Status, TID: hex64(d.TID), Message: d.Message,
	}
	if d.Message == "" {
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
