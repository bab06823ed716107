package pingpong

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"softroce/verbs"
)

// captured was sent by ibv_rc_pingpong of rdma-core 44 (pp-rc-mtu1024.pcap).
const captured = "0000:000011:e35d98:00000000000000000000ffff0a4d000c\x00"

func TestDestMatchesStockFormat(t *testing.T) {
	want := Dest{QPN: 0x11, PSN: 0xe35d98, GID: verbs.GIDFromAddr(netip.MustParseAddr("10.77.0.12"))}
	got, err := readDest(strings.NewReader(captured))
	if err != nil || got != want {
		t.Fatalf("read %+v, %v; want %+v", got, err, want)
	}
	if b := want.encode(); !bytes.Equal(b, []byte(captured)) {
		t.Errorf("wrote %q, want %q", b, captured)
	}
}

func TestDecodeDestRejectsInvalidText(t *testing.T) {
	pad := func(s string) string { return s + strings.Repeat("\x00", destLen-len(s)) }
	for _, s := range []string{
		pad("GET / HTTP/1.1\r\n"),
		pad("0000:000011:e35d98"),
		pad("0000:1000011:e35d98:00000000000000000000ffff0a4d00"),
		pad("0000:00001g:e35d98:00000000000000000000ffff0a4d000c"),
		pad("0000:000011:e35d98:0000000000000000zzzz"),
	} {
		if _, err := readDest(strings.NewReader(s)); !errors.Is(err, ErrPeer) {
			t.Errorf("%q: %v", s, err)
		}
	}
	if _, err := readDest(strings.NewReader(captured[:20])); err == nil {
		t.Error("a truncated Dest was accepted")
	}
	if _, err := readDest(strings.NewReader("0000:000011:e35d98:" + strings.Repeat("0", 32) + "\x00")); err == nil || !strings.Contains(err.Error(), "-g") {
		t.Errorf("no GID: %v", err)
	}
}
