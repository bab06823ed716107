package replay

import "net/netip"

// A Report is the result of a replay. It marshals to JSON.
type Report struct {
	File        string        `json:"file,omitempty"`
	Strict      bool          `json:"strict"`
	RoCE        int           `json:"roce_packets"`
	RC          int           `json:"rc_packets"`
	Views       int           `json:"seen_on_another_interface"` // packets that are another view of one before
	Cut         int           `json:"cut_packets"`               // packets without the end of their payload
	Headless    int           `json:"headless_connections"`      // with packets of which even headers were cut: not compared
	Compared    int           `json:"compared"`                  // packets of RC, of both ends
	Unpaired    []string      `json:"unpaired"`                  // flows of RC whose opposite direction was not found
	Skipped     []Note        `json:"skipped"`                   // packets that were not fed: wrong ICRC, truncated, unreadable
	Connections []*Connection `json:"connections"`
	Count       int           `json:"differences_total"` // what Differences returns
	NotCompared []string      `json:"not_compared"`      // what Incomplete returns
	Verdict     string        `json:"verdict"`
}

// An End is one queue pair of a connection.
type End struct {
	Addr netip.Addr `json:"addr"`
	QPN  uint32     `json:"qpn"`
	// Known is false if no packet of the capture goes to this queue pair, so that its number is not
	// known.
	Known bool `json:"qpn_known"`
}

// A Connection is two connected queue pairs.
type Connection struct {
	A       End       `json:"a"`
	B       End       `json:"b"`
	Streams []*Stream `json:"streams"`
}

// A Stream is the requests of one end of a connection, and the replies to them.
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

// A Verdict is the result of comparing one side of a stream with softroce.
type Verdict struct {
	Compared    int          `json:"compared"`    // captured packets that were compared
	Lost        []Note       `json:"lost"`        // packets that were lost after the point of capture
	Copied      []Note       `json:"copied"`      // packets that were duplicated after it
	Overtaken   []Note       `json:"overtaken"`   // packets that were overtaken after it
	Deviations  []Deviation  `json:"deviations"`  // known ones, of the captured NIC
	NotJudged   []Note       `json:"not_judged"`  // packets that cannot be compared
	Differences []Difference `json:"differences"` // that nothing explains

	conditionals []conditional // differences that duplication or reordering may explain
}

// A Note is a remark on a packet.
type Note struct {
	Packet int    `json:"packet"` // its number in the capture, from 1
	Text   string `json:"text"`
}

// A Deviation is a known way in which the captured NIC does not follow the specification.
type Deviation struct {
	Name    string `json:"name"`
	Packets []int  `json:"packets"`
}

// A Difference is a field in which a captured packet is not what softroce sends.
type Difference struct {
	Packet   int    `json:"packet"` // 0: no particular packet
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
