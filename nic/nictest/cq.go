package nictest

import (
	"sync/atomic"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
)

// A CQ is a completion queue and the client's side of its ring.
type CQ struct {
	*nic.CQ
	Ring     []byte
	Notified int    // how often the NIC has called Notify
	OnNotify func() // if not nil, is called each time

	client   *Client
	consumer uint32
}

// CreateCQ creates a completion queue with at least the given number of entries.
func (c *Client) CreateCQ(entries int) (*CQ, error) {
	slots, err := c.Device.CQSlots(entries)
	if err != nil {
		return nil, err
	}
	q := &CQ{client: c, Ring: nic.NewPage(abi.RingSize(slots, abi.CQESize))}
	q.CQ, err = c.Context.CreateCQ(nic.CQConfig{Entries: slots, Ring: q.Ring, Notify: q.notify})
	return q, err
}

func (q *CQ) notify() {
	q.Notified++
	if q.OnNotify != nil {
		q.OnNotify()
	}
}

// Resize replaces the queue's ring.
func (q *CQ) Resize(entries int) error {
	slots, err := q.client.Device.CQSlots(entries)
	if err != nil {
		return err
	}
	ring := nic.NewPage(abi.RingSize(slots, abi.CQESize))
	if err := q.client.Context.ResizeCQ(q.CQ, slots, ring); err != nil {
		return err
	}
	q.Ring = ring
	return nil
}

// Arm requests one completion event.
func (q *CQ) Arm(solicitedOnly bool) {
	how := uint32(abi.CQArmNext)
	if solicitedOnly {
		how = abi.CQArmSolicited
	}
	atomic.StoreUint32(Word(q.Ring, abi.CQArmed), how)
}

// Armed returns what the queue is armed for: CQArmNone, CQArmSolicited or CQArmNext of
// internal/abi.
func (q *CQ) Armed() uint32 { return atomic.LoadUint32(Word(q.Ring, abi.CQArmed)) }

// CompletionEvents returns how many completion events the ring counts.
func (q *CQ) CompletionEvents() int { return int(atomic.LoadUint32(Word(q.Ring, abi.CQEvents))) }

// Len returns the number of completions that can be polled.
func (q *CQ) Len() int { return int(atomic.LoadUint32(Word(q.Ring, abi.RingProducer)) - q.consumer) }

// A WC is a completion as a program polls it: struct ibv_wc.
type WC struct {
	WRID      uint64
	Status    ib.WCStatus
	VendorErr uint32
	Opcode    ib.WCOpcode
	ByteLen   uint32
	Imm       uint32 // immediate data, or with WCWithInv the R_Key that was invalidated
	QPN       uint32
	SrcQP     uint32
	Flags     ib.WCFlags
	PKeyIndex uint16
	SL        uint8
	VLAN      uint16
	Timestamp uint64
	Wallclock uint64
}

// Poll removes the oldest completion and returns it.
func (q *CQ) Poll() (w WC, ok bool) {
	if q.Len() == 0 {
		return w, false
	}
	slots := uint32(len(q.Ring)-abi.RingSlots) / abi.CQESize
	var c abi.CQE
	c.Parse(q.Ring[abi.RingSlots+q.consumer%slots*abi.CQESize:])
	w = WC{
		WRID:      c.WRID,
		VendorErr: c.VendorErr, Status: ib.WCStatus(c.Status),
		Opcode:    ib.WCOpcode(c.Opcode),
		ByteLen:   c.ByteLen,
		Imm:       c.Immediate(),
		QPN:       c.QPN,
		SrcQP:     c.SrcQP,
		Flags:     ib.WCFlags(c.Flags),
		PKeyIndex: c.PKeyIndex,
		SL:        c.SL,
		VLAN:      c.VLAN,
		Timestamp: c.Timestamp,
		Wallclock: c.Wallclock,
	}
	if w.Flags&ib.WCWithInv != 0 {
		w.Imm = c.Imm
	}
	q.consumer++
	atomic.StoreUint32(Word(q.Ring, abi.RingConsumer), q.consumer)
	return w, true
}

// PollAll removes all completions and returns them. It writes the consumer index even if there are
// none.
func (q *CQ) PollAll() (l []WC) {
	for {
		w, ok := q.Poll()
		if !ok {
			atomic.StoreUint32(Word(q.Ring, abi.RingConsumer), q.consumer)
			return l
		}
		l = append(l, w)
	}
}
