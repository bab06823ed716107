package nic

import (
	"slices"
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/packet"
)

// A P_Key is the number of a partition in its low 15 bits, and the membership in its highest bit:
// full or limited (IBTA 10.9.1). Limited members do not receive from each other.
const (
	pkeyPartition = 0x7fff
	pkeyFull      = 0x8000
)

// CheckPKeys returns EINVAL if keys cannot be a device's P_Key table. 0 is an index without a key.
func CheckPKeys(keys []uint16) error {
	if len(keys) == 0 || len(keys) > abi.MaxPKeys {
		return errorf(syscall.EINVAL, "P_Key table of %d entries: must be 1 to %d", len(keys), abi.MaxPKeys)
	}
	some := false
	for i, k := range keys {
		switch {
		case k == 0:
			continue
		case k&pkeyPartition == 0:
			return errorf(syscall.EINVAL, "P_Key %#04x names no partition", k)
		case slices.Contains(keys[:i], k):
			return errorf(syscall.EINVAL, "P_Key %#04x is in the table twice", k)
		}
		some = true
	}
	if !some {
		return errorf(syscall.EINVAL, "P_Key table has no key in it")
	}
	return nil
}

// defaultPKeys is the table of a device that is configured without one.
func defaultPKeys() []uint16 { return []uint16{packet.DefaultPKey} }

// PKey returns the P_Key at an index of the table; false if there is none.
func (d *Device) PKey(index int) (uint16, bool) {
	if index < 0 || index >= len(d.pkeys) {
		return 0, false
	}
	return d.pkeys[index], d.pkeys[index] != 0
}

// PKeys returns the P_Key table; 0 is an index without a key.
func (d *Device) PKeys() []uint16 { return slices.Clone(d.pkeys) }

// PKeyIndex returns the index of a P_Key that accepts packets with key k, for management, which
// belongs to no single partition. An equal key is preferred to one that only matches.
func (d *Device) PKeyIndex(k uint16) (int, bool) {
	if i := slices.Index(d.pkeys, k); i >= 0 && k&pkeyPartition != 0 && k&pkeyFull != 0 {
		return i, true
	}
	for i, own := range d.pkeys {
		if own&pkeyPartition != 0 && (own^k)&pkeyPartition == 0 && (own|k)&pkeyFull != 0 {
			return i, true
		}
	}
	return 0, false
}

// SetPKeys replaces the P_Key table. Queue pairs use the key that is now at their index; without
// one they receive nothing. Clients get EventPKeyChange. EINVAL: see CheckPKeys.
func (d *Device) SetPKeys(keys []uint16) error {
	if err := CheckPKeys(keys); err != nil {
		return err
	}
	if slices.Equal(d.pkeys, keys) {
		return nil
	}
	d.pkeys = slices.Clone(keys)
	for _, c := range d.contexts {
		for _, q := range c.qps {
			k, _ := d.PKey(q.pkeyIndex)
			q.t.SetPKey(k)
		}
	}
	d.broadcast(ib.EventPKeyChange)
	return nil
}
