package rocelayers

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"softroce/packet"
)

// fixtures returns the frames with UDP port 4791 of all captures in pcap-fixtures.
func fixtures(t *testing.T) (frames [][]byte) {
	t.Helper()
	files, err := filepath.Glob("../../pcap-fixtures/*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r, err := pcapgo.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		for {
			b, _, err := r.ReadPacketData()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			var fr packet.Frame
			if packet.ParseFrame(b, &fr) == nil {
				frames = append(frames, b)
			}
		}
	}
	if len(frames) < 1000 {
		t.Fatalf("only %d packets in %d files", len(frames), len(files))
	}
	return frames
}

func dissect(b []byte) (gopacket.Packet, *RoCEv2) {
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
	r, _ := p.Layer(LayerTypeRoCEv2).(*RoCEv2)
	return p, r
}

func TestGopacketDissectsFixturePackets(t *testing.T) {
	for i, b := range fixtures(t) {
		p, r := dissect(b)
		if r == nil || p.ErrorLayer() != nil {
			t.Fatalf("frame %d: %v", i, p)
		}
		if ok, err := r.ICRCOK(p); !ok || err != nil {
			t.Errorf("frame %d: ICRC %v, %v", i, ok, err)
		}
		var f packet.Frame
		var h packet.Header
		if err := packet.ParseFrame(b, &f); err != nil {
			t.Fatal(err)
		}
		n, err := h.Parse(f.Transport)
		if err != nil || h != r.Header || r.ICRC != f.ICRC() || !bytes.Equal(r.LayerContents(), f.Transport[:n]) {
			t.Errorf("frame %d: %v, want %+v, have %+v", i, err, h, r.Header)
		}
		if got := bytes.Join([][]byte{r.Contents, r.LayerPayload(), r.Padding}, nil); !bytes.Equal(got, f.Transport[:len(f.Transport)-4]) {
			t.Errorf("frame %d: parts are %x", i, got)
		}
		if payload := p.Layer(gopacket.LayerTypePayload); (payload != nil) != (len(r.Payload) > 0) {
			t.Errorf("frame %d: payload layer %v for %d bytes", i, payload, len(r.Payload))
		}
	}
}

func TestGopacketReserializesFixturePackets(t *testing.T) {
	for i, b := range fixtures(t) {
		p, r := dissect(b)
		icrc := r.ICRC
		udp := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if err := r.SetLayersForICRC(p.NetworkLayer(), udp); err != nil {
			t.Fatal(err)
		}
		r.ICRC, r.Pad, r.Padding = 0, 3, nil
		out := gopacket.NewSerializeBuffer()
		if err := gopacket.Payload(r.Payload).SerializeTo(out, gopacket.SerializeOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := r.SerializeTo(out, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}); err != nil {
			t.Fatal(err)
		}
		if r.ICRC != icrc || !bytes.Equal(out.Bytes(), udp.Payload) {
			t.Errorf("frame %d: ICRC %#x, want %#x\n%x\n%x", i, r.ICRC, icrc, out.Bytes(), udp.Payload)
		}
	}
}

// inRoCEv1 returns the frames with a GRH in place of the IP and UDP headers.
func inRoCEv1(t *testing.T, frames [][]byte) (v1 [][]byte) {
	t.Helper()
	for _, b := range frames {
		var f packet.Frame
		if err := packet.ParseFrame(b, &f); err != nil {
			t.Fatal(err)
		}
		a := f.Addressing
		a.Network = packet.RoCEv1
		covered := f.Transport[:len(f.Transport)-packet.ICRCLen]
		tx := packet.Tx{HeadLen: packet.BTHLen, Payload: [][]byte{covered[packet.BTHLen:]}, Len: len(covered)}
		copy(tx.Head[:], covered[:packet.BTHLen])
		v1 = append(v1, append(packet.AppendFrame(nil, &a, &tx), 0, 0)) // with Ethernet padding
	}
	return v1
}

func TestGopacketDissectsRoCEv1(t *testing.T) {
	for i, b := range inRoCEv1(t, fixtures(t)) {
		p, r := dissect(b)
		g, _ := p.Layer(LayerTypeGRH).(*GRH)
		if g == nil || r == nil || p.ErrorLayer() != nil || p.NetworkLayer() != gopacket.NetworkLayer(g) {
			t.Fatalf("frame %d: %v", i, p)
		}
		var f packet.Frame
		if err := packet.ParseFrame(b, &f); err != nil || g.Src != f.Src || g.Dst != f.Dst || g.TClass != f.TClass || g.HopLimit != f.HopLimit {
			t.Errorf("frame %d: %v, GRH %+v", i, err, g.Addressing)
		}
		if ok, err := r.ICRCOK(p); !ok || err != nil {
			t.Errorf("frame %d: ICRC %v, %v", i, ok, err)
		}
		if len(r.Payload) > 0 {
			r.Payload[0] ^= 1
			if ok, err := r.ICRCOK(p); ok || err != nil {
				t.Errorf("frame %d, damaged: ICRC %v, %v", i, ok, err)
			}
			r.Payload[0] ^= 1
		}
		r.ICRC, r.Pad, r.Padding = 0, 3, nil
		out := gopacket.NewSerializeBuffer()
		eth := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
		if err := gopacket.SerializeLayers(out, gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true}, eth, g, r, gopacket.Payload(r.Payload)); err != nil {
			t.Fatal(err)
		}
		if want := b[:len(b)-2]; len(out.Bytes()) < len(want) || !bytes.Equal(out.Bytes()[:len(want)], want) {
			t.Errorf("frame %d:\n%x, want\n%x", i, out.Bytes(), want)
		}
	}
	if _, err := (&RoCEv2{}).ICRCOK(gopacket.NewPacket(make([]byte, 60), layers.LayerTypeEthernet, gopacket.Default)); !errors.Is(err, ErrNoAddressing) {
		t.Errorf("without a GRH: %v", err)
	}
	for n := range packet.GRHLen + packet.BTHLen {
		var g GRH
		if err := g.DecodeFromBytes(make([]byte, n), gopacket.NilDecodeFeedback); err == nil {
			t.Fatalf("%d bytes are a GRH with a packet", n)
		}
	}
}

func TestDecodingLayerParserDoesNotAllocate(t *testing.T) {
	b := fixtures(t)[0]
	var eth layers.Ethernet
	var ip4 layers.IPv4
	var udp layers.UDP
	var r RoCEv2
	var payload gopacket.Payload
	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip4, &udp, &r, &payload)
	var found []gopacket.LayerType
	decode := func() {
		if err := parser.DecodeLayers(b, &found); err != nil {
			t.Fatal(err)
		}
	}
	decode()
	if len(found) < 4 || found[3] != LayerTypeRoCEv2 {
		t.Errorf("layers %v", found)
	}
	if n := testing.AllocsPerRun(50, decode); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

func TestMalformedPacketYieldsErrorLayer(t *testing.T) {
	for name, c := range map[string]struct {
		transport []byte
		want      error
	}{
		"short":             {make([]byte, 15), packet.ErrShort},
		"unassigned opcode": {append([]byte{0x1f}, make([]byte, 15)...), packet.ErrOpcode},
		"RETH missing":      {append([]byte{packet.WriteOnly}, make([]byte, 15)...), packet.ErrShort},
		"pad":               {append([]byte{packet.SendOnly, 0x30}, make([]byte, 15)...), packet.ErrPad},
	} {
		var r RoCEv2
		if err := r.DecodeFromBytes(c.transport, gopacket.NilDecodeFeedback); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		p := gopacket.NewPacket(c.transport, LayerTypeRoCEv2, gopacket.Default)
		if p.ErrorLayer() == nil {
			t.Errorf("%s: no error layer", name)
		}
	}
}

func TestICRCNeedsEnclosingLayers(t *testing.T) {
	r := &RoCEv2{Header: packet.Header{BTH: packet.BTH{Opcode: packet.Acknowledge}}}
	if err := r.SerializeTo(gopacket.NewSerializeBuffer(), gopacket.SerializeOptions{ComputeChecksums: true}); !errors.Is(err, ErrNoAddressing) {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"no UDP":     r.SetLayersForICRC(&layers.IPv4{}, nil),
		"no IP":      r.SetLayersForICRC(nil, &layers.UDP{}),
		"no address": r.SetLayersForICRC(&layers.IPv6{}, &layers.UDP{}),
	} {
		if !errors.Is(err, ErrNoAddressing) {
			t.Errorf("%s: %v, want ErrNoAddressing", name, err)
		}
	}
	p := gopacket.NewPacket(make([]byte, 20), LayerTypeRoCEv2, gopacket.Default)
	if _, err := r.ICRCOK(p); !errors.Is(err, ErrNoAddressing) {
		t.Error(err)
	}
}
