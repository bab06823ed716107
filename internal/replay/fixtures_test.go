package replay_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/packet"
)

const fixtures = "../../pcap-fixtures/"

func load(t testing.TB, name string) capture.Packets {
	t.Helper()
	ps, err := capture.Load(fixtures + name)
	if err != nil {
		t.Fatal(err)
	}
	return ps
}

func packets(t testing.TB, ps capture.Packets, o replay.Options) *replay.Report {
	t.Helper()
	r, err := replay.Packets(ps, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func allFixtures(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(fixtures + "*.pcap")
	if err != nil || len(files) < 80 {
		t.Fatalf("%d fixtures, %v; want at least 80", len(files), err)
	}
	for i, f := range files {
		files[i] = filepath.Base(f)
	}
	return files
}

func TestFixturesReplayWithoutDifference(t *testing.T) {
	for _, f := range allFixtures(t) {
		t.Run(f, func(t *testing.T) {
			r, err := replay.File(fixtures+f, replay.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if r.Differences() != 0 {
				t.Errorf("%v", r)
			}
			for _, c := range r.Connections {
				for _, s := range c.Streams {
					if v := &s.Responder; len(v.Copied)+len(v.Overtaken) > 0 { // the fixtures show none of it
						t.Errorf("%v", r)
					}
					judged := s.Responder.Compared + len(s.Responder.NotJudged)
					if judged < s.Replies-s.Requests || s.Requester.Compared == 0 {
						t.Errorf("%v > %v: hardly anything was compared:\n%v", s.From, s.To, r)
					}
				}
			}
		})
	}
}

// The driver makes two choices that softroce does not: it sets AckReq in the middle of a message
// after another number of packets, and its connection manager gives connections a flow label.
func TestStrictModeFindsTwoChoicesInFixtures(t *testing.T) {
	found := map[string]int{}
	for _, f := range allFixtures(t) {
		cm := strings.Contains(f, "cm-")
		for _, c := range packets(t, load(t, f), replay.Options{Strict: true}).Connections {
			for _, s := range c.Streams {
				for _, d := range slices.Concat(s.Responder.Differences, s.Requester.Differences) {
					found[d.Field]++
					if d.Field != "AckReq" && !(cm && d.Field == "UDP source port") {
						t.Errorf("%s: %v", f, d)
					}
				}
			}
		}
	}
	if len(found) != 2 {
		t.Errorf("found %v", found)
	}
}

func TestKnownDeviationsAreNamed(t *testing.T) {
	for _, c := range []struct{ file, deviation string }{
		{"vp-nak-sendtoolong.pcap", "0x63"},
		{"vp-rnr-multi.pcap", "after an RNR NAK"},
		{"loss-read-req.pcap", "retransmitted from its middle"},
		{"vp-no-answer-retry7.pcap", "is not exhausted"},
	} {
		if text := packets(t, load(t, c.file), replay.Options{}).String(); !strings.Contains(text, c.deviation) {
			t.Errorf("%s: the deviation %q is not in\n%s", c.file, c.deviation, text)
		}
	}
}

// loss-pp-rc.pcap: packet 34 causes a NAK, 71 is retransmitted after a timeout although 70 arrived,
// and the requester does not receive the ACK 84.
func TestLossAfterCaptureIsInferred(t *testing.T) {
	r := packets(t, load(t, "loss-pp-rc.pcap"), replay.Options{})
	var requests, replies []int
	for _, s := range r.Connections[0].Streams {
		for _, n := range s.Responder.Lost {
			requests = append(requests, n.Packet)
		}
		for _, n := range s.Requester.Lost {
			replies = append(replies, n.Packet)
		}
	}
	if !slices.Equal(requests, []int{71, 34}) || !slices.Equal(replies, []int{84}) {
		t.Errorf("lost: requests %v, replies %v", requests, replies)
	}
}

func TestConnectionsBetweenSameHostsAreDistinguished(t *testing.T) {
	r := packets(t, load(t, "pp-srq.pcap"), replay.Options{})
	if len(r.Connections) != 2 {
		t.Fatalf("%d connections\n%v", len(r.Connections), r)
	}
	for _, c := range r.Connections {
		if c.A.QPN != c.B.QPN || !c.A.Known || len(c.Streams) != 2 { // both drivers number their queue pairs from the same value
			t.Errorf("%v and %v, %d streams", c.A, c.B, len(c.Streams))
		}
	}
}

// What is not rebuilt is listed as not judged: the memory that a SEND invalidates.
func TestSendWithInvalidateIsNotJudged(t *testing.T) {
	s := packets(t, load(t, "vp-send-inv.pcap"), replay.Options{}).Connections[0].Streams[0]
	if len(s.Responder.NotJudged) != 1 || len(s.Requester.NotJudged) != 0 || s.Requester.Compared != 2 {
		t.Errorf("responder %v, requester %v", s.Responder.NotJudged, s.Requester.NotJudged)
	}
}

// A capture may end at any packet, and begin at any, also inside a retransmission.
func TestPartialCaptureReplaysWithoutDifference(t *testing.T) {
	for name, with := range identifications(t) {
		for _, f := range allFixtures(t) {
			ps := with(load(t, f))
			cuts := 4
			if name == "numbered" {
				cuts = 8
			}
			if strings.HasPrefix(f, "loss-") || strings.HasPrefix(f, "reorder-") {
				cuts *= 5 // many of their packets are inside a retransmission
			}
			step := 1 + len(ps)/cuts
			for k := step; k < len(ps); k += step {
				for which, part := range map[string]capture.Packets{"to": ps[:k], "from": renumbered(ps[k:])} {
					r := packets(t, part, replay.Options{})
					if r.Differences() != 0 {
						t.Errorf("%s, Identifications %s, %s packet %d:\n%v", f, name, which, ps[k].No, r)
					}
					if r.Compared == 0 && len(r.Incomplete()) == 0 {
						t.Errorf("%s, Identifications %s, %s packet %d: nothing was compared, and the report does not say so", f, name, which, ps[k].No)
					}
				}
			}
		}
	}
}

// The READs and atomics that a capture repeats from before its beginning are found, although their
// number lies between those that are tried, and the rest is compared.
func TestLongRetransmissionAtBeginningReplaysWithoutDifference(t *testing.T) {
	for name, with := range identifications(t) {
		ps := with(load(t, "loss-atomic.pcap"))
		if r := packets(t, renumbered(ps[172:]), replay.Options{}); r.Differences() != 0 || r.Compared < 100 {
			t.Errorf("Identifications %s:\n%v", name, r)
		}
	}
}

// A capture that shows a retransmission of what was sent before it does not excuse a responder that
// replies wrongly to everything: its replies differ, or the report says that the stream was not
// compared, also if there is another one.
func TestRetransmissionAtBeginningHidesNoWrongResponder(t *testing.T) {
	const other = "ip6-read-bw.pcap"
	for _, f := range []string{"loss-send-resp.pcap", "loss-write-resp.pcap", "loss-read-req.pcap", "loss-read-resp.pcap"} {
		ps := load(t, f)
		for i, p := range ps {
			if reply(p) {
				ps[i] = altered(t, p, func(h *packet.Header, _ []byte) { h.AETH.Syndrome = 0x40 })
			}
		}
		for k := range len(ps) - 1 {
			part := renumbered(slices.Concat(ps[k:], load(t, other)))
			if r := packets(t, part, replay.Options{}); r.Differences() == 0 && len(r.Incomplete()) == 0 && len(ps[k:].Where(reply)) > 0 {
				t.Errorf("%s from packet %d: no differences, and nothing is said to be left out:\n%v", f, ps[k].No, r)
			}
		}
	}
}

// renumbered returns packets numbered from 1.
func renumbered(ps capture.Packets) (out capture.Packets) {
	for i, p := range ps {
		q := *p
		q.No = i + 1
		out = append(out, &q)
	}
	return out
}
