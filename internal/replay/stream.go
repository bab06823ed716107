package replay

import (
	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

// A stream is a stream of a conversation, and the report on it.
type stream struct {
	*conversation.Stream
	direction *conversation.Direction
	report    *Stream
}

// newStream returns a stream of a direction, with an empty report.
func newStream(s *conversation.Stream, d *conversation.Direction) *stream {
	return &stream{s, d, &Stream{From: sender(d), To: receiver(d), Requests: len(s.Requests), Replies: len(s.Replies),
		PathMTU: s.PathMTU, FirstPSN: s.Requests[0].BTH.PSN, Responder: newVerdict(), Requester: newVerdict()}}
}

// receiver returns the queue pair that the packets of a direction go to.
func receiver(d *conversation.Direction) End { return End{d.Dst, d.QPN, true} }

// sender returns the queue pair that the packets of a direction come from. Its number is that to
// which the packets of the opposite direction go.
func sender(d *conversation.Direction) End {
	if d.Peer == nil {
		return End{Addr: d.Src}
	}
	return End{d.Src, d.Peer.QPN, true}
}

// unusable counts the RC packets of a capture, and lists those that no queue pair would accept.
func unusable(ps capture.Packets) (rc int, skipped []Note) {
	skipped = []Note{}
	for _, p := range ps {
		if p.Opcode.Service() != packet.RC {
			continue
		}
		rc++
		if err := conversation.Usable(p); err != nil {
			skipped = append(skipped, Note{p.No, err.Error()})
		}
	}
	return rc, skipped
}
