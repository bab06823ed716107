package nic_test

import (
	"encoding/binary"
	"errors"
	"syscall"
	"testing"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/wire"
)

// One user with any number of programs leaves objects of the device to others.
func TestUserLeavesSomethingForOthers(t *testing.T) {
	limits := nic.Limits{MaxPD: 32, MaxMR: 32, MaxMW: 32, MaxXRCD: 32, MaxDM: 32 << 10, MaxMcastGroups: 32}
	client := nic.ContextLimits{PDs: 8, MRs: 8, MWs: 8, XRCDs: 8, DeviceMemory: 8 << 10, Groups: 8}
	pdOf := func(c *nic.Context, l map[*nic.Context]*nic.PD) *nic.PD {
		if l[c] == nil {
			p, err := c.AllocPD()
			check(t, err)
			l[c] = p
		}
		return l[c]
	}
	pds, queues := map[*nic.Context]*nic.PD{}, map[*nic.Context]*nic.QP{}
	number := uint32(0)
	for _, k := range []struct {
		name string
		make func(c *nic.Context) error
	}{
		{"PD", func(c *nic.Context) error { _, err := c.AllocPD(); return err }},
		{"MR", func(c *nic.Context) error {
			_, err := c.RegMR(pdOf(c, pds), mrtable.HeapMemory(make([]byte, 8)), 0, 8, ib.AccessLocalWrite)
			return err
		}},
		{"MW", func(c *nic.Context) error { _, err := c.AllocMW(pdOf(c, pds), ib.MWType2); return err }},
		{"XRCD", func(c *nic.Context) error { _, err := c.OpenXRCD(nic.XRCDKey{}, true, false); return err }},
		{"device memory", func(c *nic.Context) error { _, err := c.AllocDM(1<<10, 0); return err }},
		{"multicast group", func(c *nic.Context) error {
			q := queues[c]
			if q == nil {
				cq, err := c.CreateCQ(nic.CQConfig{Entries: 1, Ring: nic.NewPage(abi.RingSize(1, abi.CQESize))})
				check(t, err)
				caps := nic.Caps{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
				q, err = c.CreateQP(nic.QPInit{Type: ib.QPTypeUD, PD: pdOf(c, pds), SendCQ: cq, RecvCQ: cq, Caps: caps,
					SQ: nic.NewPage(caps.SendRingSize()), RQ: nic.NewPage(caps.RecvRingSize())})
				check(t, err)
				queues[c] = q
			}
			gid := nic.GID{0xff, 0x0e}
			number++
			binary.BigEndian.PutUint32(gid[12:], number)
			return c.AttachMcast(q, gid)
		}},
	} {
		t.Run(k.name, func(t *testing.T) {
			l := limits
			if k.name != "PD" {
				l.MaxPD = 0
			}
			w := newTestFabric(t)
			d, err := w.engine.AddDevice(nic.DeviceConfig{Name: "x", Link: w.fabric.NewLink(w.engine),
				Iface: wire.StaticInterface("eth0", [6]byte{2, 0, 0, 0, 0, 1}, 1500), Limits: l})
			check(t, err)
			// most makes what a user can have, in one program after the other.
			most := func(uid uint32) (n int, contexts []*nic.Context) {
				for {
					c, err := d.Open(nic.ContextOptions{Doorbell: nic.NewPage(abi.DoorbellSize), DoorbellFD: -1, UID: uid, Limits: client})
					check(t, err)
					contexts = append(contexts, c)
					before := n
					for err = k.make(c); err == nil; err = k.make(c) {
						n++
					}
					if !errors.Is(err, syscall.ENOMEM) {
						t.Fatal(err)
					}
					if n == before {
						return n, contexts
					}
				}
			}
			first, contexts := most(1)
			second, more := most(2)
			third, rest := most(3)
			if first < 14 || second < 6 || third < 3 || first+second+third >= 32 {
				t.Errorf("of 32 the first user got %d, the second %d, the third %d; want about half of the rest each", first, second, third)
			}
			for _, c := range append(append(contexts, more...), rest...) {
				c.Close()
			}
			if again, _ := most(4); again != first {
				t.Errorf("after all had closed, a user got %d, want %d", again, first)
			}
		})
	}
}
