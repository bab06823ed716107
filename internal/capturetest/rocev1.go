// Package capturetest rewrites captured packets for tests.
package capturetest

import (
	"testing"

	"softroce/capture"
	"softroce/packet"
)

// RoCEv1 returns the packets as a capture of RoCE v1: the same BTHs behind a GRH, with a correct
// ICRC. The packets must be whole, and from Ethernet.
func RoCEv1(t testing.TB, ps capture.Packets) (l capture.Packets) {
	t.Helper()
	for _, p := range ps {
		a := p.Addressing
		a.Network, a.ID, a.MayFragment, a.SrcPort, a.DstPort, a.UDPChecksum = packet.RoCEv1, 0, false, 0, 0, 0
		var tx packet.Tx
		tx.Set(&p.Header, p.Payload)
		rec := p.Record
		rec.Data = packet.AppendFrame(nil, &a, &tx)
		rec.Length = len(rec.Data)
		q, err := capture.Parse(rec)
		if err != nil {
			t.Fatal(err)
		}
		l = append(l, q)
	}
	return l
}
