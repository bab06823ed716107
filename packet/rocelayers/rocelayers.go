// Package rocelayers adds RoCE to gopacket. Importing the package registers the layer types, UDP
// port 4791 of RoCEv2 and Ethertype 0x8915 of RoCE v1, as gopacket's own layers do, so that a
// gopacket program dissects RoCE. The transport part, from BTH to ICRC, is the same layer in both:
//
//	for p := range gopacket.NewPacketSource(handle, handle.LinkType()).Packets() {
//		if r, ok := p.Layer(rocelayers.LayerTypeRoCEv2).(*rocelayers.RoCEv2); ok {
//			fmt.Println(r.Opcode, r.DestQP, r.PSN, len(r.LayerPayload()))
//		}
//	}
package rocelayers

import (
	"encoding/binary"
	"fmt"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"softroce/packet"
)

// LayerTypeRoCEv2 is the layer of BTH, extended headers, payload, pad and ICRC.
var LayerTypeRoCEv2 = register()

// layerNumber is the layer's number in gopacket, where numbers from 2000 on are free for use.
const layerNumber = 4791

func register() gopacket.LayerType {
	t := gopacket.RegisterLayerType(layerNumber, gopacket.LayerTypeMetadata{
		Name: "RoCEv2", Decoder: gopacket.DecodeFunc(decode),
	})
	layers.RegisterUDPPortLayerType(packet.UDPPort, t)
	return t
}

// RoCEv2 is the transport part of a RoCE packet. LayerContents are BTH and extended headers,
// LayerPayload the payload without pad.
type RoCEv2 struct {
	layers.BaseLayer
	packet.Header
	Padding []byte
	ICRC    uint32

	outer *packet.Addressing // see SetLayersForICRC
}

// LayerType returns LayerTypeRoCEv2.
func (r *RoCEv2) LayerType() gopacket.LayerType { return LayerTypeRoCEv2 }

// CanDecode returns LayerTypeRoCEv2.
func (r *RoCEv2) CanDecode() gopacket.LayerClass { return LayerTypeRoCEv2 }

// NextLayerType returns gopacket.LayerTypePayload, or zero if there is no payload.
func (r *RoCEv2) NextLayerType() gopacket.LayerType {
	if len(r.Payload) == 0 {
		return gopacket.LayerTypeZero
	}
	return gopacket.LayerTypePayload
}

// DecodeFromBytes decodes data, from BTH to ICRC. r refers to data afterwards.
func (r *RoCEv2) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	covered := len(data) - packet.ICRCLen
	if covered < packet.BTHLen {
		df.SetTruncated()
		return fmt.Errorf("RoCEv2: %w", packet.ErrShort)
	}
	n, err := r.Header.Parse(data[:covered])
	if err != nil {
		return fmt.Errorf("RoCEv2: %w", err)
	}
	size, err := r.Header.PayloadLen(covered)
	if err != nil {
		return fmt.Errorf("RoCEv2: %w", err)
	}
	r.BaseLayer = layers.BaseLayer{Contents: data[:n], Payload: data[n : n+size]}
	r.Padding = data[n+size : covered]
	r.ICRC = binary.LittleEndian.Uint32(data[covered:])
	return nil
}

func decode(data []byte, p gopacket.PacketBuilder) error {
	r := new(RoCEv2)
	if err := r.DecodeFromBytes(data, p); err != nil {
		return err
	}
	p.AddLayer(r)
	if len(r.Payload) == 0 {
		return nil
	}
	return p.NextDecoder(gopacket.LayerTypePayload)
}
