package capture

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"softroce/packet"
)

// A Record is a frame of a capture.
type Record struct {
	No        int // number in the capture, from 1
	Time      time.Time
	Interface int
	NIC       string // name of the interface, if the capture has it
	LinkType  LinkType
	Length    int   // bytes on the wire; more than len(Data) if the capture truncated the frame
	Offset    int64 // offset of the record in its file
	Data      []byte

	// Comments are those that the capture has for the frame, such as what fault rules did with it.
	// They may hold any bytes.
	Comments []string
}

// A Packet is a parsed RoCE or InfiniBand packet of a capture. Its parts refer to Record.Data.
type Packet struct {
	Record
	packet.Frame
	packet.Header
	Payload []byte // without padding

	// Cut reports that the capture truncated the frame: see ParseCut. Payload is what is left of
	// it.
	Cut bool

	// Err says why extended headers and payload could not be parsed: packet.ErrShort,
	// packet.ErrOpcode or packet.ErrPad. Then only the BTH of Header is valid.
	Err error
}

// Parse parses the frame of a record. The error, if any, is a *packet.ParseError, which matches
// packet.ErrNotRoCE for a frame of another protocol.
func Parse(r Record) (*Packet, error) {
	p := &Packet{Record: r}
	if err := r.LinkType.parse(r.Data, &p.Frame); err != nil {
		return nil, err
	}
	at := len(r.Data) - len(p.Trailer) - len(p.Transport) // of the BTH
	covered := p.Transport[:len(p.Transport)-packet.ICRCLen]
	n, err := p.Header.Parse(covered)
	if err != nil {
		p.Err = &packet.ParseError{Reason: err, Offset: at}
		return p, nil
	}
	size, err := p.PayloadLen(len(covered))
	if err != nil {
		p.Err = &packet.ParseError{Reason: err, Offset: at + len(covered)}
		return p, nil
	}
	p.Payload = covered[n : n+size]
	return p, nil
}

// maxCutFrame bounds the length that a truncated frame may claim: no IP packet is longer.
const maxCutFrame = 1<<16 + 64

// ParseCut parses a frame that the capture truncated, as far as its headers are left: the BTH at
// least. Its ICRC is not known. The error of other frames is that of Parse.
func ParseCut(r Record) (*Packet, error) {
	if r.Length <= len(r.Data) || r.Length > maxCutFrame {
		return Parse(r)
	}
	if p, err := Parse(r); !errors.Is(err, packet.ErrTruncated) {
		return p, err
	}
	whole := r
	whole.Data = make([]byte, r.Length)
	have := copy(whole.Data, r.Data)
	p := &Packet{Record: r, Cut: true}
	if err := r.LinkType.parse(whole.Data, &p.Frame); err != nil {
		return nil, err
	}
	at := r.Length - len(p.Trailer) - len(p.Transport) // of the BTH
	if have < at+packet.BTHLen {
		return nil, &packet.ParseError{Reason: packet.ErrTruncated, Offset: have}
	}
	left := p.Transport[:min(have-at, len(p.Transport)-packet.ICRCLen)]
	n, err := p.Header.Parse(left)
	if errors.Is(err, packet.ErrShort) {
		err = packet.ErrTruncated
	}
	if err != nil {
		p.Err = &packet.ParseError{Reason: err, Offset: at}
		return p, nil
	}
	p.Payload = left[n:]
	return p, nil
}

// payloadLen returns the bytes of payload on the wire, without padding: more than those of Payload
// if the capture truncated the frame.
func (p *Packet) payloadLen() int {
	if !p.Cut || p.Err != nil {
		return len(p.Payload)
	}
	n, _ := p.Header.PayloadLen(len(p.Transport) - packet.ICRCLen)
	return max(n, len(p.Payload))
}

// String returns the packet's line of text, with the time in seconds of the minute.
func (p *Packet) String() string {
	return string(p.AppendText(nil, p.Time.Truncate(time.Minute)))
}

// Packets is a list of packets in the order of the capture.
type Packets []*Packet

// A Match reports whether a packet is one that is looked for.
type Match func(*Packet) bool

// Where returns the packets that every match accepts.
func (ps Packets) Where(matches ...Match) Packets {
	var found Packets
	for _, p := range ps {
		if all(p, matches) {
			found = append(found, p)
		}
	}
	return found
}

// Find returns the first packet that every match accepts, or nil.
func (ps Packets) Find(matches ...Match) *Packet {
	for _, p := range ps {
		if all(p, matches) {
			return p
		}
	}
	return nil
}

func all(p *Packet, matches []Match) bool {
	for _, m := range matches {
		if !m(p) {
			return false
		}
	}
	return true
}

// String returns a line of text for each packet.
func (ps Packets) String() string {
	var b strings.Builder
	for _, p := range ps {
		fmt.Fprintln(&b, p)
	}
	return b.String()
}

// Opcode matches packets with one of the opcodes.
func Opcode(opcodes ...packet.Opcode) Match {
	return func(p *Packet) bool {
		for _, o := range opcodes {
			if p.Opcode == o {
				return true
			}
		}
		return false
	}
}

// Kind matches packets of a kind, of any service and position.
func Kind(k packet.Kind) Match {
	return func(p *Packet) bool { return p.Opcode.Info().Kind == k }
}

// Request matches packets that a requester sent.
func Request() Match { return func(p *Packet) bool { return p.Opcode.Info().Request } }

// DestQP matches packets to a QP.
func DestQP(qpn uint32) Match { return func(p *Packet) bool { return p.BTH.DestQP == qpn } }

// PSN matches packets with a PSN.
func PSN(psn uint32) Match { return func(p *Packet) bool { return p.BTH.PSN == psn } }

// Syndrome matches packets with an AETH that has the syndrome.
func Syndrome(s packet.Syndrome) Match {
	return func(p *Packet) bool {
		return p.Err == nil && p.Opcode.Info().Headers&packet.HasAETH != 0 && p.AETH.Syndrome == s
	}
}

// BadICRC matches packets with a wrong ICRC.
func BadICRC() Match { return func(p *Packet) bool { return !p.ICRCOK() } }

// Load reads the RoCE and InfiniBand packets of a file, and ignores frames of other protocols. If
// reading ends in an error, Load returns it and the packets before it.
func Load(file string) (Packets, error) {
	r, err := Open(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.Packets()
}

// Packets reads the RoCE and InfiniBand packets up to the end of the capture. See Load.
func (c *Reader) Packets() (Packets, error) {
	var ps Packets
	for rec, err := range c.Records() {
		if err != nil {
			return ps, err
		}
		p, err := Parse(rec)
		if errors.Is(err, packet.ErrNotRoCE) {
			continue
		}
		if err != nil {
			return ps, &FormatError{c.Name(), rec.Offset, fmt.Errorf("frame %d: %w", rec.No, err)}
		}
		ps = append(ps, p)
	}
	return ps, nil
}
