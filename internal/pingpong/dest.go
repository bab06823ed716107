package pingpong

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"softroce/verbs"
)

// A Dest is the address of a queue pair, as the two ends exchange it over TCP.
type Dest struct {
	LID uint16 // 0 on RoCE
	QPN uint32 // 24 bits
	PSN uint32 // 24 bits: the first PSN that this end sends
	GID verbs.GID
}

// The format of a Dest on the TCP connection: lid:qpn:psn:gid in hexadecimal, and a NUL.
const (
	destFormat = "%04x:%06x:%06x:%s"
	destLen    = len("0000:000000:000000:00000000000000000000000000000000\x00")
)

// done is sent by the client when it has the server's Dest.
const done = "done\x00"

// ErrPeer is returned if the peer's messages over TCP do not follow the protocol.
var ErrPeer = errors.New("the peer does not speak ibv_rc_pingpong's protocol")

// String formats d as the stock program does.
func (d Dest) String() string {
	return fmt.Sprintf("LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s", d.LID, d.QPN, d.PSN, d.GID.Addr())
}

func (d Dest) encode() []byte {
	return append(fmt.Appendf(nil, destFormat, d.LID, d.QPN, d.PSN, hex.EncodeToString(d.GID[:])), 0)
}

func decodeDest(b []byte) (d Dest, err error) {
	text, _, _ := strings.Cut(string(b), "\x00")
	part := strings.Split(text, ":")
	if len(part) != 4 {
		return d, fmt.Errorf("%w: %q is not lid:qpn:psn:gid", ErrPeer, text)
	}
	number := func(name, s string, bits int) uint64 {
		v, perr := strconv.ParseUint(s, 16, bits)
		if perr != nil && err == nil {
			err = fmt.Errorf("%w: %s %q is not a number of %d bits", ErrPeer, name, s, bits)
		}
		return v
	}
	d.LID = uint16(number("lid", part[0], 16))
	d.QPN = uint32(number("qpn", part[1], 24))
	d.PSN = uint32(number("psn", part[2], 24))
	if err != nil {
		return d, err
	}
	if n, herr := hex.Decode(d.GID[:], []byte(part[3])[:min(len(part[3]), 2*len(d.GID))]); herr != nil || n != len(d.GID) {
		return d, fmt.Errorf("%w: gid %q is not 32 hexadecimal digits", ErrPeer, part[3])
	}
	if d.GID == (verbs.GID{}) {
		return d, fmt.Errorf("the peer sent no GID: start it with a GID index, such as ibv_rc_pingpong -g 1")
	}
	return d, nil
}

func readDest(r io.Reader) (Dest, error) {
	var b [destLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Dest{}, fmt.Errorf("read the peer's address: %w", err)
	}
	return decodeDest(b[:])
}

// readDone waits for the client's confirmation.
func readDone(r io.Reader) error {
	var b [len(done)]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return fmt.Errorf("wait for the peer to be ready: %w", err)
	}
	if string(b[:]) != done {
		return fmt.Errorf("%w: got %q, want %q", ErrPeer, b, done)
	}
	return nil
}
