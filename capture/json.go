package capture

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"softroce/packet"
)

// The JSON form of a packet. Numbers are JSON numbers, except those of 64 bits, which are
// hexadecimal strings, because JSON readers keep 53 bits.
type jsonPacket struct {
	No        int         `json:"no"`
	Time      json.Number `json:"time"` // seconds of the Unix epoch, nine decimals
	Interface int         `json:"interface"`
	NIC       string      `json:"nic,omitempty"` // name of the interface
	Length    int         `json:"length"`        // bytes of the frame on the wire

	Src        netip.Addr    `json:"src"`
	Dst        netip.Addr    `json:"dst"`
	Opcode     packet.Opcode `json:"opcode"`
	OpcodeName string        `json:"opcode_name"`
	DestQP     uint32        `json:"dest_qp"`
	PSN        uint32        `json:"psn"`
	AckReq     bool          `json:"ack_req"`
	Solicited  bool          `json:"solicited"`
	MigReq     bool          `json:"mig_req"`
	Pad        uint8         `json:"pad"`
	TVer       uint8         `json:"tver"`
	PKey       uint16        `json:"pkey"`
	FECN       bool          `json:"fecn"`
	BECN       bool          `json:"becn"`
	Reserved6  uint8         `json:"reserved6,omitempty"`
	Reserved7  uint8         `json:"reserved7,omitempty"`

	XRCETH       *jsonXRCETH       `json:"xrceth,omitempty"`
	DETH         *jsonDETH         `json:"deth,omitempty"`
	FETH         *jsonFETH         `json:"feth,omitempty"`
	RETH         *jsonRETH         `json:"reth,omitempty"`
	AtomicETH    *jsonAtomicETH    `json:"atomiceth,omitempty"`
	AETH         *jsonAETH         `json:"aeth,omitempty"`
	AtomicAckETH *jsonAtomicAckETH `json:"atomicacketh,omitempty"`
	ImmDt        *uint32           `json:"immdt,omitempty"`
	IETH         *jsonIETH         `json:"ieth,omitempty"`

	MAD *jsonMAD `json:"mad,omitempty"` // if it is a management datagram

	PayloadLen int     `json:"payload_len"`
	ICRC       *uint32 `json:"icrc,omitempty"`
	ICRCOK     *bool   `json:"icrc_ok,omitempty"`
	VCRC       *uint16 `json:"vcrc,omitempty"` // InfiniBand, if the capture has it
	VCRCOK     *bool   `json:"vcrc_ok,omitempty"`
	Captured   int     `json:"captured,omitempty"` // bytes of a frame that the capture truncated

	SrcPort     *uint16  `json:"src_port,omitempty"` // UDP
	DstPort     *uint16  `json:"dst_port,omitempty"`
	UDPChecksum *uint16  `json:"udp_checksum,omitempty"`
	TClass      *uint8   `json:"tclass,omitempty"` // IP and GRH
	HopLimit    *uint8   `json:"hop_limit,omitempty"`
	IPID        *uint16  `json:"ip_id,omitempty"` // IPv4
	DF          *bool    `json:"df,omitempty"`
	FlowLabel   *uint32  `json:"flow_label,omitempty"` // IPv6 and GRH
	SrcMAC      string   `json:"src_mac,omitempty"`
	DstMAC      string   `json:"dst_mac,omitempty"`
	VLAN        *uint16  `json:"vlan,omitempty"` // the whole TCI
	LRH         *jsonLRH `json:"lrh,omitempty"`  // InfiniBand
	RoCEv1      bool     `json:"roce_v1,omitempty"`

	Error string `json:"error,omitempty"` // why the extended headers are missing

	Comments []string `json:"comments,omitempty"`

	*Remark
}

type (
	jsonLRH struct {
		VL        uint8  `json:"vl"`
		LVer      uint8  `json:"lver"`
		SL        uint8  `json:"sl"`
		Reserved2 uint8  `json:"reserved2,omitempty"`
		LNH       uint8  `json:"lnh"`
		DLID      uint16 `json:"dlid"`
		Reserved5 uint8  `json:"reserved5,omitempty"`
		SLID      uint16 `json:"slid"`
	}
	jsonXRCETH struct {
		SRQ      uint32 `json:"srq"`
		Reserved uint8  `json:"reserved,omitempty"`
	}
	jsonDETH struct {
		QKey     uint32 `json:"qkey"`
		SrcQP    uint32 `json:"src_qp"`
		Reserved uint8  `json:"reserved,omitempty"`
	}
	jsonFETH struct {
		Placement   uint8  `json:"placement"`
		Selectivity uint8  `json:"selectivity"`
		Reserved    uint32 `json:"reserved,omitempty"`
	}
	jsonRETH struct {
		VA     hex64  `json:"va"`
		RKey   uint32 `json:"rkey"`
		Length uint32 `json:"length"`
	}
	jsonAtomicETH struct {
		VA      hex64  `json:"va"`
		RKey    uint32 `json:"rkey"`
		SwapAdd hex64  `json:"swap_add"`
		Compare hex64  `json:"compare"`
	}
	jsonAETH struct {
		Syndrome packet.Syndrome `json:"syndrome"`
		Meaning  string          `json:"meaning"`
		MSN      uint32          `json:"msn"`
	}
	jsonAtomicAckETH struct {
		Original hex64 `json:"original"`
	}
	jsonIETH struct {
		RKey uint32 `json:"rkey"`
	}
)

// jsonOther is the JSON form of a frame that is not a RoCE packet.
type jsonOther struct {
	No        int         `json:"no"`
	Time      json.Number `json:"time"`
	Interface int         `json:"interface"`
	Length    int         `json:"length"`
	NotRoCE   bool        `json:"not_roce,omitempty"` // a frame of another protocol
	Error     string      `json:"error"`
}

// jsonNote is the JSON form of a note.
type jsonNote struct {
	Note    string      `json:"note"`
	Time    json.Number `json:"time"`
	NIC     string      `json:"nic,omitempty"`
	Rule    int         `json:"rule,omitempty"`
	PID     int         `json:"pid,omitempty"`
	Program string      `json:"program,omitempty"`
	QP      uint32      `json:"qp,omitempty"`
}

type hex64 uint64

func (h hex64) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%#x", uint64(h)), nil }

// MarshalJSON returns the packet as one JSON object with every field of its headers, on one line.
func (p *Packet) MarshalJSON() ([]byte, error) { return p.json(nil) }

func (p *Packet) json(r *Remark) ([]byte, error) {
	j := jsonPacket{
		No: p.No, Time: epoch(p.Time), Interface: p.Interface, NIC: p.NIC, Length: p.Length, Remark: r,
		Src: p.Src, Dst: p.Dst, Opcode: p.Opcode, OpcodeName: p.Opcode.String(),
		DestQP: p.DestQP, PSN: p.PSN, AckReq: p.AckReq, Solicited: p.Solicited, MigReq: p.MigReq,
		Pad: p.Pad, TVer: p.TVer, PKey: p.PKey, FECN: p.FECN, BECN: p.BECN, Reserved6: p.Reserved6, Reserved7: p.Reserved7,
		PayloadLen: p.payloadLen(), Comments: p.Comments,
	}
	if p.Cut {
		j.Captured = len(p.Data)
	} else {
		icrc, ok := p.ICRC(), p.ICRCOK()
		j.ICRC, j.ICRCOK = &icrc, &ok
		if vcrc, ok := p.VCRC(); ok {
			good := p.VCRCOK()
			j.VCRC, j.VCRCOK = &vcrc, &good
		}
	}
	j.setAddressing(p)
	if p.Err != nil {
		j.Error = p.Err.Error()
	} else {
		j.setExtended(&p.Header)
		j.setMAD(p)
	}
	return json.Marshal(j)
}

func epoch(t time.Time) json.Number {
	return json.Number(fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond()))
}

func (j *jsonPacket) setAddressing(p *Packet) {
	if p.Network == packet.RoCEv2 {
		j.SrcPort, j.DstPort, j.UDPChecksum = &p.SrcPort, &p.DstPort, &p.UDPChecksum
	}
	if p.IsIPv4() {
		df := !p.MayFragment
		j.IPID, j.DF = &p.ID, &df
	} else if p.Network == packet.RoCEv2 || p.HasGRH() {
		j.FlowLabel = &p.FlowLabel
	}
	if p.Network == packet.RoCEv2 || p.HasGRH() {
		j.TClass, j.HopLimit = &p.TClass, &p.HopLimit
	}
	j.RoCEv1 = p.Network == packet.RoCEv1
	if h := &p.LRH; p.Network == packet.InfiniBand {
		j.LRH = &jsonLRH{h.VL, h.LVer, h.SL, h.Reserved2, h.LNH, h.DLID, h.Reserved5, h.SLID}
	}
	if p.LinkType == Ethernet {
		j.SrcMAC, j.DstMAC = mac(p.SrcMAC), mac(p.DstMAC)
	}
	if p.Tagged {
		j.VLAN = &p.TCI
	}
}

func (j *jsonPacket) setExtended(h *packet.Header) {
	has := h.Opcode.Info().Headers
	if has&packet.HasXRCETH != 0 {
		j.XRCETH = &jsonXRCETH{h.XRCSRQ, h.XRCResv}
	}
	if has&packet.HasDETH != 0 {
		j.DETH = &jsonDETH{h.DETH.QKey, h.DETH.SrcQP, h.DETH.Reserved}
	}
	if has&packet.HasFETH != 0 {
		j.FETH = &jsonFETH{h.FETH.Placement, h.FETH.Selectivity, h.FETH.Reserved}
	}
	if has&packet.HasRETH != 0 {
		j.RETH = &jsonRETH{hex64(h.RETH.VA), h.RETH.RKey, h.RETH.Length}
	}
	if has&packet.HasAtomicETH != 0 {
		j.AtomicETH = &jsonAtomicETH{hex64(h.Atomic.VA), h.Atomic.RKey, hex64(h.Atomic.SwapAdd), hex64(h.Atomic.Compare)}
	}
	if has&packet.HasAETH != 0 {
		j.AETH = &jsonAETH{h.AETH.Syndrome, h.AETH.Syndrome.String(), h.AETH.MSN}
	}
	if has&packet.HasAtomicAckETH != 0 {
		j.AtomicAckETH = &jsonAtomicAckETH{hex64(h.OrigData)}
	}
	if has&packet.HasImmDt != 0 {
		j.ImmDt = &h.Imm
	}
	if has&packet.HasIETH != 0 {
		j.IETH = &jsonIETH{h.Invalidate}
	}
}
