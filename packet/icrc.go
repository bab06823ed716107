package packet

import (
	"encoding/binary"
	"math/bits"
)

// BTHMaskedByte is the index of the BTH byte that the ICRC does not cover: FECN, BECN and reserved
// bits, which switches may change. It counts as all ones.
const BTHMaskedByte = 4

// The invariant CRC (IBTA 7.8.1, annex A17.3.3) is the CRC-32 of IEEE 802.3 over eight bytes of
// ones in place of the LRH, followed by the packet from IP header or GRH to pad. Fields that
// switches and routers may change count as ones: type of service, TTL and header checksum, or
// traffic class, flow label and hop limit; the UDP checksum; and BTH byte 4. An LRH without a GRH
// is not routed: then it counts itself, except for its VL. The CRC is sent least significant byte
// first.

// seed is the register after the eight bytes of ones.
const seed = 0xdebb20e3

// An ICRCBase is the part of the ICRC that packets have in common if they have the same addressing,
// except for the Identification, and the same length: the segments of a super-packet.
type ICRCBase struct {
	crc uint32 // register before the BTH, with Identification 0
	is4 bool
}

// ICRCBase returns the base of packets with n bytes from BTH to pad.
func (a *Addressing) ICRCBase(n int) ICRCBase {
	udpLen := uint16(UDPLen + n + ICRCLen)
	ports := uint64(swap(a.SrcPort)) | uint64(swap(a.dstPort()))<<16
	tail := uint64(swap(udpLen)) | 0xffff<<16 // UDP checksum
	le := binary.LittleEndian
	c := uint32(seed)
	switch {
	case a.HasGRH():
		return ICRCBase{crc: a.icrcIPv6(uint16(n+ICRCLen), NextHeaderBTH)}
	case a.Network == InfiniBand:
		var lrh [LRHLen]byte
		a.LRH.put(lrh[:], LRHLen+n+ICRCLen)
		return ICRCBase{crc: update8(^uint32(0), le.Uint64(lrh[:])|lrhMasked)}
	case !a.Src.Is4():
		return ICRCBase{crc: update8(a.icrcIPv6(udpLen, protocolUDP), ports|tail<<32)}
	}
	src, dst := a.Src.As4(), a.Dst.As4()
	c = update8(c, 0xff45|uint64(swap(IPv4Len+udpLen))<<16|uint64(swap(a.fragmentField()))<<48)
	c = update8(c, 0xffff00ff|protocolUDP<<8|uint64(le.Uint32(src[:]))<<32)
	c = update8(c, uint64(le.Uint32(dst[:]))|ports<<32)
	return ICRCBase{crc: update4(c, uint32(tail)), is4: true}
}

// icrcIPv6 returns the register behind an IPv6 header or GRH: see putIPv6.
func (a *Addressing) icrcIPv6(payloadLen uint16, next uint8) uint32 {
	le := binary.LittleEndian
	src, dst := a.Src.As16(), a.Dst.As16()
	c := update8(seed, 0xffffff6f|uint64(swap(payloadLen))<<32|uint64(next)<<48|0xff<<56)
	c = update8(update8(c, le.Uint64(src[:])), le.Uint64(src[8:]))
	return update8(update8(c, le.Uint64(dst[:])), le.Uint64(dst[8:]))
}

// swap converts v to network byte order, the first byte lowest.
func swap(v uint16) uint16 { return bits.ReverseBytes16(v) }

// idTables has, for each byte of the Identification, its contribution to the register behind the
// UDP header.
var idTables = buildIDTables()

func buildIDTables() (t [2][256]uint32) {
	for i := range 256 {
		c := crcTables[0][i]
		for range afterID - 2 {
			c = skipByte(&crcTables[0], c)
		}
		t[1][i], t[0][i] = c, skipByte(&crcTables[0], c)
	}
	return t
}

// afterID is the number of bytes from the Identification to the end of the UDP header.
const afterID = IPv4Len - 4 + UDPLen

// begin returns the register behind the BTH at the beginning of b, which may be too short for one,
// and the rest of b.
func (s ICRCBase) begin(id uint16, b []byte) (c uint32, rest []byte) {
	c = s.crc
	if s.is4 {
		c ^= idTables[0][id>>8] ^ idTables[1][id&0xff]
	}
	if len(b) < BTHLen {
		return icrcOfShort(c, b), nil
	}
	le := binary.LittleEndian
	c = update4(c, le.Uint32(b))
	return update8(c, le.Uint64(b[BTHMaskedByte:])|0xff), b[BTHLen:]
}

// icrcOfShort adds a packet that ends inside its BTH. No NIC sends one, but a test may.
func icrcOfShort(c uint32, b []byte) uint32 {
	for i, x := range b {
		if i == BTHMaskedByte {
			x = 0xff
		}
		c = update1(c, x)
	}
	return c
}

// Bytes returns the ICRC of the packet whose bytes from BTH to pad are b. IPv6 has no id.
func (s ICRCBase) Bytes(id uint16, b []byte) uint32 {
	c, rest := s.begin(id, b)
	return ^update(c, rest)
}

// Tx returns the ICRC of t. IPv6 has no id.
func (s ICRCBase) Tx(id uint16, t *Tx) uint32 {
	return s.gather(id, t.Head[:t.HeadLen], t.Payload, int(t.Pad))
}

func (s ICRCBase) gather(id uint16, head []byte, payload [][]byte, pad int) uint32 {
	c, rest := s.begin(id, head)
	c = updateShort(c, rest)
	for _, p := range payload {
		c = update(c, p)
	}
	return ^updateShort(c, padding[:pad])
}

// padding is the source of the Tx.Pad bytes.
var padding [4]byte

// ICRC returns the ICRC of a packet with addressing a: head contains BTH and extended headers, then
// come the slices of payload and pad zero bytes. If head is shorter than a BTH, the packet ends
// with it.
func ICRC(a *Addressing, head []byte, payload [][]byte, pad int) uint32 {
	n := len(head) + pad
	for _, p := range payload {
		n += len(p)
	}
	return a.ICRCBase(n).gather(a.ID, head, payload, pad)
}

// ICRCTx returns the ICRC of t sent with addressing a.
func ICRCTx(a *Addressing, t *Tx) uint32 { return a.ICRCBase(t.Len).Tx(a.ID, t) }

// ICRCBytes returns the ICRC of a packet with addressing a; b contains the bytes from BTH to pad.
func ICRCBytes(a *Addressing, b []byte) uint32 { return a.ICRCBase(len(b)).Bytes(a.ID, b) }
