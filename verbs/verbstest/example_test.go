package verbstest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"syscall"
	"time"

	"softroce/capture"
	"softroce/packet"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// check ends an example that fails.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// NIC 1 drops the second packet of a message when it arrives; NIC 0 retransmits it. In a test,
// verbstest.New(t, …) replaces NewFabric.
func ExampleWithFaults() {
	fabric, err := verbstest.NewFabric(verbstest.WithFaults(1, "drop receive opcode SEND_MIDDLE nth 1"))
	check(err)
	defer fabric.Close()
	x, y := fabric.Connected(verbstest.EndpointConfig{})

	const size = 20000 // five packets at path MTU 4096
	y.Recv(1, 0, size)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, size)})
	fmt.Println(y.Completion().ByteLen, "bytes")
	// Output: 20000 bytes
}

// A work request can fail, with any error, and an event arrive, at any moment of a test.
func ExampleFabric_Fire() {
	fabric, err := verbstest.NewFabric()
	check(err)
	defer fabric.Close()
	x, _ := fabric.Connected(verbstest.EndpointConfig{})

	fabric.SetFaults(0, "fail completion RETRY_EXC_ERR vendor_err 0x81 opcode send nth 1")
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 100)})
	wc := x.Failure(verbs.WCRetryExcErr)
	fmt.Printf("%v, vendor error %#x\n", wc.Status, wc.VendorErr)

	nic := fabric.Open(0)
	fabric.Fire(0, verbs.EventClientReregister, 0)
	event, err := nic.AsyncEvent(context.Background())
	check(err)
	fmt.Println(event.EventType)
	// Output:
	// transport retry counter exceeded, vendor error 0x81
	// CLIENT_REREGISTER
}

// Rules can be added and removed one by one. A completion that is held arrives when its rule is
// removed.
func ExampleFabric_AddFaults() {
	fabric, err := verbstest.NewFabric()
	check(err)
	defer fabric.Close()
	x, y := fabric.Connected(verbstest.EndpointConfig{})

	held := fabric.AddFaults("hold completion opcode rdma_write nic nic0")[0]
	x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 5), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	for fabric.Faults()[0].Acted == 0 {
		time.Sleep(time.Millisecond)
	}
	n, err := x.CQ.Poll(make([]verbs.WC, 1))
	check(err)
	fmt.Println(n, "completions")

	fabric.RemoveFault(held)
	fmt.Println(x.Completion().Status)
	// Output:
	// 0 completions
	// success
}

// A Recorder holds the packets of a link. Matches select those that a test makes claims about.
func ExampleWithCapture() {
	recorder := capture.NewRecorder()
	fabric, err := verbstest.NewFabric(verbstest.WithCapture(recorder))
	check(err)
	defer fabric.Close()
	x, y := fabric.Connected(verbstest.EndpointConfig{})

	x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 5), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	x.Completion()

	write := recorder.Find(capture.Opcode(packet.WriteOnly))
	ack := recorder.Find(capture.Opcode(packet.Acknowledge))
	fmt.Println("length", write.RETH.Length, "acknowledged", ack.PSN == write.PSN)
	fmt.Println(len(recorder.Where(capture.Request())), "request")
	// Output:
	// length 5 acknowledged true
	// 1 request
}

// A Recorder also has what fault rules did: comments on packets, and notes where there is none.
func ExampleWithCapture_faults() {
	recorder := capture.NewRecorder()
	fabric, err := verbstest.NewFabric(verbstest.WithCapture(recorder),
		verbstest.WithFaults(0, "fail alloc_mw ENOMEM nth 1\nmark send kind write nth 1"))
	check(err)
	defer fabric.Close()
	x, y := fabric.Connected(verbstest.EndpointConfig{})

	x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 5), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	x.Completion()
	_, err = x.PD.AllocMW(context.Background(), verbs.MWType1)
	fmt.Println(errors.Is(err, syscall.ENOMEM))

	fmt.Println(recorder.Find(capture.Opcode(packet.WriteOnly)).Comments)
	note, _, _ := strings.Cut(recorder.Notes()[0].Text, ", pid")
	fmt.Println(note)
	// Output:
	// true
	// [fault rule: mark send kind write nth 1 (nic0, send)]
	// fault rule: fail alloc_mw ENOMEM nth 1, alloc_mw (nic0
}

// Replay checks that each packet of a recording is one that softroce would have sent.
func ExampleReplay() {
	packets, err := capture.Load("../../pcap-fixtures/loss-write-resp.pcap")
	check(err)
	report, err := verbstest.Replay(packets)
	check(err)
	fmt.Println(len(report.Differences), "differences")
	// Output: 0 differences
}
