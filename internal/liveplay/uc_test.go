package liveplay_test

import (
	"strings"
	"testing"

	"softroce/internal/ib"
	"softroce/internal/liveplay"
	"softroce/internal/testbed"
	"softroce/transport"
)

// UC is judged by what the live program received, and by what the live requester sends.
func TestWrongUCTrafficIsReported(t *testing.T) {
	for _, c := range []struct {
		file, rule string
		side       liveplay.Side
		found      string
	}{
		{"send-bw-uc.pcap", "drop receive kind last nth 2", liveplay.Requester, "completion of receive 5: captured none"},
		{"vp-uc-ops.pcap", "drop receive opcode UC_WRITE_FIRST nth 1", liveplay.Requester, "memory at"},
		{"vp-uc-ops.pcap", "set imm 77 receive kind imm nth 1", liveplay.Requester, "completion of receive 2: captured success, 3000 bytes, immediate 0x4d"},
		{"pp-uc-mtu1024.pcap", "mark receive kind last", liveplay.Requester, ""},
		{"send-bw-uc.pcap", "drop send kind last nth 2", liveplay.Responder, "request: captured none, softroce UC_SEND_LAST"},
		{"vp-uc-ops.pcap", "set imm 77 send kind imm nth 1", liveplay.Responder, "immediate: captured 77"},
		{"write-bw-uc.pcap", "set rkey 77 send kind first nth 3", liveplay.Responder, "RETH: captured"},
	} {
		r, err := liveplay.File(fixtures+c.file, faulty(c.rule), liveplay.Options{Fast: true, Side: c.side})
		if err != nil {
			t.Fatal(err)
		}
		if text := r.String(); r.Differences() == 0 != (c.found == "") || !strings.Contains(text, c.found) {
			t.Errorf("%s: %s: %s", c.file, c.rule, text)
		}
	}
}

// A gap in the capture is played: the message is lost, and its receive is used for the next one.
func TestGapInUCTrafficIsPlayed(t *testing.T) {
	for _, rule := range []string{"drop send psn 101", "drop send psn 100", "drop send psn 102..103"} {
		ps := exchange(t, ib.QPTypeUC, rights, rule, func(l, r testbed.Region) (w []transport.SendWR) {
			for i := range 4 {
				w = append(w, transport.SendWR{Opcode: ib.WRSendWithImm, Imm: uint32(i), SGEs: []transport.SGE{{Addr: l.Addr + uint64(i), Length: 2500, LKey: l.LKey}}})
			}
			return append(w, transport.SendWR{Opcode: ib.WRRDMAWriteWithImm, RemoteAddr: r.Addr + 1, RKey: r.RKey, SGEs: []transport.SGE{{Addr: l.Addr, Length: 1500, LKey: l.LKey}}})
		})
		r, err := liveplay.Packets(ps, testbed.NewSimulated, liveplay.Options{Fast: true, Side: liveplay.Requester})
		if err != nil || r.Differences() > 0 || r.Streams[0].Sent != len(ps) {
			t.Errorf("%s: %v %v", rule, r, err)
		}
	}
}
