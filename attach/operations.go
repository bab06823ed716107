package attach

import (
	"net/netip"
	"syscall"

	"softroce/cm"
	"softroce/internal/abi"
	"softroce/internal/control"
)

// An operation is an entry of the request table.
type operation struct {
	name string
	body int  // length of the body
	tail int  // the most bytes that may follow the body
	fds  int  // the most descriptors
	open bool // requires an open device

	// One of the two is set. run is called with the connection's lock. slow is called without the
	// lock and may wait; the function that it returns is called with the lock.
	run  func(*conn, *control.Packet) (reply, error)
	slow func(*conn, *control.Packet) (finish func() (reply, error), err error)
}

// request returns an operation with a body of type T.
func request[T any](name string, open bool, fds int, f func(*conn, *T, *control.Packet) (reply, error)) *operation {
	var zero T
	return &operation{name: name, open: open, fds: fds, body: abi.Size(zero),
		run: func(c *conn, p *control.Packet) (reply, error) {
			var v T
			if _, err := abi.Decode(p.Body, &v); err != nil {
				return reply{}, err
			}
			return f(c, &v, p)
		},
	}
}

// slowRequest returns an operation with a body of type T that may wait.
func slowRequest[T any](name string, open bool, f func(*conn, *T) (func() (reply, error), error)) *operation {
	var zero T
	return &operation{name: name, open: open, body: abi.Size(zero),
		slow: func(c *conn, p *control.Packet) (func() (reply, error), error) {
			var v T
			if _, err := abi.Decode(p.Body, &v); err != nil {
				return nil, err
			}
			return f(c, &v)
		},
	}
}

// requestWithTail returns an operation with a body of type T and up to tail bytes behind it.
func requestWithTail[T any](name string, tail int, f func(*conn, *T, []byte) (reply, error)) *operation {
	o := request(name, true, 0, func(c *conn, v *T, p *control.Packet) (reply, error) {
		var zero T
		return f(c, v, p.Body[abi.Size(zero):])
	})
	o.tail = tail
	return o
}

type empty struct{}

// operations is the request table. What a forked child of a C program may request is listed in
// libverbs/core/fork_child.c.
var operations = map[uint16]*operation{
	abi.OpHello:       request("hello", false, 0, (*conn).hello),
	abi.OpListDevices: request("list devices", false, 0, (*conn).listDevices),
	abi.OpJoinDevice:  request("join device", false, 1, (*conn).joinDevice),
	abi.OpOpenDevice:  request("open device", false, 0, (*conn).openDevice),
	abi.OpQueryDevice: request("query device", true, 0, (*conn).queryDevice),
	abi.OpQueryPort:   request("query port", true, 0, (*conn).queryPort),
	abi.OpQueryGIDs:   request("query GIDs", true, 0, (*conn).queryGIDs),
	abi.OpQueryPKeys:  request("query P_Keys", true, 0, (*conn).queryPKeys),
	abi.OpQueryClock:  request("query clock", true, 0, (*conn).queryClock),

	abi.OpAllocPD:    request("allocate PD", true, 0, (*conn).allocPD),
	abi.OpDeallocPD:  request("deallocate PD", true, 0, (*conn).deallocPD),
	abi.OpRegMR:      request("register MR", true, 1, (*conn).regMR),
	abi.OpReregMR:    request("reregister MR", true, 1, (*conn).reregMR),
	abi.OpQueryMR:    request("query MR", true, 0, (*conn).queryMR),
	abi.OpDeregMR:    request("deregister MR", true, 0, (*conn).deregMR),
	abi.OpCreateAH:   slowRequest("create AH", true, (*conn).createAH),
	abi.OpDestroyAH:  request("destroy AH", true, 0, (*conn).destroyAH),
	abi.OpAllocDM:    request("allocate DM", true, 0, (*conn).allocDM),
	abi.OpFreeDM:     request("free DM", true, 0, (*conn).freeDM),
	abi.OpQueryDM:    request("query DM", true, 0, (*conn).queryDM),
	abi.OpCopyToDM:   requestWithTail("copy to DM", abi.DMCopyMax, (*conn).copyToDM),
	abi.OpCopyFromDM: request("copy from DM", true, 0, (*conn).copyFromDM),

	abi.OpAllocMW:   request("allocate MW", true, 0, (*conn).allocMW),
	abi.OpDeallocMW: request("deallocate MW", true, 0, (*conn).deallocMW),
	abi.OpOpenXRCD:  request("open XRCD", true, 1, (*conn).openXRCD),
	abi.OpCloseXRCD: request("close XRCD", true, 0, (*conn).closeXRCD),

	abi.OpCreateChannel:  request("create completion channel", true, 0, (*conn).createChannel),
	abi.OpDestroyChannel: request("destroy completion channel", true, 0, (*conn).destroyChannel),
	abi.OpCreateCQ:       request("create CQ", true, 0, (*conn).createCQ),
	abi.OpDestroyCQ:      request("destroy CQ", true, 0, (*conn).destroyCQ),

	abi.OpResizeCQ: request("resize CQ", true, 0, (*conn).resizeCQ),

	abi.OpCreateSRQ:  request("create SRQ", true, 0, (*conn).createSRQ),
	abi.OpModifySRQ:  request("modify SRQ", true, 0, (*conn).modifySRQ),
	abi.OpQuerySRQ:   request("query SRQ", true, 0, (*conn).querySRQ),
	abi.OpDestroySRQ: request("destroy SRQ", true, 0, (*conn).destroySRQ),

	abi.OpAttachMcast: request("attach to multicast group", true, 0, (*conn).attachMcast),
	abi.OpDetachMcast: request("detach from multicast group", true, 0, (*conn).detachMcast),

	abi.OpCreateQP:  request("create QP", true, 0, (*conn).createQP),
	abi.OpModifyQP:  slowRequest("modify QP", true, (*conn).modifyQP),
	abi.OpQueryQP:   request("query QP", true, 0, (*conn).queryQP),
	abi.OpDestroyQP: request("destroy QP", true, 0, (*conn).destroyQP),

	abi.OpCMOpen:           request("open connection manager", false, 0, (*conn).cmOpen),
	abi.OpCMCreateChannel:  request("create event channel", false, 0, (*conn).cmCreateChannel),
	abi.OpCMDestroyChannel: cmRequest("destroy event channel", (*conn).cmDestroyChannel),
	abi.OpCMGetEvent:       cmRequest("get event", (*conn).cmGetEvent),
	abi.OpCMCreateID:       cmRequest("create identifier", (*conn).cmCreateID),
	abi.OpCMDestroyID:      cmIDCall("destroy identifier", func(id *cm.ID) error { id.Destroy(); return nil }),
	abi.OpCMBind:           cmIDRequest("bind identifier", (*conn).cmBind),
	abi.OpCMResolveAddr:    cmIDRequest("resolve address", (*conn).cmResolveAddr),
	abi.OpCMResolveRoute:   cmIDCall("resolve route", (*cm.ID).ResolveRoute),
	abi.OpCMListen:         cmIDRequest("listen", (*conn).cmListen),
	abi.OpCMConnect:        cmConnection("connect", (*cm.ID).Connect),
	abi.OpCMAccept:         cmConnection("accept", (*cm.ID).Accept),
	abi.OpCMReject:         cmIDRequest("reject", (*conn).cmReject),
	abi.OpCMEstablish:      cmIDCall("establish", (*cm.ID).Establish),
	abi.OpCMDisconnect:     cmIDCall("disconnect", (*cm.ID).Disconnect),
	abi.OpCMNotify:         cmIDCall("notify", (*cm.ID).Notify),
	abi.OpCMInitQPAttr:     cmIDRequest("initialize QP attributes", (*conn).cmInitQPAttr),
	abi.OpCMQueryID:        cmIDRequest("query identifier", (*conn).cmQueryID),
	abi.OpCMSetOption:      cmIDRequest("set option", (*conn).cmSetOption),
	abi.OpCMMigrate:        cmIDRequest("migrate identifier", (*conn).cmMigrate),
	abi.OpCMJoin:           cmGroup("join multicast group", (*cm.ID).Join),
	abi.OpCMLeave:          cmGroup("leave multicast group", func(id *cm.ID, a netip.Addr, _ uint64) error { return id.Leave(a) }),

	abi.OpSetPKeys:     request("set P_Keys", false, 0, (*conn).setPKeys),
	abi.OpOpenTree:     slowRequest("open tree", false, (*conn).openTree),
	abi.OpSnapshot:     slowRequest("snapshot", false, (*conn).snapshot),
	abi.OpStartCapture: request("start capture", false, 1, (*conn).startCapture),
	abi.OpQueryCapture: request("query capture", false, 0, (*conn).queryCapture),
	abi.OpStopCapture:  slowRequest("stop capture", false, (*conn).stopCapture),
}

// lookUp returns the operation of a request, after checking the request's form.
func (c *conn) lookUp(p *control.Packet) (*operation, error) {
	h := &p.Header
	if h.Version != abi.Version {
		return nil, errorf(syscall.EPROTONOSUPPORT, "the daemon has version %d of the attach ABI, the client has version %d",
			abi.Version, h.Version)
	}
	op := operations[h.Op]
	c.mu.Lock()
	greeted, open := c.helloDone, c.nic != nil || c.owner != nil
	c.mu.Unlock()
	switch {
	case op == nil:
		return nil, errorf(syscall.EOPNOTSUPP, "unknown operation %d", h.Op)
	case !greeted && h.Op != abi.OpHello:
		return nil, errorf(syscall.EPROTO, "%s before hello", op.name)
	case op.open && !open:
		return nil, errorf(syscall.ENODEV, "no device is open")
	case len(p.Body) < op.body || len(p.Body) > op.body+op.tail:
		return nil, errorf(syscall.EINVAL, "body of %d bytes: want %d", len(p.Body), op.body)
	case h.FDs > uint32(op.fds):
		return nil, errorf(syscall.EINVAL, "%d descriptors: want at most %d", h.FDs, op.fds)
	case len(p.FDs) < int(h.FDs):
		return nil, errorf(syscall.EMFILE, "%d of %d descriptors arrived: the daemon has no room for more",
			len(p.FDs), h.FDs)
	case len(p.FDs) > int(h.FDs):
		return nil, errorf(syscall.EINVAL, "%d descriptors arrived, the header says %d", len(p.FDs), h.FDs)
	}
	return op, nil
}
