package check

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/capture"
	"softroce/cm"
	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/internal/sim"
	"softroce/packet"
)

// A source is a capture that breaks no rule, and what the mutations need to know of it.
type source struct {
	name    string
	rs      []capture.Record
	ps      []*capture.Packet
	flows   []*conversation.Flow // of each packet, nil if it has none
	streams map[*conversation.Flow]*sourceStream
	calm    bool // nothing is late, retransmitted or refused
}

// A sourceStream is the requests of a flow and the replies to them: indexes of packets.
type sourceStream struct {
	requests, replies []int
	next              uint32 // PSN after the highest
}

// newSource returns the untagged IPv4 packets of a capture as a source, nil if it has none.
func newSource(name string, rs []capture.Record) *source {
	s := &source{name: name, streams: map[*conversation.Flow]*sourceStream{}, calm: true}
	survey := conversation.NewSurvey()
	for _, r := range rs {
		p, err := capture.Parse(r)
		if err != nil || r.LinkType != capture.Ethernet || p.Tagged || !p.Src.Is4() || !p.ICRCOK() {
			continue
		}
		r.No = 0
		s.rs, s.ps = append(s.rs, r), append(s.ps, p)
		survey.Add(p)
	}
	if len(s.ps) == 0 {
		return nil
	}
	survey.Pair()
	for i, p := range s.ps {
		s.flows = append(s.flows, survey.Flow(p))
		s.add(i, p)
	}
	return s
}

func (s *source) add(i int, p *capture.Packet) {
	f := s.flows[i]
	if f == nil {
		return
	}
	if !p.Opcode.Info().Request {
		s.calm = s.calm && (p.Opcode.Info().Headers&packet.HasAETH == 0 || p.AETH.Syndrome.IsACK())
		if t := s.streams[f.Peer]; t != nil {
			t.replies = append(t.replies, i)
		}
		return
	}
	t := s.streams[f]
	if t == nil {
		t = &sourceStream{next: p.PSN}
		s.streams[f] = t
	}
	s.calm = s.calm && p.PSN == t.next
	t.requests = append(t.requests, i)
	n := 1
	if p.Opcode.Info().Kind == packet.KindRead {
		mtu, _ := f.PathMTU().Value()
		n = packet.PSNCount(p.RETH.Length, mtu)
	}
	t.next = packet.PSNAdd(p.PSN, n)
}

// stream returns the stream that the i-th packet belongs to, nil if there is none.
func (s *source) stream(i int) *sourceStream {
	f := s.flows[i]
	if f != nil && !s.ps[i].Opcode.Info().Request {
		f = f.Peer
	}
	return s.streams[f]
}

// recording returns a copy of the source that can be changed.
func (s *source) recording(t testing.TB) *recording {
	return &recording{TB: t, rs: slices.Clone(s.rs)}
}

// sources returns the captures that mutations are made from: the fixtures, and simulated ones of
// every operation and service.
func sources(t testing.TB) (l []*source) {
	t.Helper()
	for _, file := range fixtureFiles(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".pcap")
		r, err := capture.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		var rs []capture.Record
		for rec, err := range r.Records() {
			if err != nil {
				t.Fatal(err)
			}
			rs = append(rs, rec)
		}
		r.Close()
		if s := newSource(name, rs); s != nil {
			l = append(l, s)
		}
	}
	for _, c := range simulations {
		s := newSource(c.name, c.run(t))
		l = append(l, s)
		if strings.HasSuffix(c.name, "-reads") {
			l = append(l, newSource(c.name+"-cm", s.withSetup(t)))
		}
	}
	return l
}

// A simulated is a run whose frames are captured at one NIC.
type simulated struct {
	name    string
	seed    uint64
	profile sim.Profile
}

func everyOperation() []ib.WROpcode {
	return []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm,
		ib.WRRDMARead, ib.WRAtomicFetchAndAdd, ib.WRAtomicCmpAndSwp}
}

// profile returns a run of two NICs without faults.
func profile(mtu int) sim.Profile {
	return sim.Profile{NICs: 2, Pairs: 1, PerQueue: 16, Operations: everyOperation(), MaxMessage: 4 * mtu, Source: 1 << 17,
		Depth: 64, RetryCount: 7, RNRRetry: 7, MTU: mtu}
}

func with(p sim.Profile, change func(p *sim.Profile)) sim.Profile {
	change(&p)
	return p
}

var simulations = []simulated{
	{"sim-mtu256", 1, profile(256)},
	{"sim-mtu512", 2, profile(512)},
	{"sim-mtu1024", 3, profile(1024)},
	{"sim-mtu2048", 4, profile(2048)},
	{"sim-mtu4096", 5, profile(4096)},
	{"sim-reads", 6, with(profile(512), func(p *sim.Profile) {
		p.Operations, p.OneWay = []ib.WROpcode{ib.WRRDMARead, ib.WRAtomicFetchAndAdd, ib.WRAtomicCmpAndSwp}, true
	})},
	{"sim-pairs", 7, with(profile(1024), func(p *sim.Profile) { p.Pairs, p.PerQueue = 4, 6 })},
	{"sim-xrc", 8, with(profile(512), func(p *sim.Profile) { p.XRC = 1 })},
	{"sim-unreliable", 9, with(profile(512), func(p *sim.Profile) { p.Pairs, p.UC, p.UD = 1, 1, 2 })},
	{"sim-rnr", 10, with(profile(512), func(p *sim.Profile) { p.LateRecv = 0.6 })},
	{"sim-loss", 11, with(profile(512), func(p *sim.Profile) { p.Loss = 0.03 })},
	{"sim-loss-both", 12, with(profile(1024), func(p *sim.Profile) { p.Loss, p.Pairs = 0.05, 2 })},
	{"sim-loss-reads", 13, with(profile(256), func(p *sim.Profile) {
		p.Loss, p.Operations = 0.04, []ib.WROpcode{ib.WRRDMARead, ib.WRAtomicFetchAndAdd}
	})},
	{"sim-loss-xrc", 14, with(profile(256), func(p *sim.Profile) { p.Loss, p.XRC = 0.04, 1 })},
}

func (c simulated) run(t testing.TB) []capture.Record {
	t.Helper()
	rec := capture.NewRecorder()
	p := c.profile
	p.Tap = epoch{rec}
	if _, err := sim.RunProfile(c.seed, p); err != nil {
		t.Fatalf("%s: %v", c.name, err)
	}
	var rs []capture.Record
	for _, p := range rec.Packets() {
		rs = append(rs, p.Record)
	}
	if len(rs) < 20 {
		t.Fatalf("%s: %d packets", c.name, len(rs))
	}
	return rs
}

// An epoch is a sink of frames whose virtual time begins at a time of this century.
type epoch struct{ *capture.Recorder }

func (e epoch) WriteFrame(ns int64, iface int, frame []byte) error {
	return e.Recorder.WriteFrame(ns+time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano(), iface, frame)
}

// withSetup returns the packets of a source after the messages of the connection manager that
// establish its first connection, and grant just the READs and atomics that are outstanding in it.
func (s *source) withSetup(t testing.TB) []capture.Record {
	t.Helper()
	i := slices.IndexFunc(s.ps, func(p *capture.Packet) bool { return p.Opcode.Info().Request })
	first, f := s.ps[i], s.flows[i]
	req := &cm.REQ{LocalID: 7, LocalQPN: f.Peer.QPN}
	rep := &cm.REP{LocalID: 8, RemoteID: 7, LocalQPN: f.QPN, StartingPSN: first.PSN, ResponderResources: uint8(s.outstanding(f))}
	if back := s.streams[f.Peer]; back != nil {
		req.StartingPSN, rep.InitiatorDepth = s.ps[back.requests[0]].PSN, uint8(s.outstanding(f.Peer))
	}
	var rs []capture.Record
	for k, m := range []cm.Message{req, rep} {
		a := first.Addressing
		if a.ID = uint16(k); k == 1 {
			a.Src, a.Dst = a.Dst, a.Src
		}
		h := packet.Header{BTH: packet.BTH{Opcode: udSend, PKey: packet.DefaultPKey, DestQP: cm.GSIQPN}, DETH: packet.DETH{QKey: cm.GSIQKey, SrcQP: cm.GSIQPN}}
		var mad [cm.MADSize]byte
		cm.Put(&mad, 1, 0, m)
		var tx packet.Tx
		tx.Set(&h, mad[:])
		b := packet.AppendFrame(nil, &a, &tx)
		rs = append(rs, capture.Record{Time: first.Time.Add(time.Duration(k-2) * time.Millisecond), LinkType: capture.Ethernet, Length: len(b), Data: b})
	}
	return append(rs, s.rs...)
}

// outstanding returns the highest number of READs and atomics of a flow that wait for a response.
func (s *source) outstanding(f *conversation.Flow) (most int) {
	mtu, _ := f.PathMTU().Value()
	last := map[uint32]bool{} // PSNs that end the responses
	next := s.ps[s.streams[f].requests[0]].PSN
	for i, p := range s.ps {
		switch {
		case s.flows[i] == f && isRequest(s, i):
			end := packet.PSNAdd(p.PSN, 1)
			if isRead(s, i) {
				end = packet.PSNAdd(p.PSN, packet.PSNCount(p.RETH.Length, mtu))
			}
			if packet.PSNDiff(p.PSN, next) >= 0 && p.Opcode.Info().Kind.HasOwnResponse() {
				last[packet.PSNAdd(end, -1)] = true
			}
			if packet.PSNDiff(end, next) > 0 {
				next = end
			}
		case s.flows[i] == f.Peer:
			delete(last, p.PSN)
		}
		most = max(most, len(last))
	}
	return most
}
