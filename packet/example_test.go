package packet_test

import (
	"fmt"
	"log"
	"net/netip"

	"softroce/packet"
)

// A frame is built from its addressing and its headers, and parsed back into them.
func ExampleParseFrame() {
	addressing := packet.Addressing{
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), HopLimit: 64,
	}
	var header packet.Header
	header.Opcode, header.DestQP, header.PSN, header.PKey = packet.SendOnly, 0x11, 7, packet.DefaultPKey
	var tx packet.Tx
	tx.Set(&header, []byte("hello"))
	bytes := packet.AppendFrame(nil, &addressing, &tx)

	var frame packet.Frame
	if err := packet.ParseFrame(bytes, &frame); err != nil {
		log.Fatal(err)
	}
	var parsed packet.Header
	n, err := parsed.Parse(frame.Transport)
	if err != nil {
		log.Fatal(err)
	}
	length, err := parsed.PayloadLen(len(frame.Transport) - packet.ICRCLen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(frame.Src, parsed.Opcode, "PSN", parsed.PSN, "ICRC correct:", frame.ICRCOK())
	fmt.Printf("%s\n", frame.Transport[n:n+length])
	// Output:
	// 192.0.2.1 RC_SEND_ONLY PSN 7 ICRC correct: true
	// hello
}
