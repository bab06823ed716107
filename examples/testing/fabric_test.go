// Package testing_test has the examples of docs/use/testing.md: tests of programs that use RDMA,
// without a daemon, a network or privileges.
package testing_test

import (
	"path/filepath"
	"testing"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/packet"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// Two NICs, a connection, and a record of what was on the cable.
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
		t.Errorf("the peer has %q", y.Buf[:5])
	}

	write := rec.Find(capture.Opcode(packet.WriteOnly))
	ack := rec.Find(capture.Opcode(packet.Acknowledge))
	if write == nil || ack == nil {
		t.Fatalf("on the cable:\n%v", rec.Packets())
	}
	if !write.AckReq || write.RETH.Length != 5 {
		t.Errorf("the request: %v", write)
	}
	if ack.PSN != write.PSN || ack.AETH.MSN != 1 {
		t.Errorf("the answer: %v", ack)
	}
}

// A packet is lost on its way, behind the point of capture: the sequence NAK names it, and it
// comes again.
func TestLostPacketComesAgain(t *testing.T) {
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
		t.Fatalf("no NAK on the cable:\n%v", rec.Packets())
	}
	if sent := rec.Where(capture.Request(), capture.PSN(nak.PSN)); len(sent) != 2 {
		t.Errorf("the packet that was lost was sent %d times:\n%v", len(sent), sent)
	}
}

// What another NIC said is held against what softroce's says: each request of the file goes
// to a fresh responder, each reply to a requester with the same work.
func TestRecordedNICBehavesAsOurs(t *testing.T) {
	report, err := replay.File("../../pcap-fixtures/loss-write-resp.pcap", replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if report.Differences() > 0 {
		t.Errorf("%v", report)
	}
}

// The same for what the fabric carried. The report tells which packet the program of faults dropped.
func TestRecordingReplays(t *testing.T) {
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

	report, err := replay.Packets(rec.Packets(), replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if report.Differences() > 0 {
		t.Errorf("%v", report)
	}
	lost := report.Connections[0].Streams[0].Responder.Lost
	if third := rec.Where(capture.Kind(packet.KindWrite))[2]; len(lost) != 1 || lost[0].Packet != third.No {
		t.Errorf("lost is %v, not packet %d\n%v", lost, third.No, report)
	}
}

// A recording can be kept for tshark, Wireshark and softroce decode.
func TestRecordingIsAFileToo(t *testing.T) {
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
