package packet

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

// The frame is that of IEEE 802.1Qbb, figure 23-2, byte for byte.
func TestPauseFrame(t *testing.T) {
	p := Pause{SrcMAC: [6]byte{2, 0, 0, 0, 0, 9}, Classes: 1<<3 | 1<<7, Quanta: [8]uint16{3: 0xffff, 7: 0x0102}}
	want, err := hex.DecodeString("0180c2000001" + "020000000009" + "8808" + "0101" + "0088" +
		"0000" + "0000" + "0000" + "ffff" + "0000" + "0000" + "0000" + "0102" + strings.Repeat("00", 26))
	if err != nil {
		t.Fatal(err)
	}
	frame := p.AppendFrame([]byte("before"))[len("before"):]
	if !bytes.Equal(frame, want) {
		t.Errorf("%x, want %x", frame, want)
	}
	if got, ok := ParsePause(frame); !ok || got != p {
		t.Errorf("parsed %+v, %v", got, ok)
	}
	for n := range pauseQuanta + 16 {
		if _, ok := ParsePause(frame[:n]); ok {
			t.Errorf("%d bytes are a pause frame", n)
		}
	}
	for _, at := range []int{12, 13, 14, 15} { // EtherType and opcode
		other := bytes.Clone(frame)
		other[at] ^= 1
		if _, ok := ParsePause(other); ok {
			t.Errorf("byte %d changed: still a pause frame", at)
		}
	}
	var f Frame
	if err := ParseFrame(frame, &f); err == nil {
		t.Error("a RoCE packet")
	}
}
