package verbs_test

import (
	"errors"
	"syscall"
	"testing"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

const windowRegionSize = 8192

// newWindowRegion registers a part of y's memory for windows.
func newWindowRegion(t *testing.T, y *verbstest.Endpoint) (*verbs.MR, []byte) {
	t.Helper()
	mem := y.Buf[len(y.Buf)/2:][:windowRegionSize]
	m, err := y.PD.RegMR(t.Context(), mem, verbs.AccessLocalWrite|verbs.AccessMWBind)
	if err != nil {
		t.Fatal(err)
	}
	return m, mem
}

func window(t *testing.T, y *verbstest.Endpoint, k verbs.MWType) *verbs.MW {
	t.Helper()
	m, err := y.PD.AllocMW(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestBindMWType1(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.ConnectedRC(t, a, b)
	m, mem := newWindowRegion(t, y)
	w := window(t, y, verbs.MWType1)
	var keys []uint32
	for i := range 3 { // bound to another part each time
		at := m.Addr() + uint64(1000*i)
		err := y.BindMW(w, verbs.MWBind{WRID: 5, SendFlags: verbs.SendSignaled,
			MWBindInfo: verbs.MWBindInfo{MR: m, Addr: at, Length: 1000, Access: verbs.AccessRemoteWrite}})
		if err != nil {
			t.Fatal(err)
		}
		if wc := y.Completion(); wc.Opcode != verbs.WCBindMW || wc.WRID != 5 {
			t.Fatalf("completion %+v", wc)
		}
		keys = append(keys, w.RKey())
		fill(x.Buf[:1000], uint64(i))
		x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 1000), RemoteAddr: at, RKey: w.RKey()})
		x.Completion()
		same(t, "WRITE", mem[1000*i:][:1000], x.Buf[:1000])
	}
	if keys[1] != verbs.IncRKey(keys[0]) || m.Close(t.Context()) == nil {
		t.Errorf("keys %x, or the region is not busy", keys)
	}
	x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 8), RemoteAddr: m.Addr(), RKey: keys[0]})
	x.Failure(verbs.WCRemAccessErr)
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// This is the pattern of a storage server: it binds a window and sends the R_Key, and the peer
// invalidates it with its last message. The WRITEs before that message are complete.
func TestBindMWType2(t *testing.T) {
	for name, process := range map[string]bool{"mapped": false, "process": true} {
		t.Run(name, func(t *testing.T) {
			a, b := verbstest.Pair(t)
			x, y := verbstest.EndpointConfig{Process: process}.Connect(t, a, b)
			m, mem := newWindowRegion(t, y)
			w := window(t, y, verbs.MWType2)
			rkey := w.RKey()
			for i := range 5 {
				rkey = verbs.IncRKey(rkey)
				y.Send(verbs.SendWR{Opcode: verbs.WRBindMW, BindMW: &verbs.BindMW{MW: w, RKey: rkey,
					MWBindInfo: verbs.MWBindInfo{MR: m, Addr: m.Addr() + 100, Length: 8000, Access: verbs.AccessRemoteWrite | verbs.AccessZeroBased}}})
				if wc := y.Completion(); wc.Opcode != verbs.WCBindMW {
					t.Fatalf("completion %+v", wc)
				}
				if w.RKey() != rkey {
					t.Fatalf("R_Key %#x after the bind to %#x", w.RKey(), rkey)
				}
				y.Recv(uint64(i), 0, 0)
				fill(x.Buf[:8000], uint64(i))
				if err := x.PostSend(
					verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 5000), RKey: rkey},
					verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(5000, 3000), RemoteAddr: 5000, RKey: rkey},
					verbs.SendWR{Opcode: verbs.WRSendWithInv, SendFlags: verbs.SendSignaled, InvalidateRKey: rkey},
				); err != nil {
					t.Fatal(err)
				}
				x.Completion()
				if wc := y.Completion(); wc.WCFlags != verbs.WCWithInv || wc.InvalidatedRKey != rkey {
					t.Fatalf("completion %+v", wc)
				}
				same(t, "WRITEs", mem[100:8100], x.Buf[:8000])
			}
			// The owner invalidates the window.
			rkey = verbs.IncRKey(rkey)
			y.Send(verbs.SendWR{Opcode: verbs.WRBindMW, BindMW: &verbs.BindMW{MW: w, RKey: rkey,
				MWBindInfo: verbs.MWBindInfo{MR: m, Addr: m.Addr(), Length: 8000, Access: verbs.AccessRemoteWrite}}})
			y.Completion()
			y.Send(verbs.SendWR{Opcode: verbs.WRLocalInv, InvalidateRKey: rkey})
			if wc := y.Completion(); wc.Opcode != verbs.WCLocalInv {
				t.Fatalf("completion %+v", wc)
			}
			x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 8), RemoteAddr: m.Addr(), RKey: rkey})
			x.Failure(verbs.WCRemAccessErr)
			if err := m.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFailedBindCompletesWithError(t *testing.T) {
	a, b := verbstest.Pair(t)
	_, y := verbstest.ConnectedRC(t, a, b)
	w := window(t, y, verbs.MWType1)
	err := y.BindMW(w, verbs.MWBind{SendFlags: verbs.SendSignaled,
		MWBindInfo: verbs.MWBindInfo{MR: y.MR, Addr: y.MR.Addr(), Length: 8, Access: verbs.AccessRemoteRead}})
	if err != nil {
		t.Fatal(err)
	}
	y.Failure(verbs.WCMWBindErr) // the region has no AccessMWBind
	if err := y.PostSend(verbs.SendWR{Opcode: verbs.WRBindMW}); !errors.Is(err, verbs.ErrWorkRequest) {
		t.Errorf("binding no window: %v", err)
	}
	if err := y.BindMW(window(t, y, verbs.MWType2), verbs.MWBind{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("BindMW of a type 2 window: %v", err)
	}
	if _, err := y.PD.AllocMW(t.Context(), 3); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("allocating a window of type 3: %v", err)
	}
}

func TestFlushAndAtomicWrite(t *testing.T) {
	for name, process := range map[string]bool{"mapped": false, "process": true} {
		t.Run(name, func(t *testing.T) {
			a, b := verbstest.Pair(t)
			const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessFlushGlobal
			x, y := verbstest.EndpointConfig{Process: process, Options: func(o *verbs.ConnectOptions) { o.Access = access }}.Connect(t, a, b)
			mem := y.Buf[:4096]
			m, err := y.PD.RegMR(t.Context(), mem, access)
			if err != nil {
				t.Fatal(err)
			}
			fill(x.Buf[:4000], 1)
			if err := x.PostSend(
				verbs.SendWR{WRID: 1, Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 4000), RemoteAddr: m.Addr(), RKey: m.RKey()},
				verbs.SendWR{WRID: 2, Opcode: verbs.WRFlush, SendFlags: verbs.SendSignaled, RemoteAddr: m.Addr(), RKey: m.RKey(),
					FlushLength: 4000, FlushPlacement: verbs.FlushGlobal},
				verbs.SendWR{WRID: 3, Opcode: verbs.WRAtomicWrite, SendFlags: verbs.SendSignaled | verbs.SendInline,
					Inline: []byte("together"), RemoteAddr: m.Addr() + 4008, RKey: m.RKey()},
			); err != nil {
				t.Fatal(err)
			}
			if wc := x.Completion(); wc.WRID != 2 || wc.Opcode != verbs.WCFlush {
				t.Fatalf("completion %+v", wc)
			}
			same(t, "flushed", mem[:4000], x.Buf[:4000])
			if wc := x.Completion(); wc.WRID != 3 || wc.Opcode != verbs.WCAtomicWrite {
				t.Fatalf("completion %+v", wc)
			}
			if string(mem[4008:4016]) != "together" {
				t.Errorf("memory holds %q", mem[4008:4016])
			}
			x.Send(verbs.SendWR{Opcode: verbs.WRFlush, RKey: m.RKey(), FlushPlacement: verbs.FlushPersistent, FlushSelectivity: verbs.FlushRegion})
			x.Failure(verbs.WCRemInvReqErr)
		})
	}
}

func TestQueryDeviceReportsExtendedOperations(t *testing.T) {
	a, _ := verbstest.Pair(t)
	d, err := a.QueryDevice(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const window, xrc, extensions, type2B = 1 << 17, 1 << 20, 1 << 21, 1 << 24
	const flushGlobal, flushPersistent, atomicWrite = 1 << 38, 1 << 39, 1 << 40
	if want := uint32(window | xrc | extensions | type2B); d.DeviceCapFlags&want != want || d.DeviceCapFlags&(1<<23) != 0 || d.MaxMW == 0 {
		t.Errorf("device_cap_flags %#x, max_mw %d", d.DeviceCapFlags, d.MaxMW)
	}
	if d.DeviceCapFlagsEx != uint64(d.DeviceCapFlags)|flushGlobal|atomicWrite || d.DeviceCapFlagsEx&flushPersistent != 0 {
		t.Errorf("device_cap_flags_ex %#x", d.DeviceCapFlagsEx)
	}
	pd, err := a.AllocPD(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pd.RegMR(t.Context(), make([]byte, 8), verbs.AccessLocalWrite|1<<9); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("registering a region for flush to persistence: %v", err)
	}
}
