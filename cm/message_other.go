package cm

// SIDRREQ asks for the queue pair of a datagram service (12.11.1).
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

// A SIDRStatus is the outcome of a SIDRREQ.
type SIDRStatus uint8

// Outcomes.
const (
	SIDRSuccess     SIDRStatus = 0
	SIDRUnsupported SIDRStatus = 1 // no such service
	SIDRReject      SIDRStatus = 2 // by the service
	SIDRNoQP        SIDRStatus = 3
	SIDRRedirect    SIDRStatus = 4
	SIDRVersion     SIDRStatus = 5
)

// SIDRREP answers a SIDRREQ (12.11.2).
type SIDRREP struct {
	RequestID  uint32
	Status     SIDRStatus
	InfoLength uint8
	VendorHigh uint16 // of the enhanced connection establishment: upper bytes of a vendor ID
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

// LAP offers an alternate path (12.8.1). Path migration is not supported: each is refused.
type LAP struct {
	LocalID, RemoteID uint32
	RemoteQPN         uint32   // 24 bits
	ResponseTime      uint8    // code, 5 bits
	Path              [48]byte // the alternate path, as it came
	Private           [LAPPrivate]byte
}

// Attribute implements Message.
func (*LAP) Attribute() Attribute { return AttrLAP }

func (m *LAP) fields(c *codec) {
	bits(c, 0, 0, 32, &m.LocalID)
	bits(c, 4, 0, 32, &m.RemoteID)
	bits(c, 12, 0, 24, &m.RemoteQPN)
	bits(c, 15, 0, 5, &m.ResponseTime)
	c.bytes(16, m.Path[:])
	c.bytes(64, m.Private[:])
}

// APRUnsupported is the AP status of a side that does not migrate paths (12.8.2).
const APRUnsupported = 1

// APR answers a LAP (12.8.2).
type APR struct {
	LocalID, RemoteID uint32
	InfoLength        uint8
	Status            uint8 // 0, or why not
	Info              [ARISize]byte
	Private           [APRPrivate]byte
}

// Attribute implements Message.
func (*APR) Attribute() Attribute { return AttrAPR }

func (m *APR) fields(c *codec) {
	bits(c, 0, 0, 32, &m.LocalID)
	bits(c, 4, 0, 32, &m.RemoteID)
	bits(c, 8, 0, 8, &m.InfoLength)
	bits(c, 9, 0, 8, &m.Status)
	c.bytes(12, m.Info[:])
	c.bytes(84, m.Private[:])
}
