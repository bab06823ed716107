// Package capture reads, writes and decodes captures of RoCE traffic, and reads and decodes those
// of InfiniBand.
//
// A Reader yields the frames of a pcap, pcapng or ERF file, and a Writer writes frames to a pcapng
// file.
// A Recorder keeps them in memory, so that a test can make assertions:
//
//	rec := capture.NewRecorder() // for verbstest.WithCapture
//	...
//	for _, p := range rec.Where(capture.Opcode(packet.Acknowledge), capture.DestQP(qp)) {
//		... // p.PSN, p.AETH.Syndrome, p.Payload
//	}
//
// Decode prints a capture with a line of text or JSON for each packet.
package capture
