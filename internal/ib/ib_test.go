package ib

import (
	"fmt"
	"testing"
)

func TestValuesPrintTheirVerbsNames(t *testing.T) {
	for _, c := range []struct {
		value fmt.Stringer
		want  string
	}{
		{QPTypeRC, "RC"}, {QPTypeUC, "UC"}, {QPTypeUD, "UD"}, {QPTypeXRCSend, "XRC_INI"}, {QPTypeXRCRecv, "XRC_TGT"},
		{QPType(1), "QPType(1)"},
		{QPSReset, "RESET"}, {QPSErr, "ERR"}, {QPState(7), "QPState(7)"},
		{WRRDMAWrite, "RDMA_WRITE"}, {WRAtomicWrite, "ATOMIC_WRITE"}, {WROpcode(10), "WROpcode(10)"}, {WROpcode(99), "WROpcode(99)"},
		{WCSuccess, "success"}, {WCGeneralErr, "general error"}, {WCStatus(22), "WCStatus(22)"},
		{WCSend, "SEND"}, {WCRecvRDMAWithImm, "RECV_RDMA_WITH_IMM"}, {WCOpcode(7), "WCOpcode(7)"},
		{EventCQErr, "CQ_ERR"}, {EventGIDChange, "GID_CHANGE"}, {EventType(19), "EventType(19)"},
		{PortNop, "NOP"}, {PortActive, "ACTIVE"}, {PortState(5), "PortState(5)"},
		{MTU256, "256"}, {MTU4096, "4096"}, {MTU(0), "0"},
		{Access(0), "local_read"}, {AccessLocalWrite | AccessRemoteRead, "local_write|remote_read"}, {Access(1 << 31), "other"},
	} {
		if got := c.value.String(); got != c.want {
			t.Errorf("%T is called %q, want %q", c.value, got, c.want)
		}
	}
}

func TestMTUCodes(t *testing.T) {
	for bytes, want := range map[int]MTU{256: MTU256, 512: MTU512, 1024: MTU1024, 2048: MTU2048, 4096: MTU4096} {
		if got, ok := MTUOf(bytes); !ok || got != want || got.Bytes() != bytes {
			t.Errorf("%d bytes: code %d, %v", bytes, uint32(got), ok)
		}
	}
	for _, bytes := range []int{0, 128, 1500, 8192} {
		if _, ok := MTUOf(bytes); ok {
			t.Errorf("%d bytes have a code", bytes)
		}
	}
	if MTU(6).Bytes() != 0 {
		t.Error("code 6 has a length")
	}
}

func TestTimeCodes(t *testing.T) {
	for code, want := range map[uint8]int64{0: 0, 1: 8192, 14: 4096 << 14, 31: 4096 << 31, 32: 0} {
		if got := ACKTimeout(code); got != want {
			t.Errorf("local ACK timeout %d: %d ns, want %d", code, got, want)
		}
	}
	if TimeCode(0) != 4096 || TimeCode(31) != TimeCode(40) {
		t.Error("a time code of 0 is 4096 ns, and codes above 31 count as 31")
	}
}
