package ib

import "fmt"

// Constants of management datagrams.
const (
	MADSize = 256        // bytes of each (IBTA 13.4.2)
	GSIQPN  = 1          // source and destination queue pair
	GSIQKey = 0x80010000 // the Q_Key (IBTA 10.2.5)
)

// ClassCM is the management class of MADs of the connection manager (IBTA 13.4.4).
const ClassCM = 0x07

// CMAttribute is the attribute ID of a MAD of the connection manager, which names the message (IBTA
// 12.6).
type CMAttribute uint16

// Messages of the connection manager.
const (
	CMREQ CMAttribute = 0x10 + iota
	CMMRA
	CMREJ
	CMREP
	CMRTU
	CMDREQ
	CMDREP
	CMSIDRREQ
	CMSIDRREP
	CMLAP
	CMAPR
)

var cmAttributeNames = [...]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"}

// CMAttributes returns the attribute IDs of all messages.
func CMAttributes() (l []CMAttribute) {
	for i := range cmAttributeNames {
		l = append(l, CMREQ+CMAttribute(i))
	}
	return l
}

func (a CMAttribute) String() string {
	if i := int(a) - int(CMREQ); i >= 0 && i < len(cmAttributeNames) {
		return cmAttributeNames[i]
	}
	return fmt.Sprintf("attribute %#x", uint16(a))
}
