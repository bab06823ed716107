package cm

import "testing"

// The types of service that the kernel's sockets have priorities for, and what a VLAN interface
// makes of them (ip link … type vlan egress-qos-map 0:1 2:2 4:3 6:4).
func TestServiceLevelOfTypeOfService(t *testing.T) {
	a := Address{VLAN: 7, Egress: [8]uint8{0: 1, 2: 2, 4: 3, 6: 4}}
	for tos, want := range map[uint8]uint8{
		0: 1, 2: 1, 4: 1, // normal, ECN, reliability
		0x08: 2, 0x0a: 2, // throughput
		0x10: 4, 0x12: 4, // low delay
		0x18: 3, 0x1e: 3,
		0x20: 1, 0x68: 2, 0xb8: 3, 0xe0: 1, // the precedence, or the upper bits of a DSCP, do not count
	} {
		if got := a.serviceLevel(tos); got != want {
			t.Errorf("type of service %#02x: service level %d, want %d", tos, got, want)
		}
	}
	if got := (&Address{}).serviceLevel(0xb8); got != 0 {
		t.Errorf("without a VLAN: service level %d", got)
	}
}
