package nictest

import (
	"sync/atomic"

	"softroce/internal/abi"
	"softroce/nic"
	"softroce/transport"
)

// A RecvQueue is the client's side of the receive ring of a queue pair or an SRQ.
type RecvQueue struct {
	Ring []byte

	slots, maxSGE int
	producer      uint32
	doorbell      func() // nil: SRQ
}

func newRecvQueue(slots, maxSGE int) *RecvQueue {
	return &RecvQueue{Ring: nic.NewPage(abi.RingSize(slots, abi.RecvSlotSize(maxSGE))), slots: slots, maxSGE: maxSGE}
}

// MaxSGE returns the most scatter elements of a work request.
func (r *RecvQueue) MaxSGE() int { return r.maxSGE }

// Room returns how many more work requests may be posted.
func (r *RecvQueue) Room() int {
	return r.slots - int(r.producer-atomic.LoadUint32(Word(r.Ring, abi.RingConsumer)))
}

// PostRecv posts a receive work request, and rings the doorbell if the NIC requests it.
func (r *RecvQueue) PostRecv(id uint64, sges []transport.SGE) {
	slot := r.Ring[abi.RingSlots+int(r.producer)%r.slots*abi.RecvSlotSize(r.maxSGE):]
	*abi.In[abi.RecvWQE](slot) = abi.RecvWQE{WRID: id, NumSGE: uint32(len(sges))}
	abi.PutSGEs(slot[abi.RecvWQESize:], sges)
	r.producer++
	atomic.StoreUint32(Word(r.Ring, abi.RingProducer), r.producer)
	if r.doorbell != nil && atomic.LoadUint32(Word(r.Ring, abi.RecvDoorbell)) != 0 {
		r.doorbell()
	}
}

// An SRQ is a shared receive queue and the client's side of its ring.
type SRQ struct {
	*nic.SRQ
	*RecvQueue
	client *Client
}

// CreateSRQ creates a shared receive queue with at least the sizes in o, and with a ring of its
// own.
func (c *Client) CreateSRQ(o nic.SRQInit) (*SRQ, error) {
	if err := c.Device.RoundSRQ(&o.MaxWR, &o.MaxSGE); err != nil {
		return nil, err
	}
	s := &SRQ{RecvQueue: newRecvQueue(o.MaxWR, o.MaxSGE), client: c}
	o.Ring = s.Ring
	var err error
	s.SRQ, err = c.Context.CreateSRQ(o)
	return s, err
}

// Resize replaces the queue's ring by one of at least maxWR slots, and arms its limit event. A
// negative limit leaves the limit unchanged.
func (s *SRQ) Resize(maxWR, limit int) error {
	maxSGE := s.maxSGE
	if err := s.client.Device.RoundSRQ(&maxWR, &maxSGE); err != nil {
		return err
	}
	r := newRecvQueue(maxWR, s.maxSGE)
	if err := s.client.Context.ModifySRQ(s.SRQ, nic.SRQChange{Limit: limit, Ring: r.Ring, MaxWR: maxWR}); err != nil {
		return err
	}
	s.Ring, s.slots = r.Ring, maxWR
	return nil
}
