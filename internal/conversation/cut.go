package conversation

import (
	"encoding/binary"

	"softroce/capture"
	"softroce/packet"
)

// A capture program may cut frames to a snap length. If the headers are left, all but the payload
// can be judged: the rest of the frame is taken to be zeros with the right ICRC, and
// CapturedPayload tells what is not.

// maxCutFrame bounds the length that a cut frame may claim: no IP packet is longer.
const maxCutFrame = 1<<16 + 64

// Parse is capture.Parse that also parses a frame of which the capture has only a part, if that
// contains all of the headers. Record.Data stays as captured.
func Parse(r capture.Record) (*capture.Packet, error) { return parse(r, headerEnd) }

// ParseBTH is Parse that needs only the BTH of a cut frame. Headers that the capture lacks are
// zero.
func ParseBTH(r capture.Record) (*capture.Packet, error) { return parse(r, bthEnd) }

// parse parses a frame that may be cut after the end of what is needed.
func parse(r capture.Record, needed func(p *capture.Packet) int) (*capture.Packet, error) {
	p, err := capture.Parse(r)
	if err == nil || !IsCut(r) || r.Length > maxCutFrame {
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
	return t.Payload[:max(0, min(len(t.Payload), len(t.Data)-headerEnd(t.Packet)))]
}
