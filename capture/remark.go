package capture

import (
	"fmt"
	"time"
)

// A Remark is what the packets before a packet show about it.
type Remark struct {
	Again   *Again `json:"again,omitempty"`
	Answers int    `json:"answers_again,omitempty"` // number of a packet that was sent again and is answered
	Copy    bool   `json:"copy,omitempty"`          // the network duplicated the packet before
	Late    bool   `json:"late,omitempty"`          // the network delayed it: packets sent after it are before it
}

// Again says that a packet was sent before, and why it was sent again.
type Again struct {
	Cause  Cause `json:"cause"`
	Packet int   `json:"packet,omitempty"` // number of the packet that shows the cause; none for a timeout

	// After is the time since that packet, or, for a timeout, since the last packet of the
	// connection. Packets that follow the first one sent again have its cause and time.
	After time.Duration `json:"after_ns"`
}

// A Cause is why a packet was sent again.
type Cause string

// Causes.
const (
	CauseNAK      Cause = "nak"      // a NAK (PSN sequence error)
	CauseRNR      Cause = "rnr"      // an RNR NAK
	CauseResponse Cause = "response" // a later response shows that the response to a READ or atomic was lost
	CauseTimeout  Cause = "timeout"  // nothing in the capture asks for it
)

// String returns the remark as Decode prints it, empty if there is nothing to remark.
func (r *Remark) String() string {
	switch {
	case r.Again != nil:
		return r.Again.String()
	case r.Answers != 0:
		return fmt.Sprintf("[answers packet %d, which was sent again]", r.Answers)
	case r.Copy:
		return "[copy made by the network]"
	case r.Late:
		return "[late]"
	}
	return ""
}

// String returns the remark as Decode prints it.
func (a *Again) String() string {
	switch a.Cause {
	case CauseNAK:
		return fmt.Sprintf("[again: NAK in packet %d, %v before]", a.Packet, a.After)
	case CauseRNR:
		return fmt.Sprintf("[again: RNR NAK in packet %d, %v before]", a.Packet, a.After)
	case CauseResponse:
		return fmt.Sprintf("[again: packet %d shows a lost response, %v before]", a.Packet, a.After)
	}
	return fmt.Sprintf("[again: timeout after %v]", a.After)
}
