package ib

import "fmt"

// Management queue pairs and classes (IBTA 3.9.5, 13.4.4).
const (
	SMIQPN = 0 // the queue pair of subnet management

	ClassSubn       = 0x01 // subnet management, routed by LID
	ClassSubnAdm    = 0x03
	ClassSubnDirect = 0x81 // subnet management, by directed route
)

// A madClass is a management class.
type madClass struct {
	name       string
	attributes map[uint16]string
}

// Classes of vendors and applications.
const (
	firstVendor, lastVendor           = 0x09, 0x0f
	firstApplication, lastApplication = 0x10, 0x2f
	firstVendor2, lastVendor2         = 0x30, 0x4f
)

var subn = madClass{"Subn", map[uint16]string{
	0x10: "NodeDescription", 0x11: "NodeInfo", 0x12: "SwitchInfo", 0x14: "GUIDInfo", 0x15: "PortInfo", 0x16: "P_KeyTable",
	0x17: "SLtoVLMappingTable", 0x18: "VLArbitrationTable", 0x19: "LinearForwardingTable", 0x1a: "RandomForwardingTable",
	0x1b: "MulticastForwardingTable", 0x20: "SMInfo", 0x30: "VendorDiag", 0x31: "LedInfo",
}}

var madClasses = map[uint8]madClass{
	ClassSubn: subn, ClassSubnDirect: subn,
	ClassSubnAdm: {"SubnAdm", map[uint16]string{
		0x11: "NodeRecord", 0x12: "PortInfoRecord", 0x13: "SLtoVLMappingTableRecord", 0x14: "SwitchInfoRecord",
		0x15: "LinearForwardingTableRecord", 0x16: "RandomForwardingTableRecord", 0x17: "MulticastForwardingTableRecord",
		0x18: "SMInfoRecord", 0x20: "LinkRecord", 0x30: "GuidInfoRecord", 0x31: "ServiceRecord", 0x33: "P_KeyTableRecord",
		0x35: "PathRecord", 0x36: "VLArbitrationTableRecord", 0x38: "MCMemberRecord", 0x39: "TraceRecord",
		0x3a: "MultiPathRecord", 0x3b: "ServiceAssociationRecord", 0xf3: "InformInfoRecord",
	}},
	0x04: {"Perf", map[uint16]string{
		0x10: "PortSamplesControl", 0x11: "PortSamplesResult", 0x12: "PortCounters", 0x1d: "PortCountersExtended",
	}},
	0x05:    {"BM", nil},
	0x06:    {"DevMgt", map[uint16]string{0x10: "IOUnitInfo", 0x11: "IOControllerProfile", 0x12: "ServiceEntries"}},
	ClassCM: {"ComMgt", nil},
	0x08:    {"SNMP", nil},
	0x10:    {"DevAdm", nil},
	0x11:    {"BootMgt", nil},
	0x12:    {"BIS", nil},
	0x21:    {"CongestionControl", nil},
}

// General attributes, of all classes (IBTA 13.4.8).
var madAttributes = map[uint16]string{0x01: "ClassPortInfo", 0x02: "Notice", 0x03: "InformInfo"}

var madMethods = map[uint8]string{
	0x01: "Get", 0x02: "Set", 0x03: "Send", 0x05: "Trap", 0x06: "Report", 0x07: "TrapRepress",
	0x12: "GetTable", 0x13: "GetTraceTable", 0x14: "GetMulti", 0x15: "Delete",
	0x81: "GetResp", 0x86: "ReportResp", 0x92: "GetTableResp", 0x94: "GetMultiResp", 0x95: "DeleteResp",
}

// IsSubn reports whether a management class is subnet management, whose MADs go to QP 0.
func IsSubn(class uint8) bool { return class == ClassSubn || class == ClassSubnDirect }

// MADName returns the name of a MAD in the notation of the specification, SubnGet(NodeInfo).
// Numbers that are not assigned stay numbers.
func MADName(class, method uint8, attribute uint16) string {
	c, ok := madClasses[class]
	switch {
	case ok:
	case class >= firstVendor && class <= lastVendor, class >= firstVendor2 && class <= lastVendor2:
		c.name = fmt.Sprintf("Vendor%#02x", class)
	case class >= firstApplication && class <= lastApplication:
		c.name = fmt.Sprintf("Application%#02x", class)
	default:
		c.name = fmt.Sprintf("Class%#02x", class)
	}
	m, ok := madMethods[method]
	if !ok {
		m = fmt.Sprintf("Method%#02x", method)
	}
	a := madAttributes[attribute]
	if name, ok := c.attributes[attribute]; ok {
		a = name
	}
	if a == "" {
		a = fmt.Sprintf("%#04x", attribute)
	}
	return c.name + m + "(" + a + ")"
}
