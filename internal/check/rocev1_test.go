package check

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"softroce/capture"
	"softroce/internal/capturetest"
	"softroce/packet"
)

// toRoCEv1 makes every packet one of RoCE v1 with the same transport headers.
func (t *recording) toRoCEv1() {
	for i := range t.rs {
		t.rs[i] = capturetest.RoCEv1(t, capture.Packets{t.parse(i)})[0].Record
	}
}

// The transport rules hold on RoCE v1 too.
func TestFixturesBreakNoRuleAsRoCEv1(t *testing.T) {
	for _, file := range fixtureFiles(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".pcap")
		tp := load(t, name)
		want := tp.judge()
		tp.toRoCEv1()
		r := tp.judge()
		if r.Total != 0 || r.RoCEv1 != len(tp.rs) || r.RoCE != len(tp.rs) {
			t.Errorf("%s:\n%v", name, r)
		}
		if r.Connections != want.Connections || r.Messages != want.Messages || r.UCMessages != want.UCMessages {
			t.Errorf("%s: judged %s, as RoCEv2 %s", name, r.judged(), want.judged())
		}
	}
}

// Frames that no NIC sends, and those that a capture cuts, are reported as with RoCEv2.
func TestRoCEv1FramesThatCannotBeJudged(t *testing.T) {
	tp := load(t, "pp-ud")
	tp.toRoCEv1()
	change := func(i, at int, to byte) {
		tp.rs[i].Data = append([]byte{}, tp.rs[i].Data...)
		tp.rs[i].Data[at] = to
	}
	const grh = packet.EthernetLen
	change(0, grh+6, 0x3b)                                                // raw
	change(1, grh+4, 0xff)                                                // payload length
	change(2, len(tp.rs[2].Data)-1, ^tp.rs[2].Data[len(tp.rs[2].Data)-1]) // ICRC
	tp.rs[3].Data = tp.rs[3].Data[:grh+packet.GRHLen+packet.BTHLen-1]
	change(4, grh+7, 0) // the hop limit, which the ICRC does not cover
	r := tp.judge()
	if r.Other != 1 || r.ByRule[ruleFrame.ID] != 1 || r.ByRule[ruleICRC.ID] != 1 || r.Total != 2 || r.Cut != 1 || r.RoCEv1 != len(tp.rs)-1 {
		t.Errorf("%v\n%+v", r, *r)
	}
	if text := r.packets(); text != fmt.Sprintf("%d RoCE v1 packets", len(tp.rs)-1) {
		t.Errorf("%q", text)
	}
}
