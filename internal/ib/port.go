package ib

import "fmt"

// MTU is the code of a path MTU: enum ibv_mtu.
type MTU uint32

// Path MTUs.
const (
	MTU256 MTU = iota + 1
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes returns the MTU in bytes, 0 if m is not valid.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

func (m MTU) String() string { return fmt.Sprint(m.Bytes()) }

// MTUOf returns the code of a path MTU in bytes, false unless it is one of the five.
func MTUOf(bytes int) (MTU, bool) {
	for m := MTU256; m <= MTU4096; m++ {
		if m.Bytes() == bytes {
			return m, true
		}
	}
	return 0, false
}

// PortState is the logical state of a port: enum ibv_port_state.
type PortState uint32

// Port states.
const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
)

var portStateNames = [...]string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE"}

func (s PortState) String() string {
	if int(s) < len(portStateNames) {
		return portStateNames[s]
	}
	return fmt.Sprintf("PortState(%d)", uint32(s))
}

// Physical port states that a device reports (phys_state of struct ibv_port_attr).
const (
	PhysDisabled = 3
	PhysLinkUp   = 5
)

// Port attributes of struct ibv_port_attr.
const (
	LinkLayerEthernet  = 2       // IBV_LINK_LAYER_ETHERNET
	PortCapIPBasedGIDs = 1 << 26 // port_cap_flags: IBV_PORT_IP_BASED_GIDS
)

// Atomic capabilities: enum ibv_atomic_cap.
const (
	AtomicNone = 0
	AtomicHCA  = 1 // atomics are atomic among the queue pairs of one device
)

// Types of GIDs: enum ibv_gid_type.
const (
	GIDTypeRoCEv1 = 1
	GIDTypeRoCEv2 = 2
)
