package replay

import "net/netip"

// A Report is what a replay found. It marshals to JSON.
type Report struct {
	File        string        `json:"file,omitempty"`
	Strict      bool          `json:"strict"`
	RoCE        int           `json:"roce_packets"`
	RC          int           `json:"rc_packets"`
	Skipped     []Note        `json:"skipped"` // packets that could not be fed: wrong ICRC, cut, unreadable
	Connections []*Connection `json:"connections"`
	Count       int           `json:"differences"` // what Differences returns
}

// An End is one queue pair of a connection.
type End struct {
	Addr netip.Addr `json:"addr"`
	QPN  uint32     `json:"qpn"`
	// Known is false where no packet of the capture goes to this end, so that its number was never seen.
	Known bool `json:"qpn_known"`
}

// A Connection is two queue pairs that talk to each other.
type Connection struct {
	A       End       `json:"a"`
	B       End       `json:"b"`
	Streams []*Stream `json:"streams"`
}

// A Stream is the requests of one end of a connection with the replies that they drew.
type Stream struct {
	From      End     `json:"from"` // the requester
	To        End     `json:"to"`   // the responder
	Requests  int     `json:"requests"`
	Replies   int     `json:"replies"`
	PathMTU   int     `json:"path_mtu"` // bytes, inferred
	FirstPSN  uint32  `json:"first_psn"`
	Responder Verdict `json:"responder"` // of the captured replies
	Requester Verdict `json:"requester"` // of the captured requests
}

// A Verdict is what the comparison of one side of a stream with softroce came to.
type Verdict struct {
	Compared    int          `json:"compared"`    // captured packets that were held against softroce's
	Lost        []Note       `json:"lost"`        // packets that must have been lost behind the point of capture
	Copied      []Note       `json:"copied"`      // packets that must have come more than once behind it
	Overtaken   []Note       `json:"overtaken"`   // packets that others must have overtaken behind it
	Deviations  []Deviation  `json:"departures"`  // from the specification, known ones, of the captured NIC
	NotJudged   []Note       `json:"not_judged"`  // what softroce cannot say anything about
	Differences []Difference `json:"differences"` // what nothing explains

	conditionals []conditional // what Copied and Overtaken explain
}

// A Note says something about a packet.
type Note struct {
	Packet int    `json:"packet"` // its number in the capture, from 1
	Text   string `json:"text"`
}

// A Deviation is a way in which the captured NIC is known not to follow the specification.
type Deviation struct {
	Name    string `json:"name"`
	Packets []int  `json:"packets"`
}

// A Difference is a field in which the captured packet is not what softroce would send.
type Difference struct {
	Packet   int    `json:"packet"` // 0: of no packet in particular
	PSN      uint32 `json:"psn"`
	Field    string `json:"field"`
	Captured string `json:"captured"`
	Softroce string `json:"softroce"`
}

// Differences counts the differences of all connections.
func (r *Report) Differences() int {
	n := 0
	for _, c := range r.Connections {
		for _, s := range c.Streams {
			n += len(s.Responder.Differences) + len(s.Requester.Differences)
		}
	}
	return n
}
