package replay

import (
	"math/rand/v2"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
	"softroce/transport"
)

// A modelQP is a queue pair of softroce that replays a stream, with its memory and virtual time. It
// implements transport.Sink.
type modelQP struct {
	qp         *transport.QP
	pd         *mrtable.PD
	env        transport.Env
	room       int          // packets that may still be sent
	sent       []*packet.Tx // since the last take
	onComplete func(*transport.Completion)
	discard    *mrtable.Region // accepts any data
}

// startTime is above 0, which means no time.
const startTime = 1

// newModelQP returns a model without a queue pair.
func newModelQP() (*modelQP, error) {
	b := &modelQP{}
	table := mrtable.NewTable(rand.New(rand.NewPCG(1, 1)))
	b.pd = table.AllocPD()
	b.env = transport.Env{Now: startTime, Mem: mrtable.NewIO(0), Table: table, Sink: b}
	var err error
	b.discard, err = b.register(new(discardMemory), 0, ib.AccessLocalWrite)
	return b, err
}

func (b *modelQP) register(m mrtable.Memory, iova uint64, a ib.Access) (*mrtable.Region, error) {
	return b.env.Table.Register(b.pd, m, iova, m.Len(), a)
}

// Packet implements transport.Sink.
func (b *modelQP) Packet(*transport.QP) *packet.Tx {
	if b.room == 0 {
		return nil
	}
	b.room--
	tx := new(packet.Tx)
	b.sent = append(b.sent, tx)
	return tx
}

// Room implements transport.Sink.
func (b *modelQP) Discard(*transport.QP, uint32, uint32) {}

func (b *modelQP) Room(*transport.QP) int { return b.room }

// Run implements transport.Sink. A model makes single packets.
func (b *modelQP) Run(*transport.QP) int { return 0 }

// Last implements transport.Sink. The room of a model ends after each packet.
func (b *modelQP) Last(*transport.QP) bool { return false }

// Complete implements transport.Sink.
func (b *modelQP) Complete(_ *transport.QP, c *transport.Completion) {
	if b.onComplete != nil {
		b.onComplete(c)
	}
}

// Event implements transport.Sink.
func (b *modelQP) Event(*transport.QP, ib.EventType) {}

// take returns the packets that were sent since the last call.
func (b *modelQP) take() []sentPacket {
	out := make([]sentPacket, 0, len(b.sent))
	for _, tx := range b.sent {
		out = append(out, parseTx(tx))
	}
	b.sent = b.sent[:0]
	return out
}

// A sentPacket is a packet that softroce's queue pair sent.
type sentPacket struct {
	packet.Header
	payload []byte
}

func parseTx(tx *packet.Tx) (m sentPacket) {
	m.Header.Parse(tx.Head[:tx.HeadLen])
	m.payload = make([]byte, 0, tx.Len-int(tx.HeadLen)-int(tx.Pad))
	for _, p := range tx.Payload {
		m.payload = append(m.payload, p...)
	}
	return m
}

// connect takes the queue pair to RTR, and on to RTS if rts is set.
func (b *modelQP) connect(a ib.QPAttr, s packet.Service, rts bool) error {
	a.State, a.PKey = ib.QPSInit, packet.DefaultPKey
	if err := b.qp.Modify(&b.env, &a, ib.QPMaskState|ib.QPMaskPKeyIndex|ib.QPMaskPort|ib.QPMaskAccess); err != nil {
		return err
	}
	a.State = ib.QPSRTR
	reliable := ib.QPMaskMaxDestRDAtomic | ib.QPMaskMinRNRTimer
	if s == packet.UC {
		reliable = 0
	}
	if err := b.qp.Modify(&b.env, &a, ib.QPMaskState|ib.QPMaskAV|ib.QPMaskPathMTU|ib.QPMaskDestQPN|
		ib.QPMaskRQPSN|reliable); err != nil {
		return err
	}
	if !rts {
		return nil
	}
	a.State = ib.QPSRTS
	if reliable = ib.QPMaskTimeout | ib.QPMaskRetryCount | ib.QPMaskRNRRetry | ib.QPMaskMaxRDAtomic; s == packet.UC {
		reliable = 0
	}
	return b.qp.Modify(&b.env, &a, ib.QPMaskState|ib.QPMaskSQPSN|reliable)
}

// receive gives the queue pair a captured packet, perhaps with changed headers.
func (b *modelQP) receive(h packet.Header, payload []byte) {
	p := transport.RxPacket{Header: h, Len: len(payload)}
	if len(payload) > 0 {
		p.Payload = [][]byte{payload}
	}
	b.qp.Receive(&b.env, &p)
	b.env.Mem.Flush()
	b.env.Mem.Failed(func(tag any, _ error) { b.qp.MemoryFault(&b.env, tag.(*transport.Writer), false) })
}
