package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"softroce/capture"
	"softroce/packet"
)

// parseMatcher parses the description of a packet and returns a function that checks a packet
// against it.
func (s *script) parseMatcher(args *arguments, q *queuePair) (func(*capture.Packet) error, error) {
	name, err := args.next("an opcode")
	if err != nil {
		return nil, err
	}
	op, err := parseOpcode(name, q.typ)
	if err != nil {
		return nil, err
	}
	m := &packetMatch{op: op}
	if err := m.addressing(args); err != nil {
		return nil, err
	}
	options, err := s.expand(args.options)
	if err != nil {
		return nil, err
	}
	args.options = nil
	for _, o := range options {
		f := fieldNamed(o.name)
		if f == nil {
			return nil, fmt.Errorf("unknown field %q", o.name)
		}
		if err := f.check(op); err != nil {
			return nil, err
		}
		v, mask, err := s.fieldValue(f, o.value)
		if err != nil {
			return nil, err
		}
		m.fields = append(m.fields, fieldMatch{f, v, mask, o.value})
	}
	return m.check, nil
}

// A packetMatch describes an expected packet.
type packetMatch struct {
	op      packet.Opcode
	fields  []fieldMatch
	payload []byte // nil: any
	length  int    // of the payload; -1: any
	tclass  int    // -1: any
	hops    int    // -1: any
	vlan    int    // -1: any

	priority, srcPort int // -1: any

	network packet.Network // InfiniBand: any
}

// addressing parses the options for the payload and for the headers outside of the transport.
func (m *packetMatch) addressing(args *arguments) (err error) {
	m.length, m.tclass, m.hops, m.vlan, m.priority, m.srcPort = -1, -1, -1, -1, -1, -1
	if d, ok := args.option("payload"); ok {
		if m.payload, err = parseData(d); err != nil {
			return err
		}
		m.length = len(m.payload)
	}
	for name, to := range map[string]*int{"payload_len": &m.length, "tclass": &m.tclass, "hop_limit": &m.hops, "vlan": &m.vlan,
		"priority": &m.priority, "src_port": &m.srcPort} {
		v, ok := args.option(name)
		if !ok {
			continue
		}
		n, err := parseNumber(v, 31)
		if err != nil {
			return fmt.Errorf("%s=%s: %w", name, v, err)
		}
		*to = int(n)
	}
	m.network, err = parseRoCE(args, packet.InfiniBand)
	return err
}

// names reports whether the script specifies a field.
func (m *packetMatch) names(name string) bool {
	return slices.ContainsFunc(m.fields, func(w fieldMatch) bool { return w.f.name == name })
}

// check compares p with the description, and with what holds for every packet unless the script
// specifies otherwise.
func (m *packetMatch) check(p *capture.Packet) error {
	if p.Opcode != m.op {
		return fmt.Errorf("it is %v", p.Opcode)
	}
	for i := range m.fields {
		if err := m.fields[i].check(p); err != nil {
			return err
		}
	}
	switch {
	case p.Err != nil:
		return p.Err
	case !p.ICRCOK():
		return errors.New("its ICRC is wrong")
	case p.TVer != 0 && !m.names("tver"):
		return fmt.Errorf("tver is %d", p.TVer)
	case p.PKey != packet.DefaultPKey && !m.names("pkey"):
		return fmt.Errorf("pkey is %#04x", p.PKey)
	case m.length >= 0 && len(p.Payload) != m.length:
		return fmt.Errorf("it has %d bytes of payload, want %d", len(p.Payload), m.length)
	case m.payload != nil && !bytes.Equal(p.Payload, m.payload):
		return fmt.Errorf("its payload is %s", formatData(p.Payload))
	case m.tclass >= 0 && int(p.TClass) != m.tclass:
		return fmt.Errorf("tclass is %#02x", p.TClass)
	case m.hops >= 0 && int(p.HopLimit) != m.hops:
		return fmt.Errorf("hop_limit is %d", p.HopLimit)
	case m.vlan >= 0 && int(p.TCI&0xfff) != m.vlan:
		return fmt.Errorf("vlan is %d", p.TCI&0xfff)
	case m.priority >= 0 && int(p.TCI>>13) != m.priority:
		return fmt.Errorf("priority is %d", p.TCI>>13)
	case m.network != packet.InfiniBand && p.Network != m.network:
		return fmt.Errorf("it is of %v", p.Network)
	case m.srcPort >= 0 && int(p.SrcPort) != m.srcPort:
		return fmt.Errorf("src_port is %d", p.SrcPort)
	}
	return nil
}
