package conversation

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"softroce/capture"
	"softroce/packet"
)

// A Capture is the conversations of one service in a capture that is held in memory.
type Capture struct {
	Packets    capture.Packets
	Directions []*Direction // in the order of their first packets
	Views      int          // packets that are another view of one before; not part of a direction
	activity   activity
}

// A Direction is the packets of a flow: the requests of the sending queue pair, and its replies to
// the requests of the other one.
type Direction struct {
	*Flow
	Peer    *Direction // nil if it is not known
	Replies []*Transmission
	runs    []*run
}

// A run is requests whose PSNs are near each other. A flow has several where a queue pair number
// was used again.
type run struct {
	requests []*Transmission
	next     uint32 // the PSN after the highest one
}

// maxRuns bounds the runs of a flow that are searched for the one that a packet belongs to.
const maxRuns = 8

// New reconstructs the conversations of a service from packets that were captured in this order.
// Packets that are not Usable, and further views of a packet, are ignored.
func New(ps capture.Packets, service packet.Service) *Capture {
	further := furtherViews(ps)
	survey := NewSurvey()
	for i, p := range ps {
		if !further[i] {
			survey.Add(p)
		}
	}
	survey.Pair()
	c := &Capture{Packets: ps, activity: activity{}}
	directions := map[*Flow]*Direction{}
	for i, p := range ps {
		in := p.Opcode.Info()
		if further[i] {
			c.Views++
			continue
		}
		if Usable(p) != nil {
			continue
		}
		c.activity.add(i, p, in)
		f := survey.Flow(p)
		if p.Opcode.Service() != service || f == nil {
			continue
		}
		d := directions[f]
		if d == nil {
			d = &Direction{Flow: f}
			directions[f] = d
			c.Directions = append(c.Directions, d)
		}
		if t := NewTransmission(p, i); in.Request {
			d.addRequest(t)
		} else {
			d.Replies = append(d.Replies, t)
		}
	}
	for _, d := range c.Directions {
		d.Peer = directions[d.Flow.Peer]
	}
	return c
}

var errICRC = errors.New("the ICRC is wrong")

// Usable returns why a queue pair discards a packet that has the headers of RoCEv2, nil if it does
// not.
func Usable(p *capture.Packet) error {
	switch {
	case p.Err != nil:
		return p.Err
	case !p.ICRCOK():
		return errICRC
	case p.TVer != 0:
		return fmt.Errorf("the transport header version is %d", p.TVer)
	}
	return nil
}

func (d *Direction) addRequest(t *Transmission) {
	r := d.runOf(t.BTH.PSN)
	if r == nil {
		r = &run{next: t.BTH.PSN}
		d.runs = append(d.runs, r)
	}
	r.requests = append(r.requests, t)
	if end := (t.BTH.PSN + 1) & packet.PSNMask; packet.PSNDiff(end, r.next) > 0 {
		r.next = end
	}
}

// runOf returns the latest run that a PSN may belong to, nil if there is none.
func (d *Direction) runOf(psn uint32) *run {
	for _, r := range slices.Backward(d.runs[max(0, len(d.runs)-maxRuns):]) {
		if r.near(psn) {
			return r
		}
	}
	return nil
}

func (r *run) near(psn uint32) bool {
	d := packet.PSNDiff(psn, r.next)
	return -MaxPSNStep < d && d < MaxPSNStep
}

// Streams returns the streams of a direction, the requests of the sending queue pair with the
// replies to them; and the replies of the opposite direction that belong to none.
func (c *Capture) Streams(d *Direction) (streams []*Stream, unrequested []*Transmission) {
	replies, unrequested := d.assign()
	for i, r := range d.runs {
		s := newStream(r.requests, replies[i], c)
		s.LastIndex = d.Peer.lastIndex()
		if i == 0 {
			s.unrequested = slices.DeleteFunc(slices.Clone(unrequested), func(t *Transmission) bool { return !r.near(t.BTH.PSN) })
		}
		s.Refused = d.refuses() || d.Peer != nil && d.Peer.refuses()
		streams = append(streams, s)
	}
	return streams, unrequested
}

// assign returns the replies to the requests of each run. A reply belongs to a run that began
// before it: the one with PSNs near that of the reply, or else the latest.
func (d *Direction) assign() (replies [][]*Transmission, unrequested []*Transmission) {
	replies = make([][]*Transmission, len(d.runs))
	if d.Peer == nil {
		return replies, nil
	}
	for _, t := range d.Peer.Replies {
		found := -1
		for i := len(d.runs) - 1; i >= max(0, len(d.runs)-maxRuns); i-- {
			r := d.runs[i]
			if r.requests[0].Index > t.Index {
				continue
			}
			if r.near(t.BTH.PSN) {
				found = i
				break
			}
			if found < 0 {
				found = i
			}
		}
		if found < 0 {
			unrequested = append(unrequested, t)
			continue
		}
		replies[found] = append(replies[found], t)
	}
	return replies, unrequested
}

// HasRequests reports whether a direction has a request.
func (d *Direction) HasRequests() bool { return len(d.runs) > 0 }

// lastIndex returns the index of the last packet of a direction, -1 if it has none.
func (d *Direction) lastIndex() int {
	last := -1
	if d == nil {
		return last
	}
	for _, r := range d.runs {
		last = max(last, r.requests[len(r.requests)-1].Index)
	}
	if n := len(d.Replies); n > 0 {
		last = max(last, d.Replies[n-1].Index)
	}
	return last
}

// refuses reports whether the sending queue pair refuses a request with a NAK that ends the
// connection.
func (d *Direction) refuses() bool {
	return slices.ContainsFunc(d.Replies, (*Transmission).IsFatal)
}

// An activity is, for each host, the indexes of packets that end a message which a program takes
// notice of. Between two of them only captured operations should change memory that both ends know.
type activity map[netip.Addr][]int

func (a activity) add(index int, p *capture.Packet, in *packet.Info) {
	if in.Request && in.Position.EndsMessage() && (in.Kind == packet.KindSend || in.Kind == packet.KindWrite) {
		a[p.Src] = append(a[p.Src], index)
		a[p.Dst] = append(a[p.Dst], index)
	}
}

// between reports whether a program on a host sent or received a message after one index and before
// another.
func (a activity) between(host netip.Addr, from, to int) bool {
	l := a[host]
	i, _ := slices.BinarySearch(l, from+1)
	return i < len(l) && l[i] < to
}
