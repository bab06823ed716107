package liveplay_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"softroce/capture"
	"softroce/internal/capturetest"
	"softroce/internal/liveplay"
	"softroce/internal/replay"
	"softroce/internal/testbed"
	"softroce/packet"
	"softroce/wire"
)

// A versionCounter counts the RoCE packets on a link by network.
type versionCounter map[packet.Network]int

func (c versionCounter) WriteFrame(_ int64, _ int, b []byte) error {
	var f packet.Frame
	if packet.ParseFrame(b, &f) == nil {
		c[f.Network]++
	}
	return nil
}

// A capture of RoCE v1 is played in RoCE v1, without a difference. Which packets were lost or
// duplicated may be inferred otherwise than in RoCEv2, because a GRH has no Identification.
func TestRoCEv1PlaysAsRoCEv1(t *testing.T) {
	files, err := filepath.Glob(fixtures + "*.pcap")
	if err != nil {
		t.Fatal(err)
	}
	played := 0
	for _, file := range files {
		ps := load(t, filepath.Base(file))
		v2, err := liveplay.Packets(ps, testbed.NewSimulated, liveplay.Options{Fast: true})
		versions := versionCounter{}
		v1, err1 := liveplay.Packets(capturetest.RoCEv1(t, ps), testbed.NewSimulated, liveplay.Options{Fast: true, Tap: versions})
		if errors.Is(err, replay.ErrNothing) && errors.Is(err1, replay.ErrNothing) {
			continue
		}
		if err != nil || err1 != nil {
			t.Errorf("%s: %v, as RoCEv2 %v", file, err1, err)
			continue
		}
		played++
		if v1.Differences() > 0 || len(v1.Streams) != len(v2.Streams) || len(v1.Left) != len(v2.Left) {
			t.Errorf("%s: %v\nas RoCEv2 %v", file, v1, v2)
		}
		for i, s := range v1.Streams {
			if s.Side != v2.Streams[i].Side || s.Verdict().Compared == 0 && v2.Streams[i].Verdict().Compared > 0 {
				t.Errorf("%s: %v\nas RoCEv2 %v", file, v1, v2)
			}
		}
		if versions[packet.RoCEv1] == 0 || len(versions) != 1 {
			t.Errorf("%s: packets by network: %v", file, versions)
		}
	}
	if played == 0 {
		t.Error("nothing was played")
	}
}

// Traffic class and flow label of the captured packets stay.
func TestRoCEv1KeepsTrafficClassAndFlowLabel(t *testing.T) {
	ps := load(t, "pp-rc-mtu1024.pcap")
	for _, p := range ps {
		p.TClass, p.FlowLabel = 0x68, 0x6258a
	}
	var kept, other int
	tap := frameFunc(func(b []byte) {
		p, err := capture.Parse(capture.Record{LinkType: capture.Ethernet, Length: len(b), Data: b})
		switch {
		case err != nil || !p.Opcode.Info().Request:
		case p.TClass == 0x68 && p.FlowLabel == 0x6258a:
			kept++
		default:
			other++
		}
	})
	r, err := liveplay.Packets(capturetest.RoCEv1(t, ps), testbed.NewSimulated, liveplay.Options{Fast: true, Side: liveplay.Requester, Tap: tap})
	if err != nil || r.Differences() > 0 || kept == 0 || other > 0 {
		t.Errorf("%d packets with them, %d without: %v %v", kept, other, r, err)
	}
}

type frameFunc func([]byte)

func (f frameFunc) WriteFrame(_ int64, _ int, b []byte) error {
	f(b)
	return nil
}

// otherVersion is a testbed whose NIC under test connects in RoCEv2 whatever is asked of it.
type otherVersion struct{ testbed.Testbed }

type otherVersionNIC struct{ testbed.NIC }

func (n otherVersionNIC) GID(vlan uint16, _ packet.Network) (int, error) {
	return n.NIC.GID(vlan, packet.RoCEv2)
}

func (b otherVersion) NIC(second bool) (testbed.NIC, error) {
	n, err := b.Testbed.NIC(second)
	return otherVersionNIC{n}, err
}

// The packets of a NIC that connects in RoCEv2 are no replies to RoCE v1.
func TestRoCEv2IsNoReplyToRoCEv1(t *testing.T) {
	open := func(tap wire.FrameSink) (testbed.Testbed, error) {
		b, err := testbed.NewSimulated(tap)
		return otherVersion{b}, err
	}
	ps := capturetest.RoCEv1(t, load(t, "pp-rc-mtu1024.pcap"))
	for _, side := range []liveplay.Side{liveplay.Requester, liveplay.Responder} {
		if _, err := liveplay.Packets(ps, open, liveplay.Options{Fast: true, Side: side}); !errors.Is(err, liveplay.ErrSilent) {
			t.Errorf("%s: %v", side, err)
		}
	}
}

// A testbed without RoCE v1 refuses the capture before anything is sent.
func TestRoCEv1NeedsGID(t *testing.T) {
	open := func(tap wire.FrameSink) (testbed.Testbed, error) {
		b, err := testbed.NewSimulated(tap)
		return withoutRoCEv1{b}, err
	}
	versions := versionCounter{}
	_, err := liveplay.Packets(capturetest.RoCEv1(t, load(t, "pp-rc-mtu1024.pcap")), open, liveplay.Options{Fast: true, Tap: versions})
	if !errors.Is(err, testbed.ErrNoRoCEv1) || !strings.Contains(err.Error(), " > ") || len(versions) > 0 {
		t.Error(err, versions)
	}
}

type withoutRoCEv1 struct{ testbed.Testbed }

type withoutRoCEv1NIC struct{ testbed.NIC }

func (n withoutRoCEv1NIC) GID(vlan uint16, network packet.Network) (int, error) {
	if network == packet.RoCEv1 {
		return 0, testbed.ErrNoRoCEv1
	}
	return n.NIC.GID(vlan, network)
}

func (b withoutRoCEv1) NIC(second bool) (testbed.NIC, error) {
	n, err := b.Testbed.NIC(second)
	return withoutRoCEv1NIC{n}, err
}
