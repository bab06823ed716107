package check

import (
	"encoding/binary"
	"path/filepath"
	"strings"
	"testing"

	"softroce/capture"
	"softroce/cm"
	"softroce/internal/ib"
	"softroce/packet"
)

// toInfiniBand makes every packet an InfiniBand packet with the same transport headers, between the
// LIDs that the last two bytes of the addresses make, and with a GRH if global is set.
func (t *recording) toInfiniBand(global bool) {
	for i := range t.rs {
		p := t.parse(i)
		src, dst := p.Src.AsSlice(), p.Dst.AsSlice()
		a := packet.Addressing{Network: packet.InfiniBand, LRH: packet.LRH{
			LNH: packet.LNHLocal, SLID: binary.BigEndian.Uint16(src[len(src)-2:])&0x3fff | 1<<12, DLID: binary.BigEndian.Uint16(dst[len(dst)-2:])&0x3fff | 1<<12,
		}}
		if p.Dst.IsMulticast() {
			a.LRH.DLID = 0xc001
		}
		a.Src, a.Dst = packet.LIDAddr(a.LRH.SLID), packet.LIDAddr(a.LRH.DLID)
		if global {
			a.LRH.LNH = packet.LNHGlobal
			a.Src, a.Dst = p.Src, p.Dst
		}
		t.setFrame(i, &a, p)
	}
}

// setFrame replaces the i-th frame by an InfiniBand packet with the transport headers and payload
// of p.
func (t *recording) setFrame(i int, a *packet.Addressing, p *capture.Packet) {
	var tx packet.Tx
	tx.Set(&p.Header, p.Payload)
	t.rs[i].LinkType, t.rs[i].Data = capture.InfiniBand, packet.AppendFrame(nil, a, &tx)
	t.rs[i].Length = len(t.rs[i].Data)
}

// editLink changes the LRH and the headers of the i-th packet of an InfiniBand recording.
func editLink(f func(a *packet.Addressing, h *packet.Header)) func(t *recording, i int) {
	return func(t *recording, i int) {
		t.toInfiniBand(false)
		p := t.parse(i)
		f(&p.Addressing, &p.Header)
		t.setFrame(i, &p.Addressing, p)
	}
}

// smp makes the i-th packet a subnet management MAD.
func smp(f func(a *packet.Addressing, h *packet.Header, mad []byte)) func(t *recording, i int) {
	return func(t *recording, i int) {
		t.toInfiniBand(false)
		p := t.parse(i)
		p.Header = packet.Header{BTH: packet.BTH{Opcode: udSend, PKey: packet.DefaultPKey, DestQP: ib.SMIQPN}}
		p.LRH.VL, p.LRH.DLID = smpVL, 1
		p.Payload = make([]byte, cm.MADSize)
		m := cm.Header{BaseVersion: 1, Class: ib.ClassSubn, ClassVersion: 1, Method: cm.MethodGet, Attribute: 0x11}
		m.Put(p.Payload)
		f(&p.Addressing, &p.Header, p.Payload)
		t.setFrame(i, &p.Addressing, p)
	}
}

// The transport rules hold on InfiniBand too: captures with other link headers are judged the same
// way.
func TestFixturesBreakNoRuleAsInfiniBand(t *testing.T) {
	for _, file := range fixtureFiles(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".pcap")
		tp := load(t, name)
		want := tp.judge()
		for _, global := range []bool{false, true} {
			tp := load(t, name)
			tp.toInfiniBand(global)
			r := tp.judge()
			if r.Total != 0 || r.InfiniBand != len(tp.rs) {
				t.Errorf("%s, global %v:\n%v", name, global, r)
			}
			if r.Connections != want.Connections || r.Messages != want.Messages || r.UCMessages != want.UCMessages {
				t.Errorf("%s, global %v: judged %s, as RoCEv2 %s", name, global, r.judged(), want.judged())
			}
		}
	}
}

// Subnet management uses LIDs, a virtual lane and a queue pair that nothing else may use.
func TestSubnetManagementBreaksNoRule(t *testing.T) {
	none := func(*packet.Addressing, *packet.Header, []byte) {}
	directed := func(a *packet.Addressing, _ *packet.Header, mad []byte) {
		a.LRH.SLID, a.LRH.DLID, mad[1] = 0xffff, 0xffff, ib.ClassSubnDirect
	}
	redirected := func(a *packet.Addressing, h *packet.Header, mad []byte) {
		a.LRH.VL, mad[1] = 0, ib.ClassSubnAdm
		h.DestQP, h.DETH = cm.GSIQPN, packet.DETH{QKey: cm.GSIQKey, SrcQP: 77}
	}
	for name, f := range map[string]func(*packet.Addressing, *packet.Header, []byte){
		"SubnGet(NodeInfo)": none, "1 SubnGet(NodeInfo)": directed, "1 SubnAdmGet(NodeRecord)": redirected,
	} {
		tp := load(t, "pp-ud")
		smp(f)(tp, 0)
		if r := tp.judge(); r.Total != 0 || !strings.Contains(r.String(), name) {
			t.Errorf("%s:\n%v", name, r)
		}
	}
}

// A packet of another network, and an InfiniBand packet that cannot be parsed, are counted.
func TestInfiniBandFramesThatCannotBeJudged(t *testing.T) {
	tp := load(t, "pp-ud")
	tp.toInfiniBand(false)
	tp.rs[0].Data = append([]byte{}, tp.rs[0].Data...)
	tp.rs[0].Data[1] &^= 3 // raw
	tp.rs[1].Data = append([]byte{}, tp.rs[1].Data...)
	tp.rs[1].Data[5] = 0xff // its length
	tp.rs[2].Data = tp.rs[2].Data[:packet.LRHLen+packet.BTHLen-1]
	tp.rawLink(3, func(b []byte) { b[packet.LRHLen] = uint8(packet.CNP) })
	r := tp.judge()
	if r.Other != 1 || r.ByRule[ruleFrame.ID] != 1 || r.Total != 1 || r.Cut != 1 || r.RD != 1 || r.InfiniBand != len(tp.rs)-1 {
		t.Errorf("%v", r)
	}
}

// rawLink changes the bytes of an InfiniBand frame, and sets its CRCs.
func (t *recording) rawLink(i int, f func(b []byte)) {
	b := append([]byte(nil), t.rs[i].Data...)
	f(b)
	t.rs[i].Data = b
	p := t.parse(i)
	n := len(b) - packet.VCRCLen
	binary.LittleEndian.PutUint32(b[n-packet.ICRCLen:], packet.ICRCBytes(&p.Addressing, p.Transport[:len(p.Transport)-packet.ICRCLen]))
	binary.LittleEndian.PutUint16(b[n:], packet.VCRC(b[:n]))
}
