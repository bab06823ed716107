package conversation

import (
	"encoding/binary"
	"errors"

	"softroce/capture"
	"softroce/packet"
)

// A capture program may cut frames to a snap length. If the headers are left, all but the payload
// can be judged: the rest of the frame is taken to be zeros with the right ICRC, and
// CapturedPayload tells what is not. A packet that is kept keeps no zeros.

// maxCutFrame bounds the length that a cut frame may claim: no IP packet is longer.
const maxCutFrame = 1<<16 + 64

// zeros are the bytes that captures lack. They are not written.
var zeros [maxCutFrame]byte

// Parse is capture.Parse that also parses a frame of which the capture has only a part, if that
// contains all of the headers. Record.Data stays as captured; of a packet with a connection that is
// cut the length of the payload is right, and all of its bytes are zero: see
// Transmission.WholePayload. IsCut is false for the record of a packet if the capture lacks only
// what follows the ICRC.
func Parse(r capture.Record) (*capture.Packet, error) {
	p, err := parse(r, headerEnd)
	if err == nil && IsCut(p.Record) && HasFlow(p.Opcode.Service()) {
		shrink(p)
	}
	return p, err
}

// shrink releases the bytes that a cut packet lacks. Its ICRC becomes that of what is left.
func shrink(p *capture.Packet) {
	at := bthEnd(p) - packet.BTHLen
	covered := p.Transport[:min(len(p.Data)-at, len(p.Transport)-packet.ICRCLen)]
	b := make([]byte, len(covered)+packet.ICRCLen)
	copy(b, covered)
	binary.LittleEndian.PutUint32(b[len(covered):], packet.ICRCBytes(&p.Addressing, covered))
	p.Link, p.IP, p.Transport, p.Trailer, p.Payload = nil, nil, b, zeros[:len(p.Trailer)], zeros[:len(p.Payload)]
}

// ParseBTH is Parse that needs only the BTH of a cut frame. Headers that the capture lacks are
// zero.
func ParseBTH(r capture.Record) (*capture.Packet, error) { return parse(r, bthEnd) }

// parse parses a frame that may be cut after the end of what is needed.
func parse(r capture.Record, needed func(p *capture.Packet) int) (*capture.Packet, error) {
	p, err := capture.Parse(r)
	if err == nil && IsCut(r) {
		p.Length = len(r.Data) // the packet is whole: the capture lacks only padding or FCS
	}
	if !errors.Is(err, packet.ErrTruncated) || !IsCut(r) || r.Length > maxCutFrame {
		return p, err
	}
	whole := r
	whole.Data = make([]byte, r.Length)
	copy(whole.Data, r.Data)
	p, wholeErr := capture.Parse(whole)
	if wholeErr != nil || p.Err != nil || needed(p) > len(r.Data) {
		return nil, err
	}
	covered := p.Transport[:len(p.Transport)-packet.ICRCLen]
	binary.LittleEndian.PutUint32(p.Transport[len(covered):], packet.ICRCBytes(&p.Addressing, covered))
	p.Record = r
	return p, nil
}

// IsCut reports whether a capture has only a part of a frame.
func IsCut(r capture.Record) bool { return r.Length > len(r.Data) }

// CutKey returns the flow of a cut frame that Parse rejects, if the frame contains its BTH.
func CutKey(r capture.Record) (k FlowKey, ok bool) {
	if !IsCut(r) || r.Length > maxCutFrame {
		return k, false
	}
	whole := r
	whole.Data = make([]byte, r.Length)
	copy(whole.Data, r.Data)
	p, err := capture.Parse(whole)
	if err != nil || len(r.Data) < bthEnd(p) {
		return k, false
	}
	return KeyOf(p), true
}

// frameLen returns the length of a frame up to its ICRC.
func frameLen(p *capture.Packet) int { return p.Length - len(p.Trailer) }

// bthEnd returns the length of a frame up to the end of its BTH.
func bthEnd(p *capture.Packet) int { return frameLen(p) - len(p.Transport) + packet.BTHLen }

// headerEnd returns the length of all headers of a frame.
func headerEnd(p *capture.Packet) int {
	return frameLen(p) - packet.ICRCLen - int(p.Pad) - len(p.Payload)
}

// CapturedPayload returns the part of the payload that the capture has.
func (t *Transmission) CapturedPayload() []byte {
	if !IsCut(t.Record) {
		return t.Payload
	}
	at := headerEnd(t.Packet)
	return t.Data[min(at, len(t.Data)):min(at+len(t.Payload), len(t.Data))]
}

// WholePayload returns the payload, with zeros for what the capture lacks.
func (t *Transmission) WholePayload() []byte {
	captured := t.CapturedPayload()
	if len(captured) == len(t.Payload) {
		return captured
	}
	b := make([]byte, len(t.Payload))
	copy(b, captured)
	return b
}
