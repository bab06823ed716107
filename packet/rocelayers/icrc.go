package rocelayers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"softroce/packet"
)

// ErrNoAddressing reports that an ICRC was requested without the layers that it covers; match with
// errors.Is.
var ErrNoAddressing = errors.New("RoCE: ICRC needs an IPv4 or IPv6 layer and a UDP layer, or a GRH")

// SetLayersForICRC sets the enclosing layers that the ICRC covers, as SetNetworkLayerForChecksum
// does for UDP. ip is a *layers.IPv4 or *layers.IPv6. In RoCE v1 it is a *GRH, and udp nil.
func (r *RoCEv2) SetLayersForICRC(ip gopacket.NetworkLayer, udp *layers.UDP) error {
	if g, ok := ip.(*GRH); ok && g.Src.IsValid() && g.Dst.IsValid() {
		r.outer = &packet.Addressing{Network: packet.RoCEv1, Src: g.Src, Dst: g.Dst}
		return nil
	}
	if udp == nil {
		return ErrNoAddressing
	}
	a := packet.Addressing{SrcPort: uint16(udp.SrcPort), DstPort: uint16(udp.DstPort)}
	switch ip := ip.(type) {
	case *layers.IPv4:
		a.Src, a.Dst = address(ip.SrcIP.To4()), address(ip.DstIP.To4())
		a.ID, a.MayFragment = ip.Id, ip.Flags&layers.IPv4DontFragment == 0
	case *layers.IPv6:
		a.Src, a.Dst = address(ip.SrcIP.To16()), address(ip.DstIP.To16())
	default:
		return ErrNoAddressing
	}
	if !a.Src.IsValid() || !a.Dst.IsValid() {
		return fmt.Errorf("%w: IP address missing", ErrNoAddressing)
	}
	r.outer = &a
	return nil
}

func address(ip []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a
}

// ICRCOK reports whether the ICRC of the decoded layer is correct. It returns ErrNoAddressing if p
// has neither IP and UDP layers nor a GRH.
func (r *RoCEv2) ICRCOK(p gopacket.Packet) (bool, error) {
	udp, _ := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if err := r.SetLayersForICRC(p.NetworkLayer(), udp); err != nil {
		return false, err
	}
	return packet.ICRC(r.outer, r.Contents, [][]byte{r.Payload}, len(r.Padding)) == r.ICRC, nil
}

// SerializeTo adds headers, pad and ICRC to the payload in b. With opts.FixLengths it computes the
// pad count, with opts.ComputeChecksums the ICRC, which requires SetLayersForICRC.
func (r *RoCEv2) SerializeTo(b gopacket.SerializeBuffer, opts gopacket.SerializeOptions) error {
	payload := len(b.Bytes())
	if opts.FixLengths {
		r.Pad = uint8(-payload & 3)
		r.Padding = make([]byte, r.Pad)
	}
	if opts.ComputeChecksums && r.outer == nil {
		return ErrNoAddressing
	}
	tail, err := b.AppendBytes(len(r.Padding) + packet.ICRCLen)
	if err != nil {
		return err
	}
	copy(tail, r.Padding)
	var head [packet.MaxHeaderLen]byte
	n := r.Header.Put(head[:])
	space, err := b.PrependBytes(n)
	if err != nil {
		return err
	}
	copy(space, head[:n])
	all := b.Bytes()
	covered := all[:len(all)-packet.ICRCLen]
	if opts.ComputeChecksums {
		r.ICRC = packet.ICRCBytes(r.outer, covered)
	}
	binary.LittleEndian.PutUint32(all[len(covered):], r.ICRC)
	return nil
}
