package capture

import (
	"encoding/binary"
	"fmt"
	"strings"

	"softroce/cm"
	"softroce/internal/ib"
)

// smpFields returns the fields of a subnet management MAD behind the common header, without its
// data (IBTA 14.2.1). Those of a directed route name the ports by which it leaves the nodes on its
// way; there the highest bit of the status is the direction, which smpFields clears in d.
func smpFields(d *MAD, b []byte) []cm.Field {
	be := binary.BigEndian
	fields := []cm.Field{{Name: "m_key", Value: cm.Hex64(be.Uint64(b[24:]))}}
	if d.Class != ib.ClassSubnDirect {
		return fields
	}
	const directionBit = 0x8000
	direction := "outbound"
	if d.Status&directionBit != 0 {
		direction = "return"
	}
	d.Status &^= directionBit
	hops := b[7]
	return append(fields,
		cm.Field{Name: "direction", Value: direction},
		cm.Field{Name: "hop_pointer", Value: b[6]},
		cm.Field{Name: "hop_count", Value: hops},
		cm.Field{Name: "dr_slid", Value: be.Uint16(b[32:])},
		cm.Field{Name: "dr_dlid", Value: be.Uint16(b[34:])},
		cm.Field{Name: "initial_path", Value: smpPath(b[128:192], hops)},
	)
}

// smpPath returns the ports of a directed route, separated by commas. The first byte of a path is
// not used.
func smpPath(path []byte, hops uint8) string {
	var ports []string
	for i := 1; i <= int(hops) && i < len(path); i++ {
		ports = append(ports, fmt.Sprint(path[i]))
	}
	return strings.Join(ports, ",")
}
