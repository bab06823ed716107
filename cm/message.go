package cm

// Bytes of private data in each message (IBTA 12.6).
const (
	REQPrivate     = 92
	MRAPrivate     = 222
	REJPrivate     = 148
	REPPrivate     = 196
	RTUPrivate     = 224
	DREQPrivate    = 220
	DREPPrivate    = 224
	SIDRREQPrivate = 216
	SIDRREPPrivate = 136
	LAPPrivate     = 168
	APRPrivate     = 148
)

// ARISize is the length of the additional rejection (or status) information of a message, in bytes.
const ARISize = 72

// A GID is a port address in a message.
type GID = [16]byte

// A PathRecord is a path in a REQ or LAP.
type PathRecord struct {
	LocalLID, RemoteLID uint16
	LocalGID, RemoteGID GID
	FlowLabel           uint32 // 20 bits
	PacketRate          uint8  // 6 bits
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	ACKTimeout          uint8 // local ACK timeout, 5 bits
}

// fields visits a path of a REQ at byte off.
func (p *PathRecord) fields(c *codec, off int) {
	bits(c, off, 0, 16, &p.LocalLID)
	bits(c, off+2, 0, 16, &p.RemoteLID)
	c.bytes(off+4, p.LocalGID[:])
	c.bytes(off+20, p.RemoteGID[:])
	bits(c, off+36, 0, 20, &p.FlowLabel)
	bits(c, off+39, 2, 6, &p.PacketRate)
	bits(c, off+40, 0, 8, &p.TrafficClass)
	bits(c, off+41, 0, 8, &p.HopLimit)
	bits(c, off+42, 0, 4, &p.SL)
	c.flag(off+42, 4, &p.SubnetLocal)
	bits(c, off+43, 0, 5, &p.ACKTimeout)
}

// A Service is the transport service of a connection in a REQ.
type Service uint8

// Transport services. RD is the value 2, which is not supported; XRC is in an extension.
const (
	ServiceRC  Service = 0
	ServiceUC  Service = 1
	ServiceRD  Service = 2
	ServiceExt Service = 3 // see REQ.Extended
)

// REQ requests a connection (12.6.5).
type REQ struct {
	LocalID            uint32 // communication ID of the sender
	VendorID           uint32 // 24 bits: of the enhanced connection establishment
	ServiceID          uint64
	LocalGUID          uint64 // CA GUID
	LocalQKey          uint32
	LocalQPN           uint32 // 24 bits
	ResponderResources uint8
	LocalEECN          uint32 // 24 bits
	InitiatorDepth     uint8
	RemoteEECN         uint32 // 24 bits
	RemoteResponseTime uint8  // code of the receiver's response time, 5 bits
	Service            Service
	FlowControl        bool   // end to end
	StartingPSN        uint32 // 24 bits
	LocalResponseTime  uint8  // code of the sender's response time to a REP, 5 bits
	RetryCount         uint8  // 3 bits
	PKey               uint16
	PathMTU            uint8 // code, 4 bits
	RDCExists          bool
	RNRRetryCount      uint8 // 3 bits
	MaxCMRetries       uint8 // 4 bits
	SRQ                bool
	Extended           uint8 // extended transport type, 3 bits
	Primary, Alternate PathRecord
	Private            [REQPrivate]byte

	Options uint32 // ECE options: the MAD's attribute modifier
}

// Attribute implements Message.
func (*REQ) Attribute() Attribute { return AttrREQ }

func (m *REQ) fields(c *codec) {
	bits(c, 0, 0, 32, &m.LocalID)
	bits(c, 5, 0, 24, &m.VendorID)
	bits(c, 8, 0, 64, &m.ServiceID)
	bits(c, 16, 0, 64, &m.LocalGUID)
	bits(c, 28, 0, 32, &m.LocalQKey)
	bits(c, 32, 0, 24, &m.LocalQPN)
	bits(c, 35, 0, 8, &m.ResponderResources)
	bits(c, 36, 0, 24, &m.LocalEECN)
	bits(c, 39, 0, 8, &m.InitiatorDepth)
	bits(c, 40, 0, 24, &m.RemoteEECN)
	bits(c, 43, 0, 5, &m.RemoteResponseTime)
	bits(c, 43, 5, 2, &m.Service)
	c.flag(43, 7, &m.FlowControl)
	bits(c, 44, 0, 24, &m.StartingPSN)
	bits(c, 47, 0, 5, &m.LocalResponseTime)
	bits(c, 47, 5, 3, &m.RetryCount)
	bits(c, 48, 0, 16, &m.PKey)
	bits(c, 50, 0, 4, &m.PathMTU)
	c.flag(50, 4, &m.RDCExists)
	bits(c, 50, 5, 3, &m.RNRRetryCount)
	bits(c, 51, 0, 4, &m.MaxCMRetries)
	c.flag(51, 4, &m.SRQ)
	bits(c, 51, 5, 3, &m.Extended)
	m.Primary.fields(c, 52)
	m.Alternate.fields(c, 96)
	c.bytes(140, m.Private[:])
}

// The message that an MRA acknowledges or a REJ rejects.
const (
	AboutREQ   = 0
	AboutREP   = 1
	AboutLAP   = 2 // MRA
	AboutOther = 2 // REJ: no message
)

// MRA announces that the reply will take longer (12.6.6).
type MRA struct {
	LocalID, RemoteID uint32
	About             uint8 // AboutREQ …, 2 bits
	ServiceTimeout    uint8 // code, 5 bits
	Private           [MRAPrivate]byte
}

// Attribute implements Message.
func (*MRA) Attribute() Attribute { return AttrMRA }

func (m *MRA) fields(c *codec) {
	bits(c, 0, 0, 32, &m.LocalID)
	bits(c, 4, 0, 32, &m.RemoteID)
	bits(c, 8, 0, 2, &m.About)
	bits(c, 9, 0, 5, &m.ServiceTimeout)
	c.bytes(10, m.Private[:])
}

// REJ rejects a message, or ends a connection that is not established (12.6.7).
type REJ struct {
	LocalID, RemoteID uint32
	About             uint8 // AboutREQ …, 2 bits
	InfoLength        uint8 // bytes of Info, 7 bits
	Reason            Reason
	Info              [ARISize]byte
	Private           [REJPrivate]byte
}

// Attribute implements Message.
func (*REJ) Attribute() Attribute { return AttrREJ }

func (m *REJ) fields(c *codec) {
	bits(c, 0, 0, 32, &m.LocalID)
	bits(c, 4, 0, 32, &m.RemoteID)
	bits(c, 8, 0, 2, &m.About)
	bits(c, 9, 0, 7, &m.InfoLength)
	bits(c, 10, 0, 16, &m.Reason)
	c.bytes(12, m.Info[:])
	c.bytes(84, m.Private[:])
}

// REP accepts a REQ (12.6.8).
type REP struct {
	LocalID, RemoteID  uint32
	LocalQKey          uint32
	LocalQPN           uint32 // 24 bits
	LocalEECN          uint32 // 24 bits
	StartingPSN        uint32 // 24 bits
	VendorHigh         uint8  // enhanced connection establishment: the vendor ID, see Vendor
	VendorMiddle       uint8
	VendorLow          uint8
	ResponderResources uint8
	InitiatorDepth     uint8
	TargetACKDelay     uint8 // code, 5 bits
	FailoverAccepted   uint8 // 2 bits
	FlowControl        bool  // end to end
	RNRRetryCount      uint8 // 3 bits
	SRQ                bool
	LocalGUID          uint64 // CA GUID
	Private            [REPPrivate]byte

	Options uint32 // ECE options: the MAD's attribute modifier
}

// Attribute implements Message.
func (*REP) Attribute() Attribute { return AttrREP }

func (m *REP) fields(c *codec) {
	bits(c, 0, 0, 32, &m.LocalID)
	bits(c, 4, 0, 32, &m.RemoteID)
	bits(c, 8, 0, 32, &m.LocalQKey)
	bits(c, 12, 0, 24, &m.LocalQPN)
	bits(c, 15, 0, 8, &m.VendorHigh)
	bits(c, 16, 0, 24, &m.LocalEECN)
	bits(c, 19, 0, 8, &m.VendorMiddle)
	bits(c, 20, 0, 24, &m.StartingPSN)
	bits(c, 23, 0, 8, &m.VendorLow)
	bits(c, 24, 0, 8, &m.ResponderResources)
	bits(c, 25, 0, 8, &m.InitiatorDepth)
	bits(c, 26, 0, 5, &m.TargetACKDelay)
	bits(c, 26, 5, 2, &m.FailoverAccepted)
	c.flag(26, 7, &m.FlowControl)
	bits(c, 27, 0, 3, &m.RNRRetryCount)
	c.flag(27, 3, &m.SRQ)
	bits(c, 28, 0, 64, &m.LocalGUID)
	c.bytes(36, m.Private[:])
}

// RTU completes a connection: the sender of the REQ is ready to use it (12.6.9).
type RTU struct {
	LocalID, RemoteID uint32
	Private           [RTUPrivate]byte
}

// Attribute implements Message.
func (*RTU) Attribute() Attribute { return AttrRTU }

func (m *RTU) fields(c *codec) {
	bits(c, 0, 0, 32, &m.LocalID)
	bits(c, 4, 0, 32, &m.RemoteID)
	c.bytes(8, m.Private[:])
}

// DREQ ends a connection (12.6.10).
type DREQ struct {
	LocalID, RemoteID uint32
	RemoteQPN         uint32 // the receiver's, 24 bits
	Private           [DREQPrivate]byte
}

// Attribute implements Message.
func (*DREQ) Attribute() Attribute { return AttrDREQ }

func (m *DREQ) fields(c *codec) {
	bits(c, 0, 0, 32, &m.LocalID)
	bits(c, 4, 0, 32, &m.RemoteID)
	bits(c, 8, 0, 24, &m.RemoteQPN)
	c.bytes(12, m.Private[:])
}

// DREP replies to a DREQ (12.6.11).
type DREP struct {
	LocalID, RemoteID uint32
	Private           [DREPPrivate]byte
}

// Attribute implements Message.
func (*DREP) Attribute() Attribute { return AttrDREP }

func (m *DREP) fields(c *codec) {
	bits(c, 0, 0, 32, &m.LocalID)
	bits(c, 4, 0, 32, &m.RemoteID)
	c.bytes(8, m.Private[:])
}

// newMessage returns an empty message, or nil.
func newMessage(a Attribute) Message {
	switch a {
	case AttrREQ:
		return &REQ{}
	case AttrMRA:
		return &MRA{}
	case AttrREJ:
		return &REJ{}
	case AttrREP:
		return &REP{}
	case AttrRTU:
		return &RTU{}
	case AttrDREQ:
		return &DREQ{}
	case AttrDREP:
		return &DREP{}
	case AttrSIDRREQ:
		return &SIDRREQ{}
	case AttrSIDRREP:
		return &SIDRREP{}
	case AttrLAP:
		return &LAP{}
	case AttrAPR:
		return &APR{}
	}
	return nil
}

// Vendor returns the vendor ID of enhanced connection establishment in a REP.
func (m *REP) Vendor() uint32 {
	return uint32(m.VendorHigh)<<16 | uint32(m.VendorMiddle)<<8 | uint32(m.VendorLow)
}

// SetVendor sets the vendor ID of enhanced connection establishment.
func (m *REP) SetVendor(v uint32) {
	m.VendorHigh, m.VendorMiddle, m.VendorLow = uint8(v>>16), uint8(v>>8), uint8(v)
}
