package conversation

import "softroce/packet"

// Path MTUs are 256 << k bytes, up to 4096 (IBTA 9.7.2).
const (
	minPathMTU = 256
	numMTUs    = 5
)

// How many votes for a path MTU each kind of packet has. The payload of a FIRST or MIDDLE packet is
// the path MTU itself. The number of PSNs between a READ and the next request only depends on it,
// and is wrong where requests are missing in the capture.
const (
	payloadVotes = 4
	readVotes    = 1
)

// A PathMTU infers a path MTU from packets in both directions. The zero value has seen no packet.
type PathMTU struct {
	votes    [numMTUs]int
	payloads int  // FIRST and MIDDLE packets with the length of a path MTU
	segments bool // a FIRST or MIDDLE packet with a payload, of any length
	largest  int  // payload
	odd      int  // FIRST and MIDDLE packets with another length
	oddLen   Majority

	read *packet.Header // the request before, if it is a READ of at least one byte
}

// Add takes the next packet of one direction into account.
func (m *PathMTU) Add(h *packet.Header, payload int) {
	in := h.Opcode.Info()
	m.largest = max(m.largest, payload)
	if in.Payload && (in.Position == packet.First || in.Position == packet.Middle) {
		m.segments = true
		if !ValidMTU(payload) {
			m.odd++
			m.oddLen.Add(uint16(payload))
		}
		for k := range m.votes {
			if payload == minPathMTU<<k {
				m.votes[k] += payloadVotes
				m.payloads++
			}
		}
	}
	if !in.Request {
		return
	}
	if m.read != nil {
		gap := packet.PSNDiff(h.PSN, m.read.PSN)
		for k := range m.votes {
			if gap == packet.PSNCount(m.read.RETH.Length, minPathMTU<<k) {
				m.votes[k] += readVotes
			}
		}
	}
	m.read = nil
	if in.Kind == packet.KindRead && h.RETH.Length > 0 {
		m.read = h
	}
}

// Merge takes the packets of the opposite direction into account.
func (m *PathMTU) Merge(o *PathMTU) {
	for k := range m.votes {
		m.votes[k] += o.votes[k]
	}
	m.payloads += o.payloads
	m.segments = m.segments || o.segments
	m.largest = max(m.largest, o.largest)
	m.odd += o.odd
	if o.oddLen.Votes() > m.oddLen.Votes() {
		m.oddLen = o.oddLen
	}
}

// Value returns the path MTU with the most votes, the smaller one of two. Where no FIRST or MIDDLE
// packet was seen it is at least as long as the largest payload. shown reports whether the payload
// of a FIRST or MIDDLE packet shows it; otherwise it is a guess.
func (m *PathMTU) Value() (mtu int, shown bool) {
	best := -1
	for k := range m.votes {
		if (m.segments || minPathMTU<<k >= m.largest) && (best < 0 || m.votes[k] > m.votes[best]) {
			best = k
		}
	}
	if best < 0 {
		best = numMTUs - 1
	}
	return minPathMTU << best, m.payloads > 0
}

// Impossible returns the length of most FIRST and MIDDLE packets, if there are several and it is no
// path MTU; otherwise 0.
func (m *PathMTU) Impossible() int {
	if m.odd > 1 && m.odd > 2*m.payloads && m.oddLen.Votes() > m.odd/2 {
		return int(m.oddLen.Value())
	}
	return 0
}

// Fits returns a payload length that the path MTU allows for certain.
func (m *PathMTU) Fits() int { return max(m.largest, minPathMTU) }

// ValidMTU reports whether n is a path MTU.
func ValidMTU(n int) bool {
	return n >= minPathMTU && n <= minPathMTU<<(numMTUs-1) && n&(n-1) == 0
}
