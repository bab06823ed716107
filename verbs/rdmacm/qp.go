package rdmacm

import (
	"context"
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/verbs"
)

// CreateQP creates the queue pair of an identifier that is bound to a NIC: rdma_create_qp. A queue
// pair of a connected service is then in INIT, where receives can be posted; one for datagrams is
// in RTS.
func (id *ID) CreateQP(ctx context.Context, pd *verbs.PD, a verbs.QPInitAttr) (*verbs.QP, error) {
	if id.qp.Load() != nil {
		return nil, &verbs.Error{Op: "create QP", Errno: syscall.EINVAL, Text: "the identifier has a queue pair"}
	}
	qp, err := pd.CreateQP(ctx, a)
	if err != nil {
		return nil, err
	}
	states := []verbs.QPState{verbs.QPSInit}
	if a.QPType == verbs.UD {
		states = append(states, verbs.QPSRTR, verbs.QPSRTS)
	}
	if err := id.ModifyQP(ctx, qp, states...); err != nil {
		go qp.Close(context.Background()) // ctx may have ended
		return nil, err
	}
	id.qp.Store(qp)
	return qp, nil
}

// QP returns the queue pair that CreateQP created, or nil.
func (id *ID) QP() *verbs.QP { return id.qp.Load() }

// readyToSend takes the queue pair of CreateQP from INIT to RTS. One for datagrams is there
// already.
func (id *ID) readyToSend(ctx context.Context) error {
	qp := id.qp.Load()
	if qp == nil || qp.Type() == verbs.UD {
		return nil
	}
	return id.ModifyQP(ctx, qp, verbs.QPSRTR, verbs.QPSRTS)
}

// InitQPAttr returns the attributes with which a queue pair of the identifier enters state s:
// rdma_init_qp_attr.
func (id *ID) InitQPAttr(ctx context.Context, s verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	const name = "initialize QP attributes"
	got, err := control.Await(ctx, name, func() (got abi.CMInitQPAttrReply, err error) {
		_, err = id.manager.request(control.Request{
			Name: name, Op: abi.OpCMInitQPAttr, Reply: &got,
			Body: []any{abi.CMInitQPAttrRequest{ID: id.handle, State: uint32(s)}},
		})
		return got, err
	}, nil)
	var a verbs.QPAttr
	if err == nil {
		err = a.UnmarshalBinary(abi.Append(nil, got.Attr))
	}
	return a, verbs.QPAttrMask(got.Mask), err
}

// ModifyQP takes a queue pair through states in turn, with the attributes that InitQPAttr returns.
func (id *ID) ModifyQP(ctx context.Context, qp *verbs.QP, states ...verbs.QPState) error {
	for _, s := range states {
		a, mask, err := id.InitQPAttr(ctx, s)
		if err != nil {
			return err
		}
		if err := qp.Modify(ctx, &a, mask); err != nil {
			return err
		}
	}
	return nil
}
