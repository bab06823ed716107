package abi

// DeviceAttr is what a device can do: the values of struct ibv_device_attr.
type DeviceAttr struct {
	FWVer              [64]byte // text, ends with a zero byte
	NodeGUID           uint64   // the first byte of the GUID is the most significant
	SysImageGUID       uint64
	MaxMRSize          uint64
	PageSizeCap        uint64
	VendorID           uint32
	VendorPartID       uint32
	HWVer              uint32
	MaxQP              uint32
	MaxQPWR            uint32
	DeviceCapFlags     uint32
	MaxSGE             uint32
	MaxSGERd           uint32
	MaxCQ              uint32
	MaxCQE             uint32
	MaxMR              uint32
	MaxPD              uint32
	MaxQPRdAtom        uint32
	MaxEERdAtom        uint32
	MaxResRdAtom       uint32
	MaxQPInitRdAtom    uint32
	MaxEEInitRdAtom    uint32
	AtomicCap          uint32
	MaxEE              uint32
	MaxRDD             uint32
	MaxMW              uint32
	MaxRawIPv6QP       uint32
	MaxRawEthyQP       uint32
	MaxMcastGrp        uint32
	MaxMcastQPAttach   uint32
	MaxTotalMcastQPAtt uint32
	MaxAH              uint32
	MaxFMR             uint32
	MaxMapPerFMR       uint32
	MaxSRQ             uint32
	MaxSRQWR           uint32
	MaxSRQSGE          uint32
	MaxPKeys           uint32
	LocalCAAckDelay    uint32
	PhysPortCnt        uint32
	MaxInlineData      uint32
}
