package capture

import (
	"softroce/packet"
	"softroce/wire/fault"
)

// ParseFilter returns a Match for the conditions and choices of fault rules, such as "qp 0x11 kind
// write" (docs/reference/fault-language.md): a packet that one of the rules selects matches. Times
// count from the first packet that the Match is given. Since rules count packets, a Match is for
// one pass over a capture.
func ParseFilter(rules ...string) (Match, error) {
	f, err := fault.ParseFilter(rules...)
	if err != nil {
		return nil, err
	}
	return func(p *Packet) bool {
		info := fault.PacketInfo{Network: p.Network, Src: p.Src, Dst: p.Dst, FrameLen: p.Length}
		head := p.Transport[:len(p.Transport)-packet.ICRCLen]
		if p.Cut && p.Err != nil { // only the BTH is left
			head = head[:packet.BTHLen]
		}
		info.Parse(head, nil)
		return f.Selects(p.Time.UnixNano(), p.NIC, &info)
	}, nil
}
