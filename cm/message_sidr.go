package cm

// SIDRREQ requests the queue pair of a datagram service (12.11.1).
type SIDRREQ struct {
	RequestID uint32
	PKey      uint16
	ServiceID uint64
	Private   [SIDRREQPrivate]byte
}

// Attribute implements Message.
func (*SIDRREQ) Attribute() Attribute { return AttrSIDRREQ }

func (m *SIDRREQ) fields(c *codec) {
	bits(c, 0, 0, 32, &m.RequestID)
	bits(c, 4, 0, 16, &m.PKey)
	bits(c, 8, 0, 64, &m.ServiceID)
	c.bytes(16, m.Private[:])
}

// A SIDRStatus is the status of a SIDRREP.
type SIDRStatus uint8

// Statuses.
const (
	SIDRSuccess     SIDRStatus = 0
	SIDRUnsupported SIDRStatus = 1 // no such service
	SIDRReject      SIDRStatus = 2 // rejected by the service
	SIDRNoQP        SIDRStatus = 3
	SIDRRedirect    SIDRStatus = 4
	SIDRVersion     SIDRStatus = 5
)

// SIDRREP replies to a SIDRREQ (12.11.2).
type SIDRREP struct {
	RequestID  uint32
	Status     SIDRStatus
	InfoLength uint8
	VendorHigh uint16 // enhanced connection establishment: the upper bytes of the vendor ID
	QPN        uint32 // 24 bits
	VendorLow  uint8
	ServiceID  uint64
	QKey       uint32
	Info       [ARISize]byte
	Private    [SIDRREPPrivate]byte
}

// Attribute implements Message.
func (*SIDRREP) Attribute() Attribute { return AttrSIDRREP }

func (m *SIDRREP) fields(c *codec) {
	bits(c, 0, 0, 32, &m.RequestID)
	bits(c, 4, 0, 8, &m.Status)
	bits(c, 5, 0, 8, &m.InfoLength)
	bits(c, 6, 0, 16, &m.VendorHigh)
	bits(c, 8, 0, 24, &m.QPN)
	bits(c, 11, 0, 8, &m.VendorLow)
	bits(c, 12, 0, 64, &m.ServiceID)
	bits(c, 20, 0, 32, &m.QKey)
	c.bytes(24, m.Info[:])
	c.bytes(96, m.Private[:])
}
