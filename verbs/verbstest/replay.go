package verbstest

import (
	"fmt"

	"softroce/capture"
	"softroce/internal/replay"
)

// A ReplayReport is the result of Replay.
type ReplayReport struct {
	// Compared is the number of packets that were compared. It is not zero.
	Compared int

	// Differences are the fields in which a recorded packet is not what softroce would have sent.
	Differences []Difference

	// Lost are packets that were recorded but did not arrive, as the packets after them show.
	Lost []Note

	text string
}

// A Difference is a field of a recorded packet that softroce would have sent with another value.
type Difference struct {
	Packet   int // number of the packet in the recording, from 1; 0 if no single packet differs
	PSN      uint32
	Field    string
	Captured string
	Softroce string
}

// A Note is a remark about a packet.
type Note struct {
	Packet int // its number in the recording, from 1
	Text   string
}

// Replay compares the NICs in a recording with softroce. It sends the recorded requests of each RC
// connection to a new responder and the recorded replies to a new requester, in virtual time, and
// compares what those send with the recording. Differences are not an error. A recording with
// nothing to compare is one: a test does not pass because nothing was recorded.
func Replay(ps capture.Packets) (*ReplayReport, error) {
	r, err := replay.Packets(ps, replay.Options{})
	if err != nil {
		return nil, err
	}
	if r.Compared == 0 {
		return nil, fmt.Errorf("replay: none of %s can be compared: there is no RC connection with a request", replay.Count(len(ps), "packet"))
	}
	out := &ReplayReport{Compared: r.Compared, text: r.String()}
	for _, c := range r.Connections {
		for _, s := range c.Streams {
			for _, v := range []*replay.Verdict{&s.Responder, &s.Requester} {
				for _, d := range v.Differences {
					out.Differences = append(out.Differences, Difference(d))
				}
				for _, n := range v.Lost {
					out.Lost = append(out.Lost, Note(n))
				}
			}
		}
	}
	return out, nil
}

// String returns the report as text, as softroce replay prints it.
func (r *ReplayReport) String() string { return r.text }
