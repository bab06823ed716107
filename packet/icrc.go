package packet

import (
	"encoding/binary"
	"hash/crc32"
)

// BTHMaskedByte is the byte of the BTH that the ICRC does not cover: FECN, BECN and reserved bits,
// which switches may change. It counts as ones.
const BTHMaskedByte = 4

// The invariant CRC (IBTA 7.8.1, annex A17.3.3) is the CRC-32 of IEEE 802.3 over
// eight bytes of ones in the place of the LRH and then the packet from IP header
// to pad, with ones for what switches and routers may change: type of service, TTL
// and header checksum, or traffic class, flow label and hop limit; the UDP checksum;
// and BTH byte 4. It is stored with its least significant byte first.
//
// The headers with ones in them are fed from registers, eight bytes at a time, so
// no copy of them is made; the rest goes to hash/crc32.

// seed is the CRC of the eight bytes of ones.
const seed = 0x2144df1c

// crcTables has, for each byte of a group of eight, the effect of its value on
// the CRC once the group is fed ("slicing by eight"). The first is the plain table.
var crcTables = buildCRCTables()

func buildCRCTables() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for i := range 256 {
		c := t[0][i]
		for k := 1; k < 8; k++ {
			c = t[0][c&0xff] ^ c>>8
			t[k][i] = c
		}
	}
	return t
}

// feed8 feeds eight bytes, the first of which is the lowest of w, to the inverted CRC c.
func feed8(c uint32, w uint64) uint32 {
	w ^= uint64(c)
	t := &crcTables
	return t[7][w&0xff] ^ t[6][w>>8&0xff] ^ t[5][w>>16&0xff] ^ t[4][w>>24&0xff] ^
		t[3][w>>32&0xff] ^ t[2][w>>40&0xff] ^ t[1][w>>48&0xff] ^ t[0][w>>56]
}

// feed4 is feed8 for four bytes.
func feed4(c, w uint32) uint32 {
	w ^= c
	t := &crcTables
	return t[3][w&0xff] ^ t[2][w>>8&0xff] ^ t[1][w>>16&0xff] ^ t[0][w>>24]
}

// icrcPrefix returns the CRC of everything up to the end of the BTH. ip holds the
// IP header and the UDP header.
func icrcPrefix(ip, bth []byte) uint32 {
	if len(bth) < BTHLen {
		return icrcRunt(ip, bth)
	}
	le := binary.LittleEndian
	c := ^uint32(seed)
	if len(ip) == IPv4Len+UDPLen {
		c = feed8(c, le.Uint64(ip)|0xff00)                                             // type of service
		c = feed8(c, le.Uint64(ip[8:])|0xffff00ff)                                     // TTL, checksum
		c = feed8(c, le.Uint64(ip[16:]))                                               // destination, ports
		c = feed8(c, uint64(le.Uint32(ip[24:])|0xffff0000)|uint64(le.Uint32(bth))<<32) // UDP checksum
		return ^feed8(c, le.Uint64(bth[4:])|0xff)
	}
	c = feed8(c, le.Uint64(ip)|0xff000000ffffff0f) // traffic class, flow label, hop limit
	c = feed8(c, le.Uint64(ip[8:]))
	c = feed8(c, le.Uint64(ip[16:]))
	c = feed8(c, le.Uint64(ip[24:]))
	c = feed8(c, le.Uint64(ip[32:]))
	c = feed8(c, le.Uint64(ip[40:])|0xffff<<48) // UDP checksum
	c = feed4(c, le.Uint32(bth))
	return ^feed8(c, le.Uint64(bth[4:])|0xff)
}

// icrcRunt is icrcPrefix for a packet that ends inside its BTH, as no NIC sends it and a
// test may want to.
func icrcRunt(ip, bth []byte) uint32 {
	var b [IPv6Len + UDPLen + BTHLen]byte
	n := copy(b[:], ip)
	if n == IPv4Len+UDPLen {
		b[1], b[8], b[10], b[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		b[0] |= 0xf
		b[1], b[2], b[3], b[7] = 0xff, 0xff, 0xff, 0xff
	}
	b[n-2], b[n-1] = 0xff, 0xff // UDP checksum
	end := n + copy(b[n:], bth)
	if masked := n + BTHMaskedByte; masked < end {
		b[masked] = 0xff
	}
	return crc32.Update(seed, crc32.IEEETable, b[:end])
}

// behindBTH is what follows the BTH.
func behindBTH(b []byte) []byte { return b[min(BTHLen, len(b)):] }

// icrcOf returns the ICRC of transport, BTH to pad, behind the headers ip.
func icrcOf(ip, transport []byte) uint32 {
	return crc32.Update(icrcPrefix(ip, transport), crc32.IEEETable, behindBTH(transport))
}

// padding is what Tx.Pad counts.
var padding [4]byte

// ICRC returns the ICRC of a packet from a whose transport part is head (BTH and
// extended headers), the slices of payload, and pad zero bytes. Where head is shorter than a
// BTH, the packet ends with it.
func ICRC(a *Addressing, head []byte, payload [][]byte, pad int) uint32 {
	n := len(head) + pad
	for _, p := range payload {
		n += len(p)
	}
	return icrcGather(a, n, head, payload, pad)
}

// ICRCTx returns the ICRC of t sent from a.
func ICRCTx(a *Addressing, t *Tx) uint32 {
	return icrcGather(a, t.Len, t.Head[:t.HeadLen], t.Payload, int(t.Pad))
}

// ICRCBytes returns the ICRC of a packet from a whose transport part, BTH to pad, is b.
func ICRCBytes(a *Addressing, b []byte) uint32 {
	return icrcGather(a, len(b), b, nil, 0)
}

func icrcGather(a *Addressing, n int, head []byte, payload [][]byte, pad int) uint32 {
	var ip [IPv6Len + UDPLen]byte
	l := a.PutIP(ip[:], n+ICRCLen)
	c := icrcPrefix(ip[:l], head)
	c = crc32.Update(c, crc32.IEEETable, behindBTH(head))
	for _, p := range payload {
		c = crc32.Update(c, crc32.IEEETable, p)
	}
	return crc32.Update(c, crc32.IEEETable, padding[:pad])
}
