package liveplay_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/capture"
	"softroce/internal/ib"
	"softroce/internal/liveplay"
	"softroce/internal/replay"
	"softroce/internal/testbed"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
)

// A recorder keeps the frames on a link.
type recorder struct{ packets capture.Packets }

func (r *recorder) WriteFrame(ns int64, _ int, b []byte) error {
	p, err := capture.Parse(capture.Record{No: len(r.packets) + 1, Time: time.Unix(0, ns), LinkType: capture.Ethernet, Length: len(b), Data: slices.Clone(b)})
	if err == nil {
		r.packets = append(r.packets, p)
	}
	return nil
}

const rights = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

// exchange captures two NICs of softroce. The first posts work requests for a region of the second,
// which has receives posted.
func exchange(t *testing.T, of ib.QPType, access ib.Access, fault string, work func(local, remote testbed.Region) []transport.SendWR) capture.Packets {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	rec := &recorder{}
	b, err := testbed.NewSimulated(rec)
	must(err)
	defer b.Close()
	var nics [2]testbed.NIC
	var regions [2]testbed.Region
	var qpns [2]uint32
	for i := range nics {
		nics[i], err = b.NIC(i == 1)
		must(err)
		regions[i], err = nics[i].Register("m", testbed.RegionOptions{Size: 1 << 14, Fill: byte(0x40 * i), Access: access})
		must(err)
		qpns[i], err = nics[i].CreateQP("q", testbed.QPOptions{Type: of})
		must(err)
	}
	if fault != "" {
		must(b.Fault(fault))
	}
	for i := range nics {
		a := nic.QPAttr{QPAttr: ib.QPAttr{PathMTU: 1024, SQPSN: 100, RQPSN: 100, DestQPN: qpns[1-i], Access: access &^ ib.AccessLocalWrite, MaxRDAtomic: 8, MaxDestRDAtomic: 8,
			Timeout: 14, RetryCount: 7, RNRRetry: 7, QKey: 0x1234},
			AV: nic.AddressVector{SGIDIndex: 1, Port: 1, HopLimit: 64, DGID: nic.GIDOf(nics[1-i].Addr())}, Port: 1}
		for _, mask := range masks(of) {
			a.State++
			must(nics[i].ModifyQP("q", a, mask))
		}
	}
	for range 8 {
		must(nics[1].PostRecv("q", &transport.RecvWR{SGEs: []transport.SGE{{Addr: regions[1].Addr + 8192, Length: 8192, LKey: regions[1].LKey}}}))
	}
	for _, wr := range work(regions[0], regions[1]) {
		wr.Flags |= ib.SendSignaled
		must(nics[0].PostSend("q", &wr))
		b.Run(b.Now()+time.Millisecond, nil)
	}
	b.Run(b.Now()+time.Second, nil)
	return rec.packets
}

// masks are the attributes of each transition from RESET to RTS.
func masks(of ib.QPType) []ib.QPAttrMask {
	init := ib.QPMaskState | ib.QPMaskPKeyIndex | ib.QPMaskPort
	rtr := ib.QPMaskState | ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN
	rts := ib.QPMaskState | ib.QPMaskSQPSN
	switch of {
	case ib.QPTypeRC:
		return []ib.QPAttrMask{init | ib.QPMaskAccess, rtr | ib.QPMaskMaxDestRDAtomic | ib.QPMaskMinRNRTimer,
			rts | ib.QPMaskTimeout | ib.QPMaskRetryCount | ib.QPMaskRNRRetry | ib.QPMaskMaxRDAtomic}
	case ib.QPTypeUC:
		return []ib.QPAttrMask{init | ib.QPMaskAccess, rtr, rts}
	}
	return []ib.QPAttrMask{init | ib.QPMaskQKey, ib.QPMaskState, rts}
}

// playsBothWays replays packets, and plays both their sides to a simulated NIC. There must be no
// difference.
func playsBothWays(t *testing.T, ps capture.Packets) *liveplay.Report {
	t.Helper()
	r, err := replay.Packets(ps, replay.Options{})
	if err != nil || r.Differences() > 0 {
		t.Errorf("%v %v", r, err)
	}
	played, err := liveplay.Packets(ps, testbed.NewSimulated, liveplay.Options{Fast: true})
	if err != nil {
		t.Fatal(err)
	}
	if played.Differences() > 0 {
		t.Error(played)
	}
	for _, s := range played.Streams {
		if s.Verdict().Compared == 0 {
			t.Error(played)
		}
	}
	return played
}

// A windowless testbed has a NIC whose windows cannot be allocated, or have another key.
type windowless struct {
	testbed.Testbed
	rejectAlloc bool
}

type windowlessNIC struct {
	testbed.NIC
	rejectAlloc bool
}

var errNoWindows = errors.New("there are no windows")

func (n windowlessNIC) AllocMW(name string, t ib.MWType, pd string) (uint32, error) {
	if n.rejectAlloc {
		return 0, errNoWindows
	}
	return n.NIC.AllocMW(name, t, pd)
}

func (n windowlessNIC) PostBind(qp, mw, mr string, w *transport.SendWR) (uint32, error) {
	key, err := n.NIC.PostBind(qp, mw, mr, w)
	return key ^ 1, err
}

func (b windowless) NIC(second bool) (testbed.NIC, error) {
	n, err := b.Testbed.NIC(second)
	return windowlessNIC{n, b.rejectAlloc}, err
}

// A SEND with invalidate is played with a window; if the live NIC has none, without invalidate.
func TestSendWithInvalidateIsPlayed(t *testing.T) {
	for _, c := range []struct {
		open   func(wire.FrameSink) (testbed.Testbed, error)
		plains int
		err    error
	}{
		{testbed.NewSimulated, 0, nil},
		{func(tap wire.FrameSink) (testbed.Testbed, error) {
			b, err := testbed.NewSimulated(tap)
			return windowless{b, true}, err
		}, 1, nil},
		{func(tap wire.FrameSink) (testbed.Testbed, error) {
			b, err := testbed.NewSimulated(tap)
			return windowless{b, false}, err
		}, 0, liveplay.ErrSilent}, // it has no NAK for a key that is not its own
	} {
		r, err := liveplay.File(fixtures+"vp-send-inv.pcap", c.open, liveplay.Options{Fast: true, Side: liveplay.Requester})
		if !errors.Is(err, c.err) || err == nil && (r.Differences() > 0 || len(r.Streams[0].NotPlayed) != c.plains) {
			t.Error(r, err)
		}
	}
}

func TestFlushAndAtomicWriteArePlayed(t *testing.T) {
	for _, fault := range []string{"", "drop receive kind read_response nth 2", "drop send kind atomic_write nth 1", "drop receive kind read_response every 3"} {
		ps := exchange(t, ib.QPTypeRC, rights|ib.AccessFlushGlobal, fault, func(l, r testbed.Region) []transport.SendWR {
			from := func(at, n int) []transport.SGE {
				return []transport.SGE{{Addr: l.Addr + uint64(at), Length: uint32(n), LKey: l.LKey}}
			}
			return []transport.SendWR{
				{Opcode: ib.WRRDMAWrite, RemoteAddr: r.Addr + 64, RKey: r.RKey, SGEs: from(0, 3000)},
				{Opcode: ib.WRFlush, RemoteAddr: r.Addr + 64, RKey: r.RKey, Flush: transport.Flush{Length: 3000, Placement: 1}},
				{Opcode: ib.WRAtomicWrite, RemoteAddr: r.Addr + 8, RKey: r.RKey, SGEs: from(16, 8)},
				{Opcode: ib.WRFlush, RemoteAddr: r.Addr, RKey: r.RKey, Flush: transport.Flush{Placement: 1, Selectivity: 1}},
				{Opcode: ib.WRRDMARead, RemoteAddr: r.Addr, RKey: r.RKey, SGEs: from(4096, 2100)},
				{Opcode: ib.WRAtomicWrite, RemoteAddr: r.Addr + 16, RKey: r.RKey, SGEs: from(24, 8)},
				{Opcode: ib.WRSend, SGEs: from(0, 10)},
				{Opcode: ib.WRFlush, RemoteAddr: r.Addr, RKey: r.RKey ^ 1, Flush: transport.Flush{Length: 8, Placement: 1}},
			}
		})
		text := playsBothWays(t, ps).String()
		if !strings.Contains(text, "8 work requests posted") || strings.Contains(text, "not as captured") || strings.Contains(text, "not judged") {
			t.Error(text)
		}
	}
}
