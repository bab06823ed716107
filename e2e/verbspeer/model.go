package verbspeer

import (
	"encoding/binary"
	"hash/fnv"

	"softroce/verbs"
)

// A Model holds the contents of both buffers and the server's receive completions after the
// operations that were applied.
type Model struct {
	Client, Server []byte
	Received       []Receive // in order

	// Undefined lists ranges [from, to) of the server's buffer that a failed operation may have
	// written.
	Undefined [][2]int

	recvSize int
	slots    []int // posted receives, the oldest first
	repost   bool
}

// A Receive is a completion of the server's receive queue.
type Receive struct {
	Opcode  verbs.WCOpcode
	Length  uint32
	Imm     uint32
	WithImm bool
}

// NewModel returns the model of a new exchange.
func NewModel(server Options) *Model {
	m := &Model{
		Client: Pattern(server.Size, false), Server: Pattern(server.Size, true),
		recvSize: server.RecvSize, repost: !server.NoRepost,
	}
	for i := range server.Recvs {
		m.slots = append(m.slots, i)
	}
	return m
}

// Pattern returns the initial contents of vprobe's buffer of n bytes.
func Pattern(n int, server bool) []byte {
	factor := 31
	if server {
		factor = 17
	}
	b := make([]byte, n)
	for k := range b {
		b[k] = byte(k*factor + 7)
	}
	return b
}

// slot is the offset of receive i in a buffer of size bytes.
func slot(i, recvSize, size int) int { return recvSize * i % (size - recvSize + 1) }

// Apply applies the effect of a successful operation.
func (m *Model) Apply(op Op) {
	c := m.Client[op.Offset:]
	s := m.Server[op.Offset:]
	switch op.Name {
	case "send", "sendse":
		m.receive(c[:op.N], Receive{Opcode: verbs.WCRecv, Length: uint32(op.N)})
	case "sendimm":
		m.receive(c[:op.N], Receive{verbs.WCRecv, uint32(op.N), imm, true})
	case "write":
		copy(s, c[:op.N])
	case "writeimm":
		copy(s, c[:op.N])
		m.receive(nil, Receive{verbs.WCRecvRDMAWithImm, uint32(op.N), imm, true})
	case "read":
		copy(c, s[:op.N])
	case "faa", "cas":
		old := binary.LittleEndian.Uint64(s)
		binary.LittleEndian.PutUint64(c, old)
		if op.Name == "faa" {
			binary.LittleEndian.PutUint64(s, old+op.N)
		} else if old == op.N {
			binary.LittleEndian.PutUint64(s, op.Swap)
		}
	}
}

// Overrun records that a SEND longer than its receive has failed.
func (m *Model) Overrun() {
	at := slot(m.slots[0], m.recvSize, len(m.Server))
	m.Undefined = append(m.Undefined, [2]int{at, at + m.recvSize})
}

func (m *Model) receive(data []byte, r Receive) {
	i := m.slots[0]
	m.slots = m.slots[1:]
	copy(m.Server[slot(i, m.recvSize, len(m.Server)):], data)
	if m.repost {
		m.slots = append(m.slots, i)
	}
	m.Received = append(m.Received, r)
}

// Sum is vprobe's checksum of a buffer: FNV-1a of 32 bits.
func Sum(b []byte) uint32 {
	h := fnv.New32a()
	h.Write(b)
	return h.Sum32()
}
