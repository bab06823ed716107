package conversation

import (
	"time"

	"softroce/capture"
	"softroce/packet"
)

// A Transmission is a packet of a stream, as captured.
type Transmission struct {
	*capture.Packet
	Part
	Index int // in the capture

	// SentBefore is the index in the capture before which the packet was sent: its own, or that of
	// a packet which was sent after it and captured before it.
	SentBefore int
	Copy       bool // the network duplicated the packet sent before

	Next *Transmission // the requester's next transmission of a request with this PSN, nil if there is none
}

// NewTransmission returns the packet with an index in the capture as a transmission whose stream is
// not known.
func NewTransmission(p *capture.Packet, index int) *Transmission {
	return &Transmission{Packet: p, Part: NewPart(&p.Header, 0, 0, 0), Index: index, SentBefore: index}
}

// IsFatal reports whether a reply is a NAK that ends the connection.
func (t *Transmission) IsFatal() bool {
	return t.Info.Kind == packet.KindAck && IsFatal(t.AETH.Syndrome)
}

// IsFatal reports whether the syndrome of an ACKNOWLEDGE packet ends the connection.
func IsFatal(s packet.Syndrome) bool { return s.IsNAK() && s != packet.NAKSequence }

// A Stream is the requests of one queue pair and the replies of its peer. Each is there in two
// orders: that of the capture, in which the receiver has them, and that in which they were sent.
type Stream struct {
	Requests    []*Transmission // in the order of the capture
	Sent        []*Transmission // requests in the order in which they were sent, without copies
	Replies     []*Transmission // in the order of the capture
	RepliesSent []*Transmission // replies in the order in which they were sent, without copies
	Ordered     bool            // the order of RepliesSent is certain
	PathMTU     int             // bytes
	FirstSeq    int64           // the first unwrapped PSN that can be judged
	FirstMSN    uint32          // messages that were completed before FirstSeq, modulo 2^24
	Messages    []*Message
	LastNew     int  // index of the last request that was not a retransmission
	Refused     bool // one of the queue pairs sent a NAK that ends the connection
	LastIndex   int  // index of the last packet that the responder's queue pair sent, requests included; -1: none

	unrequested []*Transmission // replies before the first request

	packets  capture.Packets // the whole capture
	activity activity
}

// newStream puts the requests of a run and the replies to them in order.
func newStream(requests, replies []*Transmission, c *Capture) *Stream {
	s := &Stream{Requests: requests, Replies: replies, packets: c.Packets, activity: c.activity}
	s.PathMTU = pathMTU(requests, replies)
	s.unwrap(int64(Origin) + int64(requests[0].BTH.PSN))
	s.Sent, _ = sendOrder(s.Requests)
	s.RepliesSent, s.Ordered = sendOrder(s.Replies)
	s.findFirst()
	s.begin()
	for s.FirstMSN != 0 && s.moveFirst() {
		s.begin()
	}
	s.linkRetransmissions()
	return s
}

// NewKnown returns a stream of which the beginning is known: its path MTU, and that the first
// request has the PSN first and begins a message.
func NewKnown(requests, replies []*Transmission, ps capture.Packets, mtu int, first uint32) *Stream {
	s := &Stream{Requests: requests, Replies: replies, packets: ps, activity: activity{}, PathMTU: mtu, LastIndex: -1}
	s.FirstSeq = int64(Origin) + int64(first)
	s.unwrap(s.FirstSeq)
	s.Sent, _ = sendOrder(s.Requests)
	s.RepliesSent, s.Ordered = sendOrder(s.Replies)
	s.assemble()
	s.linkRetransmissions()
	for _, t := range replies {
		s.LastIndex = t.Index
		s.Refused = s.Refused || t.IsFatal()
	}
	return s
}

// pathMTU infers the path MTU of a stream. See PathMTU.
func pathMTU(requests, replies []*Transmission) int {
	var m PathMTU
	for _, l := range [][]*Transmission{requests, replies} {
		for _, t := range l {
			m.Add(&t.Header, len(t.Payload))
		}
	}
	mtu, _ := m.Value()
	return mtu
}

// memoryStays is how long memory is assumed to stay unchanged while the programs of both ends
// exchange no message: longer than a round trip, shorter than a person takes to start the next
// program.
const memoryStays = time.Second

// MayHaveChanged reports whether something outside the connection may have changed the responder's
// memory between an index in the capture and a reply: a program had enough time, or received or
// sent a message.
func (s *Stream) MayHaveChanged(since int, reply *Transmission) bool {
	if since < 0 || since >= len(s.packets) {
		return true
	}
	return s.activity.between(s.Requests[0].Dst, since, reply.Index) || reply.Time.Sub(s.packets[since].Time) > memoryStays
}

// unwrap unwraps the PSN of every packet. Requests and replies advance together.
func (s *Stream) unwrap(near int64) {
	req, rep := s.Requests, s.Replies
	for len(req) > 0 || len(rep) > 0 {
		var e *Transmission
		if len(rep) == 0 || len(req) > 0 && req[0].Index < rep[0].Index {
			e, req = req[0], req[1:]
		} else {
			e, rep = rep[0], rep[1:]
		}
		e.Part = NewPart(&e.Header, Unwrap(e.BTH.PSN, near), s.PathMTU, s.PathMTU)
		if e.Info.Request {
			// A damaged READ may claim more PSNs than a NIC has outstanding.
			near = max(near, min(e.End(), e.Seq+MaxPSNStep))
		}
	}
}

// linkRetransmissions sets Next of every request.
func (s *Stream) linkRetransmissions() {
	last := map[int64]*Transmission{}
	for _, e := range s.Requests {
		if e.Copy {
			continue
		}
		if before := last[e.Seq]; before != nil {
			before.Next = e
		}
		last[e.Seq] = e
	}
}
