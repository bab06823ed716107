package report

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

// An End is an end of a connection: a queue pair, if its number is known.
type End struct {
	Addr   netip.Addr
	QPN    uint32
	HasQPN bool
}

func (e End) String() string {
	if !e.HasQPN {
		return e.Addr.String()
	}
	return fmt.Sprintf("%v QP %#x", e.Addr, e.QPN)
}

// ends names packets without a flow: datagrams, and what no queue pair takes.
type ends struct {
	a, b  End
	other bool
}

// A Connection is the packets between two queue pairs, or the datagrams between two.
type Connection struct {
	Service string // "RC", "UC", "XRC", "UD", or "other" for what no queue pair takes
	Ends    [2]End // that of the first packet is the first
	Run     int    // from 1: how often the same queue pair numbers were used
	Flows   [2]*conversation.Flow
	Paired  bool // both directions were found

	Packets    int
	Violations int
	Faults     int // packets with a comment
	Damaged    int // packets that a queue pair discards
	CE, CNPs   int
	Streams    [2]*Stream // the requests of each end, with the replies to them
	First      time.Time
	Last       time.Time

	points points
	levels levels
	spots  []spot // the packets with a violation or a comment
}

// A spot finds a packet by its number.
type spot struct{ no, index int }

// connection returns the connection of a packet and which end sent it, nil if there is no room for
// its connection.
func (a *analysis) connection(p *capture.Packet) (c *Connection, side int) {
	if f := a.flows.Flow(p); f != nil {
		return a.ofFlow(f, p)
	}
	k := ends{a: End{Addr: p.Src}, b: End{Addr: p.Dst, QPN: p.DestQP, HasQPN: true}}
	service := "UD"
	if p.Err == nil && p.Opcode.Service() == packet.UD {
		k.a.QPN, k.a.HasQPN = p.DETH.SrcQP, true
	} else {
		k.other, service = true, "other"
	}
	if c := a.byEnds[k]; c != nil {
		return c, 0
	}
	reverse := ends{k.b, k.a, k.other}
	if c := a.byEnds[reverse]; c != nil {
		return c, 1
	}
	if c = a.newConnection(service, k.a, k.b); c != nil {
		a.byEnds[k] = c
	}
	return c, 0
}

func (a *analysis) ofFlow(f *conversation.Flow, p *capture.Packet) (c *Connection, side int) {
	c = a.byFlow[f]
	if c == nil {
		from, to := End{Addr: f.Src}, End{Addr: f.Dst, QPN: f.QPN, HasQPN: true}
		if f.Peer != nil {
			from.QPN, from.HasQPN = f.Peer.QPN, true
		}
		c = a.newConnection(packet.Service(f.Services.Value()).String(), from, to)
		if c == nil {
			return nil, 0
		}
		c.Flows = [2]*conversation.Flow{f, f.Peer}
		c.Paired = f.Peer != nil
		a.register(c)
	}
	if c.Flows[0] != f {
		side = 1
	}
	if c.restarts(side, p) {
		if next := a.newConnection(c.Service, c.Ends[0], c.Ends[1]); next != nil {
			next.Flows, next.Paired, next.Run = c.Flows, c.Paired, c.Run+1
			a.register(next)
			c = next
		}
	}
	return c, side
}

// register makes c the connection of the packets of its flows from now on.
func (a *analysis) register(c *Connection) {
	packets := 0
	for _, f := range c.Flows {
		if f != nil {
			a.byFlow[f] = c
			packets += f.Packets
		}
	}
	c.levels.needed = packets > detail
}

func (a *analysis) newConnection(service string, from, to End) *Connection {
	if len(a.Connections) == maxConnections {
		return nil
	}
	c := &Connection{Service: service, Ends: [2]End{from, to}, Run: 1, Streams: [2]*Stream{newStream(), newStream()}}
	c.points.compressor, c.levels = a.compressor, levels{needed: true, gap: a.gap}
	a.Connections = append(a.Connections, c)
	return c
}

// restarts reports whether a packet is the first request of a new connection with the same queue
// pair numbers.
func (c *Connection) restarts(side int, p *capture.Packet) bool {
	s := c.Streams[side]
	return conversation.Usable(p) == nil && p.Opcode.Info().Request && s.begun && !s.near(p.PSN)
}

// mtu returns the path MTU, 0 if no packet shows it.
func (c *Connection) mtu() (mtu, fits int) {
	if c.Flows[0] == nil {
		return 0, 0
	}
	m := c.Flows[0].PathMTU()
	mtu, shown := m.Value()
	if !shown {
		mtu = 0
	}
	return mtu, m.Fits()
}

// add adds the next packet, which the end named by side has sent.
func (c *Connection) add(a *analysis, side int, p observation) {
	in := p.Opcode.Info()
	pt := point{no: p.No, at: p.Time.Sub(a.Start), side: side, stream: side, opcode: p.Opcode, bytes: payloadLen(p.Packet)}
	if !in.Request {
		pt.stream = 1 - side
	}
	if c.Packets == 0 {
		c.First, c.Last = p.Time, p.Time
	}
	c.Packets++
	if p.Time.Before(c.First) {
		c.First = p.Time
	}
	if p.Time.After(c.Last) {
		c.Last = p.Time
	}
	if a.violated[p.No] {
		pt.flags |= flagViolation
		c.Violations++
	}
	if len(p.Comments) > 0 {
		pt.flags |= flagComment
		c.Faults++
		a.comment(p.Record)
	}
	s := c.Streams[pt.stream]
	switch {
	case conversation.Usable(p.Packet) != nil || c.Service == "other" && in.Kind != packet.KindCNP:
		pt.class = classDamaged
		c.Damaged++
		pt.seq = s.where(p.PSN)
	case in.Kind == packet.KindCNP:
		pt.class = classCNP
		c.CNPs++
		pt.seq = s.next
	case in.Request:
		s.request(c, a, p, &pt)
	default:
		s.reply(a, p, &pt)
	}
	if p.IsCE() {
		pt.flags |= flagCE
		c.CE++
	}
	pt.outstanding = s.outstanding
	pt.seq = s.relative(pt.seq)
	if a.points == maxPackets {
		a.Unlisted++
		return
	}
	a.points++
	if pt.flags&(flagViolation|flagComment) != 0 {
		c.spots = append(c.spots, spot{pt.no, c.points.n})
	}
	c.points.add(pt, a.text(p))
	c.levels.add(pt)
}

// payloadLen returns the length of a packet's payload, 0 if its headers are not valid.
func payloadLen(p *capture.Packet) int {
	if p.Err != nil {
		return 0
	}
	return len(p.Payload)
}

// text returns the line that decode prints for a packet.
func (a *analysis) text(p observation) []byte {
	b := p.shown.AppendText(a.textBuffer[:0], a.Start)
	if p.remark != nil {
		b = append(append(b, ' '), p.remark.String()...)
	}
	for i, c := range b {
		if c == '\n' {
			b[i] = ' '
		}
	}
	a.textBuffer = b
	return b
}

func (a *analysis) comment(r capture.Record) {
	for _, text := range r.Comments {
		if len(a.Comments) == maxComments {
			a.Unsaid++
			continue
		}
		a.Comments = append(a.Comments, Mark{r.No, text})
	}
}

func (c *Connection) finish() {
	for _, s := range c.Streams {
		s.finish(c.points.compressor)
	}
	c.points.finish()
	if c.points.n <= detail {
		c.levels = levels{}
	}
	c.levels.finish(c.points.compressor)
}

// compareTrouble orders connections by what is wrong with them, and then by packets.
func (c *Connection) compareTrouble(o *Connection) int {
	sum := func(c *Connection, f func(*Stream) int) int { return f(c.Streams[0]) + f(c.Streams[1]) }
	refused := func(s *Stream) int { return s.Refused }
	again := func(s *Stream) int { return s.SentAgain }
	return cmp.Or(cmp.Compare(c.Violations, o.Violations), cmp.Compare(sum(c, refused), sum(o, refused)), cmp.Compare(sum(c, again), sum(o, again)),
		cmp.Compare(c.Damaged, o.Damaged), cmp.Compare(c.Packets, o.Packets))
}
