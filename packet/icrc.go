package packet

import (
	"encoding/binary"
	"hash/crc32"
)

// BTHMaskedByte is the index of the BTH byte that the ICRC does not cover: FECN, BECN and reserved
// bits, which switches may change. It counts as all ones.
const BTHMaskedByte = 4

// The invariant CRC (IBTA 7.8.1, annex A17.3.3) is the CRC-32 of IEEE 802.3 over eight bytes of
// ones in place of the LRH, followed by the packet from IP header to pad. Fields that switches and
// routers may change count as ones: type of service, TTL and header checksum, or traffic class,
// flow label and hop limit; the UDP checksum; and BTH byte 4. It is sent least significant byte
// first.
//
// The masked headers go through registers, eight bytes at a time, without a copy; hash/crc32
// handles the rest.

// seed is the CRC of the eight bytes of ones.
const seed = 0x2144df1c

// crcTables has, for each position in a group of eight bytes, the contribution of the byte there to
// the CRC ("slicing by eight"). crcTables[0] is the plain byte table.
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

// update8 adds eight bytes, lowest first, to the inverted CRC c.
func update8(c uint32, w uint64) uint32 {
	w ^= uint64(c)
	t := &crcTables
	return t[7][w&0xff] ^ t[6][w>>8&0xff] ^ t[5][w>>16&0xff] ^ t[4][w>>24&0xff] ^
		t[3][w>>32&0xff] ^ t[2][w>>40&0xff] ^ t[1][w>>48&0xff] ^ t[0][w>>56]
}

// update4 is update8 for four bytes.
func update4(c, w uint32) uint32 {
	w ^= c
	t := &crcTables
	return t[3][w&0xff] ^ t[2][w>>8&0xff] ^ t[1][w>>16&0xff] ^ t[0][w>>24]
}

// icrcPrefix returns the CRC up to the end of the BTH. ip contains the IP and UDP headers.
func icrcPrefix(ip, bth []byte) uint32 {
	if len(bth) < BTHLen {
		return icrcShortPrefix(ip, bth)
	}
	le := binary.LittleEndian
	c := ^uint32(seed)
	if len(ip) == IPv4Len+UDPLen {
		c = update8(c, le.Uint64(ip)|0xff00)                                             // type of service
		c = update8(c, le.Uint64(ip[8:])|0xffff00ff)                                     // TTL, checksum
		c = update8(c, le.Uint64(ip[16:]))                                               // destination, ports
		c = update8(c, uint64(le.Uint32(ip[24:])|0xffff0000)|uint64(le.Uint32(bth))<<32) // UDP checksum
		return ^update8(c, le.Uint64(bth[4:])|0xff)
	}
	c = update8(c, le.Uint64(ip)|0xff000000ffffff0f) // traffic class, flow label, hop limit
	c = update8(c, le.Uint64(ip[8:]))
	c = update8(c, le.Uint64(ip[16:]))
	c = update8(c, le.Uint64(ip[24:]))
	c = update8(c, le.Uint64(ip[32:]))
	c = update8(c, le.Uint64(ip[40:])|0xffff<<48) // UDP checksum
	c = update4(c, le.Uint32(bth))
	return ^update8(c, le.Uint64(bth[4:])|0xff)
}

// icrcShortPrefix is icrcPrefix for a packet that ends inside its BTH. No NIC sends one, but a test
// may.
func icrcShortPrefix(ip, bth []byte) uint32 {
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

// afterBTH returns the bytes after the BTH.
func afterBTH(b []byte) []byte { return b[min(BTHLen, len(b)):] }

// icrcOf returns the ICRC of a packet: ip contains the IP and UDP headers, transport the bytes from
// BTH to pad.
func icrcOf(ip, transport []byte) uint32 {
	return crc32.Update(icrcPrefix(ip, transport), crc32.IEEETable, afterBTH(transport))
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
	return icrcGather(a, n, head, payload, pad)
}

// ICRCTx returns the ICRC of t sent with addressing a.
func ICRCTx(a *Addressing, t *Tx) uint32 {
	return icrcGather(a, t.Len, t.Head[:t.HeadLen], t.Payload, int(t.Pad))
}

// ICRCBytes returns the ICRC of a packet with addressing a; b contains the bytes from BTH to pad.
func ICRCBytes(a *Addressing, b []byte) uint32 {
	return icrcGather(a, len(b), b, nil, 0)
}

func icrcGather(a *Addressing, n int, head []byte, payload [][]byte, pad int) uint32 {
	var ip [IPv6Len + UDPLen]byte
	l := a.PutIP(ip[:], n+ICRCLen)
	c := icrcPrefix(ip[:l], head)
	c = crc32.Update(c, crc32.IEEETable, afterBTH(head))
	for _, p := range payload {
		c = crc32.Update(c, crc32.IEEETable, p)
	}
	return crc32.Update(c, crc32.IEEETable, padding[:pad])
}
