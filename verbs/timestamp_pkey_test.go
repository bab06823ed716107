package verbs_test

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

func TestCompletionTimestamps(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.ConnectedRC(t, a, b)
	d, err := a.QueryDevice(t.Context())
	if err != nil || d.HCACoreClock != 1_000_000 || d.TimestampMask != 1<<64-1 {
		t.Fatalf("core clock %d kHz, mask %#x, %v", d.HCACoreClock, d.TimestampMask, err)
	}
	before, wallBefore, err := a.QueryClock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	y.Recv(1, 0, 8)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
	sent, got := x.Completion(), y.Completion()
	after, wallAfter, err := a.QueryClock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, wc := range []verbs.WC{sent, got} {
		if wc.Timestamp < before || wc.Timestamp > after || wc.WallclockNS < wallBefore || wc.WallclockNS > wallAfter {
			t.Errorf("completed at %d and %d, between %d and %d, %d and %d", wc.Timestamp, wc.WallclockNS, before, after, wallBefore, wallAfter)
		}
	}
	if got.Timestamp > sent.Timestamp {
		t.Error("the send completed before the receive")
	}
	if off := time.Since(time.Unix(0, int64(wallAfter))); off < -time.Minute || off > time.Minute {
		t.Errorf("the NIC's time of day is off by %v", off)
	}
}

func TestPKeyIndexSelectsThePartition(t *testing.T) {
	f := verbstest.New(t, verbstest.WithPKeys(0, 0xffff, 0x8001, 0x0002), verbstest.WithPKeys(1, 0xffff, 0x0002, 0x8001))
	a, b := f.Open(0), f.Open(1)
	keys, err := a.PKeys(t.Context())
	if err != nil || !slices.Equal(keys, []uint16{0xffff, 0x8001, 0x0002}) {
		t.Fatalf("P_Keys %#x, %v", keys, err)
	}
	if p, err := a.QueryPort(t.Context()); err != nil || p.PKeyTblLen != 3 {
		t.Fatalf("pkey_tbl_len %d, %v", p.PKeyTblLen, err)
	}
	at := func(index uint16) verbstest.EndpointConfig {
		return verbstest.EndpointConfig{Options: func(o *verbs.ConnectOptions) { o.PKeyIndex, o.Timeout, o.RetryCnt = index, 8, 1 }}
	}
	x, y := at(1).New(t, a), at(2).New(t, b)
	o := verbs.DefaultConnectOptions()
	for _, e := range []struct {
		me, peer *verbstest.Endpoint
		index    uint16
	}{{x, y, 1}, {y, x, 2}} {
		o.PKeyIndex = e.index
		if err := e.me.Connect(context.Background(), e.peer.Info, o); err != nil {
			t.Fatal(err)
		}
	}
	y.Recv(1, 0, 8)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
	if wc := x.Completion(); wc.PKeyIndex != 1 {
		t.Errorf("P_Key index %d", wc.PKeyIndex)
	}
	if wc := y.Completion(); wc.PKeyIndex != 2 {
		t.Errorf("P_Key index %d", wc.PKeyIndex)
	}
	if got, err := y.Query(t.Context()); err != nil || got.PKeyIndex != 2 {
		t.Errorf("P_Key index %d, %v", got.PKeyIndex, err)
	}
	// At index 2 the NICs have different partitions.
	x, _ = at(2).Connect(t, a, b)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
	x.Failure(verbs.WCRetryExcErr)
	if p, err := b.QueryPort(t.Context()); err != nil || p.BadPKeyCntr == 0 {
		t.Errorf("bad_pkey_cntr %d, %v", p.BadPKeyCntr, err)
	}
	q := at(3).New(t, a)
	err = q.Modify(t.Context(), &verbs.QPAttr{QPState: verbs.QPSInit, PortNum: 1, PKeyIndex: 3},
		verbs.QPMaskState|verbs.QPMaskPKeyIndex|verbs.QPMaskPort|verbs.QPMaskAccessFlags)
	if !errors.Is(err, syscall.EINVAL) {
		t.Errorf("INIT with an index without a P_Key: %v", err)
	}
}
