// Package testing_test has the examples of docs/use/testing.md: tests of programs that use RDMA,
// without a daemon, a network or privileges.
package testing_test

import (
	"path/filepath"
	"testing"

	"softroce/capture"
	"softroce/packet"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// Two NICs, a connection, and a recording of its packets.
func TestWriteIsAcknowledged(t *testing.T) {
	rec := capture.NewRecorder()
	a, b := verbstest.Pair(t, verbstest.WithCapture(rec))
	x, y := verbstest.ConnectedRC(t, a, b)

	copy(x.Buf, "hello")
	x.Send(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 5),
		RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
	})
	x.Completion()
	if string(y.Buf[:5]) != "hello" {
		t.Errorf("the peer received %q", y.Buf[:5])
	}

	write := rec.Find(capture.Opcode(packet.WriteOnly))
	ack := rec.Find(capture.Opcode(packet.Acknowledge))
	if write == nil || ack == nil {
		t.Fatalf("recorded:\n%v", rec.Packets())
	}
	if !write.AckReq || write.RETH.Length != 5 {
		t.Errorf("request: %v", write)
	}
	if ack.PSN != write.PSN || ack.AETH.MSN != 1 {
		t.Errorf("response: %v", ack)
	}
}

// A fault program drops a packet after it was recorded. The sequence NAK names its PSN, and the
// requester retransmits it.
func TestLostPacketIsRetransmitted(t *testing.T) {
	rec := capture.NewRecorder()
	a, b := verbstest.Pair(t,
		verbstest.WithCapture(rec),
		verbstest.WithFaults(1, "drop receive opcode SEND_MIDDLE nth 1"))
	x, y := verbstest.ConnectedRC(t, a, b)

	const size = 20000 // five packets at path MTU 4096
	y.Recv(1, 0, size)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, size)})
	x.Completion()
	y.Completion()

	nak := rec.Find(capture.Syndrome(packet.NAKSequence))
	if nak == nil {
		t.Fatalf("no NAK was recorded:\n%v", rec.Packets())
	}
	if sent := rec.Where(capture.Request(), capture.PSN(nak.PSN)); len(sent) != 2 {
		t.Errorf("the lost packet was sent %d times:\n%v", len(sent), sent)
	}
}

// Replay compares a recorded NIC with softroce: it sends the requests of the file to a new
// responder and the replies to a new requester.
func TestRecordedNICBehavesLikeSoftroce(t *testing.T) {
	packets, err := capture.Load("../../pcap-fixtures/loss-write-resp.pcap")
	if err != nil {
		t.Fatal(err)
	}
	report, err := verbstest.Replay(packets)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Differences) > 0 {
		t.Errorf("%v", report)
	}
}

// The same for a recording of the fabric. The report names the packet that the fault program
// dropped.
func TestReplayFindsTheLostPacket(t *testing.T) {
	rec := capture.NewRecorder()
	a, b := verbstest.Pair(t,
		verbstest.WithCapture(rec),
		verbstest.WithFaults(1, "drop receive kind write nth 3"))
	x, y := verbstest.ConnectedRC(t, a, b)
	for range 4 {
		x.Send(verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 10000),
			RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
		})
	}
	x.Completions(4)

	report, err := verbstest.Replay(rec.Packets())
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Differences) > 0 {
		t.Errorf("%v", report)
	}
	third := rec.Where(capture.Kind(packet.KindWrite))[2]
	if len(report.Lost) != 1 || report.Lost[0].Packet != third.No {
		t.Errorf("lost is %v, want packet %d\n%v", report.Lost, third.No, report)
	}
}

// A recording can be saved for tshark, Wireshark and softroce decode.
func TestRecordingIsSavedToAFile(t *testing.T) {
	rec := capture.NewRecorder()
	a, b := verbstest.Pair(t, verbstest.WithCapture(rec))
	x, y := verbstest.ConnectedRC(t, a, b)
	y.Recv(1, 0, 100)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 100)})
	x.Completion()

	file := filepath.Join(t.TempDir(), "send.pcapng")
	if err := rec.Save(file); err != nil {
		t.Fatal(err)
	}
	ps, err := capture.Load(file)
	if err != nil || len(ps) != 2 {
		t.Errorf("%d packets, %v", len(ps), err)
	}
}
