package cm

// LAP offers an alternate path (12.8.1). Path migration is not supported, so each is rejected.
type LAP struct {
	LocalID, RemoteID uint32
	RemoteQPN         uint32   // 24 bits
	ResponseTime      uint8    // code, 5 bits
	Path              [48]byte // the alternate path, not decoded
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

// APR replies to a LAP (12.8.2).
type APR struct {
	LocalID, RemoteID uint32
	InfoLength        uint8
	Status            uint8 // 0, or the reason of a rejection
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
