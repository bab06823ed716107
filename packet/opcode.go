package packet

import "fmt"

// An Opcode is the first byte of the BTH: service in the upper three bits, operation in the lower
// five.
type Opcode uint8

// A Service is the transport service of an opcode: the upper three bits, in place.
type Service uint8

// Transport services (IBTA vol. 1, 9.2.1; XRC annex A14; CNP annex A17).
const (
	RC  Service = 0x00
	UC  Service = 0x20
	RD  Service = 0x40
	UD  Service = 0x60
	CNP Service = 0x80
	XRC Service = 0xa0
)

func (s Service) String() string {
	switch s {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case RD:
		return "RD"
	case UD:
		return "UD"
	case CNP:
		return "CNP"
	case XRC:
		return "XRC"
	}
	return fmt.Sprintf("Service(%#x)", uint8(s))
}

// Operations: the lower five bits of an opcode.
const (
	SendFirst         = 0x00
	SendMiddle        = 0x01
	SendLast          = 0x02
	SendLastImm       = 0x03
	SendOnly          = 0x04
	SendOnlyImm       = 0x05
	WriteFirst        = 0x06
	WriteMiddle       = 0x07
	WriteLast         = 0x08
	WriteLastImm      = 0x09
	WriteOnly         = 0x0a
	WriteOnlyImm      = 0x0b
	ReadRequest       = 0x0c
	ReadResponseFirst = 0x0d
	ReadResponseMid   = 0x0e
	ReadResponseLast  = 0x0f
	ReadResponseOnly  = 0x10
	Acknowledge       = 0x11
	AtomicAcknowledge = 0x12
	CompareSwap       = 0x13
	FetchAdd          = 0x14
	SendLastInv       = 0x16
	SendOnlyInv       = 0x17
	Flush             = 0x1c
	AtomicWrite       = 0x1d
)

// OpcodeCNP is the congestion notification packet of RoCEv2 (annex A17).
const OpcodeCNP Opcode = 0x81

// A Kind is the operation of an opcode, regardless of the position in a message.
type Kind uint8

const (
	KindNone Kind = iota
	KindSend
	KindWrite
	KindRead
	KindReadResponse
	KindAck
	KindAtomicAck
	KindCompareSwap
	KindFetchAdd
	KindFlush
	KindAtomicWrite
	KindCNP
)

// Response returns the kind of packet that answers a request of kind k on a reliable service:
// KindAck for SEND and WRITE, otherwise a response of the request's own. A READ response without
// payload answers FLUSH and ATOMIC WRITE (annex A19). It returns KindNone if k is not a request.
func (k Kind) Response() Kind {
	switch k {
	case KindSend, KindWrite:
		return KindAck
	case KindRead, KindFlush, KindAtomicWrite:
		return KindReadResponse
	case KindCompareSwap, KindFetchAdd:
		return KindAtomicAck
	}
	return KindNone
}

// HasOwnResponse reports whether a response other than ACKNOWLEDGE answers requests of kind k. Such
// a request is not completed by a later ACKNOWLEDGE, and uses a responder resource.
func (k Kind) HasOwnResponse() bool {
	r := k.Response()
	return r != KindNone && r != KindAck
}

// IsAtomic reports whether k is COMPARE_SWAP or FETCH_ADD.
func (k Kind) IsAtomic() bool { return k.Response() == KindAtomicAck }

// A Position is the position of a packet in its message.
type Position uint8

const (
	Only   Position = iota // the only packet
	First                  // first of several
	Middle                 // neither first nor last
	Last                   // last of several
)

// StartsMessage reports whether the packet starts a message.
func (p Position) StartsMessage() bool { return p == Only || p == First }

// EndsMessage reports whether the packet ends a message.
func (p Position) EndsMessage() bool { return p == Only || p == Last }

// Headers is the set of extended headers that follow the BTH.
type Headers uint16

const (
	HasRETH Headers = 1 << iota
	HasAETH
	HasAtomicETH
	HasAtomicAckETH
	HasImmDt
	HasIETH
	HasDETH
	HasFETH
	HasXRCETH
	HasRDETH
)

// Info is a row of the opcode table.
type Info struct {
	Name         string
	Valid        bool
	Service      Service
	Kind         Kind
	Position     Position
	Headers      Headers
	HeaderLen    int  // BTH and extended headers, in bytes
	Payload      bool // the packet may have a payload
	Request      bool // sent by the requester
	Response     Kind // what answers the request; KindNone for UC, UD and responses
	ConsumesRecv bool // the message consumes a receive work request, a WRITE with its last packet
}

type operation struct {
	name     string
	kind     Kind
	pos      Position
	headers  Headers
	services []Service
}

var (
	connected = []Service{RC, UC, XRC}
	reliable  = []Service{RC, XRC}
	onlyRC    = []Service{RC}
)

// operations are the operations that the services share. buildTable adds UD and CNP.
var operations = map[int]operation{
	SendFirst:         {"SEND_FIRST", KindSend, First, 0, connected},
	SendMiddle:        {"SEND_MIDDLE", KindSend, Middle, 0, connected},
	SendLast:          {"SEND_LAST", KindSend, Last, 0, connected},
	SendLastImm:       {"SEND_LAST_IMM", KindSend, Last, HasImmDt, connected},
	SendOnly:          {"SEND_ONLY", KindSend, Only, 0, connected},
	SendOnlyImm:       {"SEND_ONLY_IMM", KindSend, Only, HasImmDt, connected},
	WriteFirst:        {"WRITE_FIRST", KindWrite, First, HasRETH, connected},
	WriteMiddle:       {"WRITE_MIDDLE", KindWrite, Middle, 0, connected},
	WriteLast:         {"WRITE_LAST", KindWrite, Last, 0, connected},
	WriteLastImm:      {"WRITE_LAST_IMM", KindWrite, Last, HasImmDt, connected},
	WriteOnly:         {"WRITE_ONLY", KindWrite, Only, HasRETH, connected},
	WriteOnlyImm:      {"WRITE_ONLY_IMM", KindWrite, Only, HasRETH | HasImmDt, connected},
	ReadRequest:       {"READ_REQUEST", KindRead, Only, HasRETH, reliable},
	ReadResponseFirst: {"READ_RESPONSE_FIRST", KindReadResponse, First, HasAETH, reliable},
	ReadResponseMid:   {"READ_RESPONSE_MIDDLE", KindReadResponse, Middle, 0, reliable},
	ReadResponseLast:  {"READ_RESPONSE_LAST", KindReadResponse, Last, HasAETH, reliable},
	ReadResponseOnly:  {"READ_RESPONSE_ONLY", KindReadResponse, Only, HasAETH, reliable},
	Acknowledge:       {"ACKNOWLEDGE", KindAck, Only, HasAETH, reliable},
	AtomicAcknowledge: {"ATOMIC_ACKNOWLEDGE", KindAtomicAck, Only, HasAETH | HasAtomicAckETH, reliable},
	CompareSwap:       {"COMPARE_SWAP", KindCompareSwap, Only, HasAtomicETH, reliable},
	FetchAdd:          {"FETCH_ADD", KindFetchAdd, Only, HasAtomicETH, reliable},
	SendLastInv:       {"SEND_LAST_INVALIDATE", KindSend, Last, HasIETH, reliable},
	SendOnlyInv:       {"SEND_ONLY_INVALIDATE", KindSend, Only, HasIETH, reliable},
	Flush:             {"FLUSH", KindFlush, Only, HasFETH | HasRETH, onlyRC},
	AtomicWrite:       {"ATOMIC_WRITE", KindAtomicWrite, Only, HasRETH, onlyRC},
}

var table = buildTable()

func buildTable() (t [256]Info) {
	add := func(s Service, op int, o operation) {
		in := Info{
			Name: s.String() + "_" + o.name, Valid: true, Service: s, Kind: o.kind,
			Position: o.pos, Headers: o.headers,
		}
		switch o.kind {
		case KindSend, KindWrite, KindReadResponse, KindAtomicWrite:
			in.Payload = true
		}
		switch o.kind {
		case KindReadResponse, KindAck, KindAtomicAck, KindCNP:
		default:
			in.Request = true
		}
		if s != UC && s != UD {
			in.Response = o.kind.Response()
		}
		in.ConsumesRecv = o.kind == KindSend || o.kind == KindWrite && o.headers&HasImmDt != 0
		if s == XRC && in.Request {
			in.Headers |= HasXRCETH
		}
		if s == UD {
			in.Headers |= HasDETH
		}
		in.HeaderLen = BTHLen
		for h, n := range headerLen {
			if in.Headers&(1<<h) != 0 {
				in.HeaderLen += n
			}
		}
		t[int(s)|op] = in
	}
	for op, o := range operations {
		for _, s := range o.services {
			add(s, op, o)
		}
	}
	add(UD, SendOnly, operations[SendOnly])
	add(UD, SendOnlyImm, operations[SendOnlyImm])
	t[OpcodeCNP] = Info{Name: "CNP", Valid: true, Service: CNP, Kind: KindCNP, HeaderLen: BTHLen, Payload: true}
	return t
}

// Info returns the table row of o. If o is not assigned, Valid is false.
func (o Opcode) Info() *Info { return &table[o] }

// Service returns the service bits of o, assigned or not.
func (o Opcode) Service() Service { return Service(o & 0xe0) }

func (o Opcode) String() string {
	if in := o.Info(); in.Valid {
		return in.Name
	}
	return fmt.Sprintf("Opcode(%#02x)", uint8(o))
}
