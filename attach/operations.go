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

	memory uint64 // of the daemon that the object which it creates uses, in bytes
	client bool   // prepare touches the client's memory or descriptors

	// One of the two is set. run is called with the connection's lock and does not wait: such a
	// request has no descriptors. prepare is called without a lock, beside other requests, and may
	// wait. Only prepare touches the client's memory and descriptors.
	run     func(*conn, *control.Packet) (reply, error)
	prepare func(*conn, *control.Packet) (prepared, error)

	onID bool // the body begins with the handle of an identifier of the connection manager
}

// prepared is what prepare leaves to be done.
type prepared struct {
	commit func() (reply, error) // is called with the connection's lock and does not wait

	// abandon releases what was prepared, if commit fails or is not called because the connection
	// has ended. It is called without a lock, and may be nil.
	abandon func()
}

// request returns an operation with a body of type T.
func request[T any](name string, open bool, f func(*conn, *T, *control.Packet) (reply, error)) *operation {
	var zero T
	return &operation{name: name, open: open, body: abi.Size(zero),
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
func slowRequest[T any](name string, open bool, f func(*conn, *T) (commit func() (reply, error), err error)) *operation {
	o := clientRequest(name, open, 0, func(c *conn, v *T, _ *control.Packet) (prepared, error) {
		commit, err := f(c, v)
		return prepared{commit: commit}, err
	})
	o.client = false
	return o
}

// creates returns o with the memory that the created object uses. It is released when the object is
// destroyed.
func creates(memory uint64, o *operation) *operation {
	o.memory = memory
	return o
}

// clientRequest returns an operation with a body of type T that may wait, and that touches the
// client's memory or up to fds descriptors of the client.
func clientRequest[T any](name string, open bool, fds int, f func(*conn, *T, *control.Packet) (prepared, error)) *operation {
	var zero T
	return &operation{name: name, open: open, fds: fds, client: true, body: abi.Size(zero),
		prepare: func(c *conn, p *control.Packet) (prepared, error) {
			var v T
			if _, err := abi.Decode(p.Body, &v); err != nil {
				return prepared{}, err
			}
			return f(c, &v, p)
		},
	}
}

// requestWithTail returns an operation with a body of type T and up to tail bytes behind it.
func requestWithTail[T any](name string, open bool, tail int, f func(*conn, *T, []byte) (reply, error)) *operation {
	o := request(name, open, func(c *conn, v *T, p *control.Packet) (reply, error) {
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
	abi.OpHello:       request("hello", false, (*conn).hello),
	abi.OpListDevices: request("list devices", false, (*conn).listDevices),
	abi.OpJoinDevice:  clientRequest("join device", false, 1, (*conn).joinDevice),
	abi.OpOpenDevice:  request("open device", false, (*conn).openDevice),
	abi.OpQueryDevice: request("query device", true, (*conn).queryDevice),
	abi.OpQueryPort:   request("query port", true, (*conn).queryPort),
	abi.OpQueryGIDs:   request("query GIDs", true, (*conn).queryGIDs),
	abi.OpQueryPKeys:  request("query P_Keys", true, (*conn).queryPKeys),
	abi.OpQueryClock:  request("query clock", true, (*conn).queryClock),

	abi.OpAllocPD:   creates(objectBytes, request("allocate PD", true, (*conn).allocPD)),
	abi.OpDeallocPD: request("deallocate PD", true, (*conn).deallocPD),
	abi.OpRegMR:     creates(objectBytes, clientRequest("register MR", true, 1, (*conn).regMR)),
	abi.OpReregMR:   clientRequest("reregister MR", true, 1, (*conn).reregMR),
	abi.OpQueryMR:   request("query MR", true, (*conn).queryMR),
	abi.OpDeregMR:   request("deregister MR", true, (*conn).deregMR),

	abi.OpHoldMemory:    creates(objectBytes, clientRequest("hold memory", true, 1, (*conn).holdMemory)),
	abi.OpReleaseMemory: request("release memory", true, (*conn).releaseMemory),

	abi.OpCreateAH:   creates(objectBytes, slowRequest("create AH", true, (*conn).createAH)),
	abi.OpDestroyAH:  request("destroy AH", true, (*conn).destroyAH),
	abi.OpAllocDM:    creates(objectBytes, request("allocate DM", true, (*conn).allocDM)),
	abi.OpFreeDM:     request("free DM", true, (*conn).freeDM),
	abi.OpQueryDM:    request("query DM", true, (*conn).queryDM),
	abi.OpCopyToDM:   requestWithTail("copy to DM", true, abi.DMCopyMax, (*conn).copyToDM),
	abi.OpCopyFromDM: request("copy from DM", true, (*conn).copyFromDM),

	abi.OpAllocMW:   creates(objectBytes, request("allocate MW", true, (*conn).allocMW)),
	abi.OpDeallocMW: request("deallocate MW", true, (*conn).deallocMW),
	abi.OpOpenXRCD:  creates(objectBytes, clientRequest("open XRCD", true, 1, (*conn).openXRCD)),
	abi.OpCloseXRCD: request("close XRCD", true, (*conn).closeXRCD),

	abi.OpCreateChannel:  creates(objectBytes, request("create completion channel", true, (*conn).createChannel)),
	abi.OpDestroyChannel: request("destroy completion channel", true, (*conn).destroyChannel),
	abi.OpCreateCQ:       creates(objectBytes, request("create CQ", true, (*conn).createCQ)),
	abi.OpDestroyCQ:      request("destroy CQ", true, (*conn).destroyCQ),

	abi.OpResizeCQ: request("resize CQ", true, (*conn).resizeCQ),

	abi.OpCreateSRQ:  creates(objectBytes, request("create SRQ", true, (*conn).createSRQ)),
	abi.OpModifySRQ:  request("modify SRQ", true, (*conn).modifySRQ),
	abi.OpQuerySRQ:   request("query SRQ", true, (*conn).querySRQ),
	abi.OpDestroySRQ: request("destroy SRQ", true, (*conn).destroySRQ),

	abi.OpAttachMcast: request("attach to multicast group", true, (*conn).attachMcast),
	abi.OpDetachMcast: request("detach from multicast group", true, (*conn).detachMcast),

	abi.OpCreateQP:  creates(queuePairBytes, request("create QP", true, (*conn).createQP)),
	abi.OpModifyQP:  slowRequest("modify QP", true, (*conn).modifyQP),
	abi.OpQueryQP:   request("query QP", true, (*conn).queryQP),
	abi.OpDestroyQP: request("destroy QP", true, (*conn).destroyQP),

	abi.OpCMOpen:           request("open connection manager", false, (*conn).cmOpen),
	abi.OpCMCreateChannel:  creates(objectBytes, request("create event channel", false, (*conn).cmCreateChannel)),
	abi.OpCMDestroyChannel: cmRequest("destroy event channel", (*conn).cmDestroyChannel),
	abi.OpCMGetEvent:       cmRequest("get event", (*conn).cmGetEvent),
	abi.OpCMCreateID:       cmRequest("create identifier", (*conn).cmCreateID),
	abi.OpCMDestroyID:      cmIDRequest("destroy identifier", (*conn).cmDestroyID),
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

	abi.OpSetPKeys:      request("set P_Keys", false, (*conn).setPKeys),
	abi.OpSetLink:       request("set link", false, (*conn).setLink),
	abi.OpAddFaults:     requestWithTail("add faults", false, abi.FaultsMax, (*conn).addFaults),
	abi.OpRemoveFault:   request("remove fault", false, (*conn).removeFault),
	abi.OpFireEvent:     request("fire event", false, (*conn).fireEvent),
	abi.OpSetCounter:    request("set counter", false, (*conn).setCounter),
	abi.OpSetCongestion: request("set congestion control", false, (*conn).setCongestion),
	abi.OpOpenTree:      clientRequest("open tree", false, 0, (*conn).openTree),
	abi.OpSnapshot:      clientRequest("snapshot", false, 0, (*conn).snapshot),
	abi.OpStartCapture:  clientRequest("start capture", false, 1, (*conn).startCapture),
	abi.OpQueryCapture:  request("query capture", false, (*conn).queryCapture),
	abi.OpStopCapture:   slowRequest("stop capture", false, (*conn).stopCapture),
}

// lookUp returns the operation of a request and the connection that has its objects, after checking
// the request's form.
func (c *conn) lookUp(p *control.Packet) (op *operation, owner *conn, err error) {
	h := &p.Header
	if h.Version != abi.Version {
		return nil, nil, errorf(syscall.EPROTONOSUPPORT, "the daemon has version %d of the attach ABI, the client has version %d",
			abi.Version, h.Version)
	}
	op, owner = operations[h.Op], c
	c.mu.Lock()
	greeted, open := c.helloDone, c.nic != nil || c.owner != nil
	if c.owner != nil && op != nil && op.open {
		owner = c.owner
	}
	c.mu.Unlock()
	switch {
	case op == nil:
		return nil, nil, errorf(syscall.EOPNOTSUPP, "unknown operation %d", h.Op)
	case !greeted && h.Op != abi.OpHello:
		return nil, nil, errorf(syscall.EPROTO, "%s before hello", op.name)
	case op.open && !open:
		return nil, nil, errorf(syscall.ENODEV, "no device is open")
	case len(p.Body) < op.body || len(p.Body) > op.body+op.tail:
		return nil, nil, errorf(syscall.EINVAL, "body of %d bytes: want %d", len(p.Body), op.body)
	case h.FDs > uint32(op.fds):
		return nil, nil, errorf(syscall.EINVAL, "%d descriptors: want at most %d", h.FDs, op.fds)
	case len(p.FDs) < int(h.FDs):
		return nil, nil, errorf(syscall.EMFILE, "%d of %d descriptors arrived: the daemon has no room for more",
			len(p.FDs), h.FDs)
	case len(p.FDs) > int(h.FDs):
		return nil, nil, errorf(syscall.EINVAL, "%d descriptors arrived, the header says %d", len(p.FDs), h.FDs)
	}
	return op, owner, nil
}
