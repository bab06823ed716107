package check

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/capture"
	"softroce/internal/sim"
)

// A neighbor changes a capture so that it resembles one with a violation, and breaks no rule.
type neighbor struct {
	name   string
	at     func(s *source, i int) bool // nil: the capture is changed once, as a whole
	change func(t *recording, i int)
}

var neighbors = []neighbor{
	{"a packet is captured twice", anyPacket, func(t *recording, i int) {
		t.rs = append(t.rs[:i+1:i+1], t.rs[i:]...)
	}},
	{"the capture begins late", anyPacket, func(t *recording, i int) { t.rs = t.rs[i:] }},
	{"the capture ends early", anyPacket, func(t *recording, i int) { t.rs = t.rs[:i] }},
	{"snap length 64", nil, snap(64)},
	{"snap length 80", nil, snap(80)},
	{"snap length 128", nil, snap(128)},
	{"one frame is cut", unique, func(t *recording, i int) { t.rs[i].Data = t.rs[i].Data[:min(64, len(t.rs[i].Data))] }},
	{"two frames change places in the file", anyPacket, func(t *recording, i int) {
		if i+1 < len(t.rs) && t.rs[i].Time.Before(t.rs[i+1].Time) {
			t.rs[i], t.rs[i+1] = t.rs[i+1], t.rs[i]
		}
	}},
	{"the file is sorted by source", packetOfFixture, func(t *recording, _ int) { t.shuffle(5 * time.Millisecond) }},
	{"the clock goes back", anyPacket, func(t *recording, i int) { t.shift(i, -time.Hour) }},
	{"Identifications are 0", nil, setIDs(func(int) uint16 { return 0 })},
	{"Identifications are random", nil, setIDs(func(int) uint16 { return uint16(rand.N(1 << 16)) })},
	{"routers decrement the TTL", nil, each(rawByte(atIP+8, func(byte) byte { return 3 }))},
	{"a packet is marked CE and FECN", anyPacket, func(t *recording, i int) {
		t.raw(i, func(b []byte) { b[atIP+1] |= 3; b[atBTH+4] |= 0x80 })
	}},
	{"BECN in a reply", not(isRequest), edit(func(p *capture.Packet) { p.BECN = true })},
	{"another source port", unique, edit(func(p *capture.Packet) { p.SrcPort ^= 1 })},
	{"MigReq", unique, edit(func(p *capture.Packet) { p.MigReq = !p.MigReq })},
	{"one end is a limited member", nil, func(t *recording, _ int) {
		src := t.parse(0).Src
		for i := range t.rs {
			if t.parse(i).Src == src {
				t.edit(i, func(p *capture.Packet) { p.PKey &= 0x7fff })
			}
		}
	}},
	{"AckReq in a request", all(calm, isRequest, sendOrWrite), edit(func(p *capture.Packet) { p.AckReq = true })},
	{"a REP grants one READ more", grantsReads, regrant(1)},
	{"a mirror port delays replies", all(grantsReads, not(isFixture("sim-loss"))), func(t *recording, _ int) { t.delayReplies(500 * time.Nanosecond) }},
	{"a mirror port writes MACs of its own", nil, each(func(t *recording, i int) {
		t.raw(i, func(b []byte) {
			dst := [6]byte(b)
			copy(b, b[6:12])
			copy(b[6:], dst[:])
		})
	})},
	{"a mirror port copies each packet", nil, mirrored},
	{"a mirror port copies each packet, Identifications are 0", nil, func(t *recording, i int) {
		setIDs(func(int) uint16 { return 0 })(t, i)
		mirrored(t, i)
	}},
	{"one ACK for two messages", all(calm, isAck, followedByAck), func(t *recording, i int) { t.drop(i) }},
}

// snap cuts all frames to n bytes.
func snap(n int) func(*recording, int) {
	return func(t *recording, _ int) {
		for i := range t.rs {
			t.rs[i].Data = t.rs[i].Data[:min(n, len(t.rs[i].Data))]
		}
	}
}

// each applies a change to every packet.
func each(f func(*recording, int)) func(*recording, int) {
	return func(t *recording, _ int) {
		for i := range t.rs {
			f(t, i)
		}
	}
}

// setIDs sets the Identification of every packet. A copy has that of the packet.
func setIDs(id func(i int) uint16) func(*recording, int) {
	return func(t *recording, _ int) {
		ids := map[uint32]uint16{}
		for i := range t.rs {
			icrc := t.parse(i).ICRC()
			if _, copied := ids[icrc]; !copied {
				ids[icrc] = id(i)
			}
			t.raw(i, func(b []byte) { binary.BigEndian.PutUint16(b[atIP+4:], ids[icrc]) })
		}
	}
}

// packetOfFixture holds for the first packet of a fixture. Simulated packets share their
// timestamps.
func packetOfFixture(s *source, i int) bool { return i == 0 && !strings.HasPrefix(s.name, "sim-") }

// unique holds for packets that the network did not copy.
func unique(s *source, i int) bool {
	return !slices.ContainsFunc(s.ps, func(p *capture.Packet) bool { return p != s.ps[i] && p.ICRC() == s.ps[i].ICRC() })
}

// shuffle sorts the frames of each span of time by their source, as a capture of several queues is
// written.
func (t *recording) shuffle(span time.Duration) {
	var sorted []capture.Record
	for begin := 0; begin < len(t.rs); {
		end := begin
		for end < len(t.rs) && t.rs[end].Time.Sub(t.rs[begin].Time) < span {
			end++
		}
		src := t.parse(begin).Src
		var others []capture.Record
		for i := begin; i < end; i++ {
			if t.parse(i).Src == src {
				sorted = append(sorted, t.rs[i])
			} else {
				others = append(others, t.rs[i])
			}
		}
		sorted = append(sorted, others...)
		begin = end
	}
	t.rs = sorted
}

// delayReplies captures each reply later.
func (t *recording) delayReplies(d time.Duration) {
	for i := range t.rs {
		if !t.parse(i).Opcode.Info().Request {
			t.rs[i].Time = t.rs[i].Time.Add(d)
		}
	}
	slices.SortStableFunc(t.rs, func(a, b capture.Record) int { return a.Time.Compare(b.Time) })
}

// mirrored captures each packet again, 20 µs later.
func mirrored(t *recording, _ int) {
	for _, r := range slices.Clone(t.rs) {
		r.Time = r.Time.Add(20 * time.Microsecond)
		t.rs = append(t.rs, r)
	}
	slices.SortStableFunc(t.rs, func(a, b capture.Record) int { return a.Time.Compare(b.Time) })
}

func followedByAck(s *source, i int) bool {
	t := s.stream(i)
	for k := i + 1; k < len(s.ps); k++ {
		if s.stream(k) == t && !isRequest(s, k) {
			return isAck(s, k) && s.ps[k].Time.Sub(s.ps[i].Time) < time.Second
		}
	}
	return false
}

// places returns the packets of a source at which it is changed: at most eight of those that match.
func (n *neighbor) places(s *source) (places []int) {
	if n.at == nil {
		return []int{0}
	}
	var all []int
	for i := range s.ps {
		if n.at(s, i) {
			all = append(all, i)
		}
	}
	for k := 0; k < len(all); k += len(all)/8 + 1 {
		places = append(places, all[k])
	}
	return places
}

// What resembles a violation and is none is not accused.
func TestNeighborsOfMutationsBreakNoRule(t *testing.T) {
	all := sources(t)
	captures := 0
	for _, n := range neighbors {
		changed, failed, judged := 0, 0, 0
		for _, s := range all {
			for _, i := range n.places(s) {
				rec := s.recording(t)
				n.change(rec, i)
				changed++
				r := rec.judge()
				judged += bit(r.Connections > 0 && r.Messages > 0)
				if r.Total != 0 {
					if failed++; failed <= 3 {
						v := r.Violations[0]
						t.Errorf("%s: %s packet %d: %d violations: packet %d: %s (%s): %s", n.name, s.name, i+1, r.Total, v.Packet, v.Rule, v.Party, v.Detail)
					}
				}
			}
		}
		if failed > 3 {
			t.Errorf("%s: %d captures are accused", n.name, failed)
		}
		if changed == 0 {
			t.Errorf("%s: no capture has such a packet", n.name)
		}
		if 2*judged < changed {
			t.Errorf("%s: messages of a connection are judged in only %d of %d captures", n.name, judged, changed)
		}
		captures += changed
	}
	t.Logf("%d captures", captures)
}

// softroce keeps to the rules in simulated runs with faults of the network, errors of programs and
// disruptions.
func TestSimulatedRunsBreakNoRule(t *testing.T) {
	packets, connections, messages := 0, 0, 0
	for seed := range uint64(40) {
		p := sim.ProfileOf(seed)
		p.Stalls = 0                                            // what a stopped process receives has the time at which it goes on
		p.Blocks = nil                                          // a requester whose memory blocks may send a PSN again before its timeout
		p.Disruptions = 0                                       // a queue pair may be connected again with PSNs near the old ones
		p.Duplicate, p.Reorder, p.Delay, p.Corrupt = 0, 0, 0, 0 // copies have an Identification of their own
		rec := capture.NewRecorder()
		p.Tap = epoch{rec}
		if _, err := sim.RunProfile(seed, p); err != nil {
			t.Fatal(err)
		}
		var rs []capture.Record
		for _, p := range rec.Packets() {
			if p.ICRCOK() {
				rs = append(rs, p.Record)
			}
		}
		r := Records(rs)
		packets += r.RoCE
		connections += r.Connections
		messages += r.Messages
		if r.Total != 0 {
			v := r.Violations[0]
			t.Errorf("seed %d: %d violations: packet %d: %s (%s): %s", seed, r.Total, v.Packet, v.Rule, v.Party, v.Detail)
		}
	}
	if connections < 200 || messages < 3000 {
		t.Errorf("only %d packets, %d connections and %d messages are judged", packets, connections, messages)
	}
}
