package replay_test

import (
	"slices"
	"testing"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/packet"
)

// altered returns a copy of a packet with other headers or payload, and the right ICRC.
func altered(t testing.TB, p *capture.Packet, change func(h *packet.Header, payload []byte)) *capture.Packet {
	t.Helper()
	h, payload := p.Header, slices.Clone(p.Payload)
	change(&h, payload)
	var tx packet.Tx
	tx.Set(&h, payload)
	r := p.Record
	r.Data = packet.AppendFrame(nil, &p.Addressing, &tx)
	q, err := capture.Parse(r)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// reply matches packets of a responder with an AETH.
func reply(p *capture.Packet) bool {
	in := p.Opcode.Info()
	return in.Service == packet.RC && !in.Request && in.Headers&packet.HasAETH != 0
}

var everyOther = func(i int) bool { return i%2 == 1 }

// Every alteration of every packet that it applies to is a difference.
func TestAlteredPacketsAreReported(t *testing.T) {
	for _, c := range []struct {
		name   string
		files  []string
		which  capture.Match
		only   func(i int) bool // of those that match; nil: all
		change func(h *packet.Header, payload []byte)
	}{
		{"MSN one up", []string{"pp-rc-mtu1024.pcap", "read-bw.pcap", "atomic-faa.pcap", "loss-write-resp.pcap", "vp-rnr-multi.pcap",
			"vp-nak-badwrite.pcap", "vp-all-ops.pcap", "loss-read-resp.pcap"}, reply, nil,
			func(h *packet.Header, _ []byte) { h.AETH.MSN++ }},
		{"MSN one down", []string{"pp-rc-mtu256-pad.pcap", "read-bw-outs1.pcap", "dup-atomic.pcap", "cm-rping.pcap"}, reply, nil,
			func(h *packet.Header, _ []byte) { h.AETH.MSN = (h.AETH.MSN - 1) & packet.PSNMask }},
		{"PSN of a reply one up", []string{"pp-rc-mtu1024.pcap", "write-bw-rc.pcap", "read-bw.pcap", "atomic-cas.pcap"}, reply, nil,
			func(h *packet.Header, _ []byte) { h.BTH.PSN++ }},
		{"PSN of a reply one down", []string{"pp-rc-mtu1024.pcap", "write-bw-rc.pcap", "read-bw.pcap", "atomic-cas.pcap"}, reply, nil,
			func(h *packet.Header, _ []byte) { h.BTH.PSN-- }},
		{"PSN of a reply far off", []string{"write-bw-long.pcap", "loss-read-req.pcap", "vp-pipeline.pcap"}, reply, nil,
			func(h *packet.Header, _ []byte) { h.BTH.PSN = (h.BTH.PSN + 1000) & packet.PSNMask }},
		{"ACK to sequence NAK", []string{"pp-rc-mtu1024.pcap", "write-bw-rc.pcap"}, capture.Syndrome(packet.CreditsUnlimited), nil,
			func(h *packet.Header, _ []byte) { h.AETH.Syndrome = packet.NAKSequence }},
		{"ACK to access NAK", []string{"pp-rc-mtu1024.pcap", "write-bw-rc.pcap"}, capture.Syndrome(packet.CreditsUnlimited), nil,
			func(h *packet.Header, _ []byte) { h.AETH.Syndrome = packet.NAKRemoteAccess }},
		{"ACK to RNR NAK", []string{"pp-rc-mtu1024.pcap", "write-bw-rc.pcap"}, capture.Syndrome(packet.CreditsUnlimited), nil,
			func(h *packet.Header, _ []byte) { h.AETH.Syndrome = packet.SyndromeRNR | 14 }},
		{"reserved syndrome", []string{"loss-write-resp.pcap", "read-bw.pcap"}, reply, nil,
			func(h *packet.Header, _ []byte) { h.AETH.Syndrome = 0x40 }},
		{"access NAK to another", []string{"vp-nak-badwrite.pcap", "vp-nak-badread.pcap", "vp-nak-badatomic.pcap"},
			capture.Syndrome(packet.NAKRemoteAccess), nil,
			func(h *packet.Header, _ []byte) { h.AETH.Syndrome = packet.NAKInvalidRequest }},
		{"RNR timer", []string{"vp-rnr.pcap", "vp-rnr-multi.pcap"}, capture.Syndrome(packet.SyndromeRNR | 22), everyOther,
			func(h *packet.Header, _ []byte) { h.AETH.Syndrome = packet.SyndromeRNR | 21 }},
		{"READ payload", []string{"read-bw.pcap", "dup-read.pcap", "loss-read-resp.pcap", "ip6-read-bw.pcap"}, capture.Kind(packet.KindReadResponse), nil,
			func(_ *packet.Header, payload []byte) { payload[len(payload)/2] ^= 0x10 }},
		{"READ response opcode", []string{"read-bw.pcap", "vp-psn-wrap.pcap"}, capture.Opcode(packet.ReadResponseFirst, packet.ReadResponseLast), nil,
			func(h *packet.Header, _ []byte) { h.Opcode = packet.ReadResponseMid }},
		{"ACK becomes a READ response", []string{"pp-rc-mtu1024.pcap"}, capture.Opcode(packet.Acknowledge), nil,
			func(h *packet.Header, _ []byte) { h.Opcode = packet.ReadResponseOnly }},
		{"atomic's original value", []string{"dup-atomic.pcap"}, capture.Opcode(packet.AtomicAcknowledge), func(i int) bool { return i == 2 || i == 3 },
			func(h *packet.Header, _ []byte) { h.OrigData++ }},
		{"SEND becomes WRITE inside a message", []string{"pp-rc-mtu1024.pcap"}, capture.Opcode(packet.SendMiddle, packet.SendLast), nil,
			func(h *packet.Header, _ []byte) { h.Opcode += packet.WriteFirst }},
		{"FIRST becomes ONLY", []string{"pp-rc-mtu1024.pcap"}, capture.Opcode(packet.SendFirst), nil,
			func(h *packet.Header, _ []byte) { h.Opcode = packet.SendOnly }},
		{"WRITE length", []string{"write-bw-rc.pcap"}, capture.Opcode(packet.WriteFirst), nil,
			func(h *packet.Header, _ []byte) { h.RETH.Length += 1024 }},
		{"PSN of a request", []string{"pp-rc-mtu1024.pcap"}, capture.Opcode(packet.SendMiddle), nil,
			func(h *packet.Header, _ []byte) { h.BTH.PSN += 7 }},
		{"payload of a retransmission", []string{"loss-send-resp.pcap"}, capture.Kind(packet.KindSend), func(i int) bool { return i > 40 },
			func(_ *packet.Header, payload []byte) { payload[0] ^= 1 }},
		{"address of a retransmitted READ", []string{"loss-read-req.pcap"}, capture.Opcode(packet.ReadRequest), func(i int) bool { return i == 9 || i == 20 },
			func(h *packet.Header, _ []byte) { h.RETH.VA += 8 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, f := range c.files {
				ps := load(t, f)
				matches := ps.Where(c.which)
				if len(matches) == 0 {
					t.Fatalf("%s has no such packet", f)
				}
				changed := 0
				for i, p := range matches {
					if c.only != nil && !c.only(i) {
						continue
					}
					changed++
					qs := slices.Clone(ps)
					qs[slices.Index(qs, p)] = altered(t, p, c.change)
					if packets(t, qs, replay.Options{}).Differences() == 0 {
						t.Errorf("%s: not found in %v", f, p)
					}
				}
				if changed == 0 {
					t.Errorf("%s: no packet was changed", f)
				}
			}
		})
	}
}

func TestMissingResponseIsReported(t *testing.T) {
	ps := load(t, "read-bw.pcap")
	responses := ps.Where(capture.Kind(packet.KindReadResponse))
	if len(responses) < 2 {
		t.Fatalf("%d responses", len(responses))
	}
	for _, p := range responses[:len(responses)-1] { // the last one may follow the capture
		i := slices.Index(ps, p)
		if packets(t, slices.Delete(slices.Clone(ps), i, i+1), replay.Options{}).Differences() == 0 {
			t.Errorf("no remark although %v is missing", p)
		}
	}
}

func TestExtraReplyIsReported(t *testing.T) {
	for _, c := range []struct {
		file  string
		which capture.Match
	}{
		{"read-bw.pcap", capture.Kind(packet.KindReadResponse)},
		{"atomic-faa.pcap", capture.Opcode(packet.AtomicAcknowledge)},
		{"loss-write-resp.pcap", capture.Syndrome(packet.NAKSequence)},
		{"vp-rnr.pcap", capture.Syndrome(packet.SyndromeRNR | 22)},
	} {
		ps := load(t, c.file)
		replies := ps.Where(c.which)
		if len(replies) == 0 {
			t.Errorf("%s has no such reply", c.file)
		}
		for _, p := range replies {
			again := *p
			again.Addressing.ID += 0x4000 // retransmitted, not duplicated by the network
			q := altered(t, &again, func(*packet.Header, []byte) {})
			qs := slices.Insert(slices.Clone(ps), slices.Index(ps, p)+1, q)
			if packets(t, qs, replay.Options{}).Differences() == 0 {
				t.Errorf("%s: no remark about a second %v", c.file, p)
			}
		}
	}
}

// One extra reply is the NIC's fault; two show that the network duplicates requests.
func TestSecondSignExplainsCopies(t *testing.T) {
	for _, c := range []struct {
		file  string
		which capture.Match
	}{
		{"atomic-faa.pcap", capture.Opcode(packet.AtomicAcknowledge)},
		{"read-lat-5b.pcap", capture.Kind(packet.KindReadResponse)},
		{"vp-rnr.pcap", capture.Syndrome(packet.SyndromeRNR | 22)},
	} {
		ps := load(t, c.file)
		for n, p := range ps.Where(c.which)[:2] {
			ps = slices.Insert(slices.Clone(ps), slices.Index(ps, p)+1, p)
			again := *p
			again.Addressing.ID += 0x4000
			ps[slices.Index(ps, p)+1] = altered(t, &again, func(*packet.Header, []byte) {})
			r := packets(t, ps, replay.Options{})
			v := r.Connections[0].Streams[0].Responder
			if n == 0 && (r.Differences() != 1 || len(v.Copied) != 0) || n == 1 && (r.Differences() != 0 || len(v.Copied) != 2) {
				t.Errorf("%s with %d extra replies: %v", c.file, n+1, r)
			}
		}
	}
}

// A packet with a wrong ICRC is ignored, whatever it contains.
func TestWrongICRCIsSkipped(t *testing.T) {
	ps := load(t, "pp-rc-mtu1024.pcap")
	p := *ps.Find(capture.Opcode(packet.Acknowledge))
	p.Data = slices.Clone(p.Data)
	p.Data[len(p.Data)-1] ^= 1
	q, err := capture.Parse(p.Record)
	if err != nil {
		t.Fatal(err)
	}
	qs := append(slices.Clone(ps), q)
	r := packets(t, qs, replay.Options{})
	if len(r.Skipped) != 1 || r.Skipped[0].Packet != q.No || r.Differences() != 0 {
		t.Errorf("%v", r)
	}
}

func TestStrictModeComparesChoices(t *testing.T) {
	for name, change := range map[string]func(h *packet.Header, _ []byte){
		"credits": func(h *packet.Header, _ []byte) { h.AETH.Syndrome = 3 },
		"MigReq":  func(h *packet.Header, _ []byte) { h.MigReq = true },
		"P_Key":   func(h *packet.Header, _ []byte) { h.PKey = 0x7fff },
	} {
		ps := load(t, "pp-rc-mtu1024.pcap")
		i := slices.Index(ps, ps.Find(capture.Opcode(packet.Acknowledge)))
		ps[i] = altered(t, ps[i], change)
		if n := packets(t, ps, replay.Options{}).Differences(); n != 0 {
			t.Errorf("%s: %d differences", name, n)
		}
		if n := packets(t, ps, replay.Options{Strict: true}).Differences(); n != 1 {
			t.Errorf("%s: %d differences in strict mode", name, n)
		}
	}
}

// An implementation may acknowledge several messages with one ACK.
func TestCoalescedACKsAreNoDifference(t *testing.T) {
	ps := load(t, "write-bw-rc.pcap")
	i := slices.Index(ps, ps.Find(capture.Opcode(packet.Acknowledge)))
	ps = slices.Delete(ps, i, i+1)
	if n := packets(t, ps, replay.Options{}).Differences(); n != 0 {
		t.Errorf("%d differences", n)
	}
	if n := packets(t, ps, replay.Options{Strict: true}).Differences(); n != 1 {
		t.Errorf("%d differences in strict mode", n)
	}
}
