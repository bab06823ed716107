package rocelayers

import (
	"fmt"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"softroce/packet"
)

// LayerTypeGRH is the layer of the GRH of RoCE v1, behind the Ethernet header. LayerTypeRoCEv2
// follows it, since the transport part is the same in both versions.
var LayerTypeGRH = registerGRH()

func registerGRH() gopacket.LayerType {
	decode := gopacket.DecodeFunc(decodeGRH)
	t := gopacket.RegisterLayerType(packet.EtherTypeRoCEv1, gopacket.LayerTypeMetadata{Name: "GRH", Decoder: decode})
	layers.EthernetTypeMetadata[packet.EtherTypeRoCEv1] = layers.EnumMetadata{DecodeWith: decode, Name: "RoCEv1", LayerType: t}
	return t
}

// GRH is the global route header of a RoCE v1 packet. Src and Dst are its GIDs. LayerPayload is
// what its payload length covers, without Ethernet padding.
type GRH struct {
	layers.BaseLayer
	packet.Addressing
}

// LayerType returns LayerTypeGRH.
func (g *GRH) LayerType() gopacket.LayerType { return LayerTypeGRH }

// CanDecode returns LayerTypeGRH.
func (g *GRH) CanDecode() gopacket.LayerClass { return LayerTypeGRH }

// NextLayerType returns LayerTypeRoCEv2.
func (g *GRH) NextLayerType() gopacket.LayerType { return LayerTypeRoCEv2 }

// NetworkFlow returns the GIDs as IPv6 addresses.
func (g *GRH) NetworkFlow() gopacket.Flow {
	src, dst := g.Src.As16(), g.Dst.As16()
	return gopacket.NewFlow(layers.EndpointIPv6, src[:], dst[:])
}

// DecodeFromBytes decodes data, from GRH to ICRC. g refers to data afterwards.
func (g *GRH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	var f packet.Frame
	if err := packet.ParseGRH(data, &f); err != nil {
		df.SetTruncated()
		return fmt.Errorf("GRH: %w", err)
	}
	g.Addressing = f.Addressing
	g.BaseLayer = layers.BaseLayer{Contents: data[:packet.GRHLen], Payload: f.Transport}
	return nil
}

// SerializeTo adds the GRH to the packet in b, from BTH to ICRC, whose length it has.
func (g *GRH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	if !g.Src.IsValid() || !g.Dst.IsValid() {
		return fmt.Errorf("GRH: %w: GID missing", ErrNoAddressing)
	}
	n := len(b.Bytes())
	space, err := b.PrependBytes(packet.GRHLen)
	if err != nil {
		return err
	}
	a := g.Addressing
	a.Network = packet.RoCEv1
	a.PutIP(space, n)
	return nil
}

func decodeGRH(data []byte, p gopacket.PacketBuilder) error {
	g := new(GRH)
	if err := g.DecodeFromBytes(data, p); err != nil {
		return err
	}
	p.AddLayer(g)
	p.SetNetworkLayer(g)
	return p.NextDecoder(LayerTypeRoCEv2)
}
