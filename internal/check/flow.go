package check

import (
	"softroce/capture"
	"softroce/internal/conversation"
)

// A flow is a conversation.Flow and what the second pass keeps of it.
type flow struct {
	*conversation.Flow
	name   string
	peer   *flow  // the opposite direction, nil if it is not known
	mtu    int    // path MTU in bytes, 0 if no payload shows it
	fits   int    // a payload length that certainly fits the path MTU
	port   uint16 // UDP source port of the latest packet
	migReq bool   // of the latest packet
	seen   bool   // the second pass met a packet of the flow

	wrongPKey    uint16 // that was reported last, 0 if none
	impossible   bool   // an impossible path MTU was reported
	otherService bool   // packets of another service were reported
	stray        bool   // its packets may belong to another flow

	stream *stream // its requests, nil before the first one
	order  arrivalOrder

	requests, replies int

	lastCE int   // number of the last packet marked CE (congestion experienced)
	cnpAt  int64 // time of the last CNP
	cnps   int
}

// flows are the flows of a capture.
type flows struct {
	survey *conversation.Survey
	list   []*flow // by their number
	near   nearFlows
}

// newFlows returns the flows that a survey has found.
func newFlows(s *conversation.Survey) *flows {
	fs := &flows{survey: s}
	for _, cf := range s.Flows() {
		f := &flow{Flow: cf, name: cf.String(), port: cf.SrcPort}
		m := cf.PathMTU()
		f.fits = m.Fits()
		if mtu, shown := m.Value(); shown {
			f.mtu = mtu
		}
		if n := cf.MTU.Impossible(); n != 0 {
			f.mtu = n
		}
		fs.list = append(fs.list, f)
	}
	for _, f := range fs.list {
		if f.Peer != nil {
			f.peer = fs.list[f.Peer.Number]
		}
	}
	fs.findStrays()
	return fs
}

// of returns the flow of a packet, nil if there is none.
func (fs *flows) of(p *capture.Packet) *flow {
	if f := fs.survey.Flow(p); f != nil {
		return fs.list[f.Number]
	}
	return nil
}
