package replay_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/packet"
)

// sentPacket builds a packet of a capture between two hosts.
func sentPacket(t testing.TB, no int, back bool, id uint16, h packet.Header, payload int) *capture.Packet {
	t.Helper()
	a := packet.Addressing{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"),
		SrcPort: 50000, DstPort: packet.UDPPort, ID: id, HopLimit: 64}
	if back {
		a.Src, a.Dst = a.Dst, a.Src
	}
	h.PKey = packet.DefaultPKey
	var tx packet.Tx
	tx.Set(&h, make([]byte, payload))
	p, err := capture.Parse(capture.Record{No: no, Time: time.Unix(0, int64(no)*1e6), LinkType: capture.Ethernet,
		Data: packet.AppendFrame(nil, &a, &tx)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// processorTime returns how much processor time this process has used. Other processes do not
// change it, as they do the time that passes.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Captures made to be slow: each step of the replay meets a very large number of something.
func TestHostileCapturesReplayInBoundedTime(t *testing.T) {
	const n = 8_000
	bth := func(op packet.Opcode, psn int) packet.Header {
		return packet.Header{BTH: packet.BTH{Opcode: op, DestQP: 17, PSN: uint32(psn) & packet.PSNMask, AckReq: true}}
	}
	read := func(psn int, va uint64, key, size uint32) packet.Header {
		h := bth(packet.ReadRequest, psn)
		h.RETH = packet.RETH{VA: va, RKey: key, Length: size}
		return h
	}
	ack := func(psn int, s packet.Syndrome) packet.Header {
		h := bth(packet.Acknowledge, psn)
		h.AETH.Syndrome = s
		return h
	}
	for name, of := range map[string]func(i int) (back bool, h packet.Header, payload int){
		"one READ repeatedly": func(i int) (bool, packet.Header, int) {
			return i%2 == 1, []packet.Header{read(5, 0, 1, 8), bth(packet.ReadResponseOnly, 5)}[i%2], 8 * (i % 2)
		},
		"READs of 2 GiB": func(i int) (bool, packet.Header, int) { return false, read(i, uint64(i)<<40, uint32(i), 1<<31), 0 },
		"a NAK for each packet": func(i int) (bool, packet.Header, int) {
			return i%2 == 1, []packet.Header{bth(packet.SendOnly, 5), ack(5, packet.NAKSequence)}[i%2], 0
		},
		"ACKs that jump": func(i int) (bool, packet.Header, int) {
			return i%2 == 1, []packet.Header{bth(packet.SendOnly, i), ack(i*7919%n, 0x1f)}[i%2], 0
		},
		"PSNs anywhere": func(i int) (bool, packet.Header, int) { return i%3 == 0, bth(packet.SendOnly, i*7919*7919), 4 },
		"queue pairs without number": func(i int) (bool, packet.Header, int) {
			h := bth(packet.SendOnly, 5)
			h.DestQP = uint32(i)
			return i%2 == 1, h, 4
		},
		"gaps everywhere": func(i int) (bool, packet.Header, int) { return false, bth(packet.SendMiddle, i*100), 256 },
		"back and forth":  func(i int) (bool, packet.Header, int) { return false, bth(packet.SendOnly, i%2*4000+i/2), 4 },
		"responses to all READs": func(i int) (bool, packet.Header, int) {
			return i > n/2, []packet.Header{read(0, 0, 1, 1<<31), bth(packet.ReadResponseMid, i%1000)}[bit(i > n/2)], 256 * bit(i > n/2)
		},
		"responses begun, and continued later": func(i int) (bool, packet.Header, int) {
			if i == 0 {
				return false, read(0, 0, 1, 4096), 0
			}
			return true, []packet.Header{bth(packet.ReadResponseFirst, 0), bth(packet.ReadResponseMid, 1)}[bit(i > n/2)], 256
		},
		"a key for each packet": func(i int) (bool, packet.Header, int) {
			h := bth(packet.WriteOnly, i)
			h.RETH = packet.RETH{VA: uint64(i) * 7919 << 30, RKey: uint32(i), Length: 4}
			return i%2 == 1, []packet.Header{h, ack(i-1, 0x1f)}[i%2], 4 * (1 - i%2)
		},
	} {
		for _, id := range []uint16{0, 1} { // whether the order is certain
			t.Run(name, func(t *testing.T) {
				var ps capture.Packets
				for i := range n {
					back, h, payload := of(i)
					ps = append(ps, sentPacket(t, i+1, back, id*uint16(i), h, payload))
				}
				start := processorTime(t)
				r := packets(t, ps, replay.Options{})
				if d := processorTime(t) - start; d > 10*time.Second {
					t.Errorf("replay took %v of processor time for %d packets", d, n)
				} else {
					t.Logf("%v, %d differences", d, r.Differences())
				}
			})
		}
	}
}

func TestFileReturnsReaderErrors(t *testing.T) {
	dir := t.TempDir()
	whole, err := os.ReadFile(fixtures + "pp-rc-mtu1024.pcap")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"cut":   {whole[:len(whole)-10], capture.ErrTruncated},
		"text":  {[]byte("no capture at all"), capture.ErrNotCapture},
		"empty": {nil, capture.ErrNotCapture},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, c.bytes, 0o600); err != nil {
			t.Fatal(err)
		}
		var format *capture.FormatError
		if _, err := replay.File(file, replay.Options{}); !errors.Is(err, c.want) || !errors.As(err, &format) || format.File != file {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := replay.File(filepath.Join(dir, "nowhere"), replay.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}
