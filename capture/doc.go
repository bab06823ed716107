// Package capture reads, writes, decodes and replays captures of RoCEv2 traffic.
//
// A Reader yields the frames of a pcap or pcapng file, a Writer makes a pcapng file
// of frames, and a Recorder keeps them in memory for a test to assert on:
//
//	rec := capture.NewRecorder()      // give it to the link as its sink
//	...
//	for _, p := range rec.Where(capture.Opcode(packet.Acknowledge), capture.DestQP(qp)) {
//		...                           // p.PSN, p.AETH.Syndrome, p.Payload
//	}
//
// Decode prints a capture, a line of text or JSON per packet.
package capture
