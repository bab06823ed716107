package attach

import (
	"bytes"
	"syscall"
	"time"

	"softroce/cm"
	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/nic"
	"softroce/wire/fault"
)

// verbs names the operations that are verbs as the fault language does.
var verbs = map[uint16]string{
	abi.OpOpenDevice: "open_device", abi.OpQueryDevice: "query_device", abi.OpQueryPort: "query_port",
	abi.OpQueryGIDs: "query_gid", abi.OpQueryPKeys: "query_pkey", abi.OpQueryClock: "query_rt_values",
	abi.OpAllocPD: "alloc_pd", abi.OpDeallocPD: "dealloc_pd",
	abi.OpRegMR: "reg_mr", abi.OpReregMR: "rereg_mr", abi.OpQueryMR: "import_mr", abi.OpDeregMR: "dereg_mr",
	abi.OpAllocMW: "alloc_mw", abi.OpDeallocMW: "dealloc_mw",
	abi.OpAllocDM: "alloc_dm", abi.OpQueryDM: "import_dm", abi.OpCopyToDM: "memcpy_to_dm", abi.OpCopyFromDM: "memcpy_from_dm", abi.OpFreeDM: "free_dm",
	abi.OpOpenXRCD: "open_xrcd", abi.OpCloseXRCD: "close_xrcd",
	abi.OpCreateAH: "create_ah", abi.OpDestroyAH: "destroy_ah",
	abi.OpCreateChannel: "create_comp_channel", abi.OpDestroyChannel: "destroy_comp_channel",
	abi.OpCreateCQ: "create_cq", abi.OpResizeCQ: "resize_cq", abi.OpDestroyCQ: "destroy_cq",
	abi.OpCreateSRQ: "create_srq", abi.OpModifySRQ: "modify_srq", abi.OpQuerySRQ: "query_srq", abi.OpDestroySRQ: "destroy_srq",
	abi.OpCreateQP: "create_qp", abi.OpModifyQP: "modify_qp", abi.OpQueryQP: "query_qp", abi.OpDestroyQP: "destroy_qp",
	abi.OpAttachMcast: "attach_mcast", abi.OpDetachMcast: "detach_mcast",

	abi.OpCMCreateChannel: "rdma_create_event_channel", abi.OpCMDestroyChannel: "rdma_destroy_event_channel",
	abi.OpCMCreateID: "rdma_create_id", abi.OpCMDestroyID: "rdma_destroy_id", abi.OpCMMigrate: "rdma_migrate_id",
	abi.OpCMBind: "rdma_bind_addr", abi.OpCMResolveAddr: "rdma_resolve_addr", abi.OpCMResolveRoute: "rdma_resolve_route",
	abi.OpCMListen: "rdma_listen", abi.OpCMConnect: "rdma_connect", abi.OpCMAccept: "rdma_accept", abi.OpCMReject: "rdma_reject",
	abi.OpCMEstablish: "rdma_establish", abi.OpCMDisconnect: "rdma_disconnect", abi.OpCMNotify: "rdma_notify",
	abi.OpCMInitQPAttr: "rdma_init_qp_attr", abi.OpCMSetOption: "rdma_set_option", abi.OpCMJoin: "rdma_join_multicast", abi.OpCMLeave: "rdma_leave_multicast",
}

// fault returns what the fault program does to a request, and the error with which it fails.
func (c *conn) fault(op *operation, p *control.Packet, owner *conn) (v fault.VerbVerdict, err error) {
	if c.server.config.Faults.Empty() {
		return v, nil
	}
	i := owner.shown.Load()
	call := fault.Call{Verb: verbs[p.Header.Op], NIC: i.Device, PID: c.peer.PID, Comm: c.shown.Load().Comm}
	switch {
	case p.Header.Op == abi.OpOpenDevice: // the NIC is that of the request
		var o abi.OpenDeviceRequest
		if _, err := abi.Decode(p.Body, &o); err == nil {
			if d, ok := c.server.findDevice(abi.Text(o.Name[:])); ok {
				call.NIC = d.Name()
			}
		}
	case call.Verb != "" && call.NIC == "":
		call.NIC = c.cmNIC(op, p)
	}
	v = c.server.config.Faults.Evaluate(call)
	for _, r := range v.Rules {
		what := "verb is slow by the fault program"
		switch {
		case r.Hold:
			what = "verb is held by the fault program"
		case r.Close:
			what = "client is disconnected by the fault program"
			err = errorf(syscall.ENODEV, "fault program, line %d: %s", r.Line, r.Text)
		case r.Errno != 0:
			what = "verb fails by the fault program"
			err = errorf(r.Errno, "fault program, line %d: %s", r.Line, r.Text)
		}
		c.server.ruleActed(what, r, &call)
	}
	return v, err
}

// ruleActed logs what a rule does to a call, and tells the captures of its NIC, or of the first NIC
// if the program has none open.
func (s *Server) ruleActed(what string, r *fault.VerbRule, call *fault.Call) {
	s.log.Info(what, "id", r.ID, "line", r.Line, "rule", r.Text, "nic", call.NIC, "pid", call.PID, "comm", call.Comm)
	for _, d := range s.devices {
		if call.NIC == "" || d.Name() == call.NIC {
			d.engine.Do(func() {
				d.Note(&fault.Note{Rule: r.ID, Text: r.Text, Result: call.Verb, PID: call.PID, Comm: call.Comm})
			})
			return
		}
	}
}

func (s *Server) setConnectionRules(m *cm.Manager) {
	m.Refuse, m.Isolate, m.Linger = s.rejectConnection, s.isolatePeer, s.prolongTimewait
}

// rejectConnection returns the reason with which the fault program rejects a connection to a
// program, or 0.
func (s *Server) rejectConnection(n cm.NIC, listener cm.Owner) (why cm.Reason) {
	call := fault.Call{Verb: fault.VerbConnection, NIC: n.Name(), PID: listener.PID, Comm: listener.Comm}
	for _, r := range s.config.Faults.Evaluate(call).Rules {
		s.ruleActed("connection is rejected by the fault program", r, &call)
		why = r.Reason
	}
	return why
}

// isolatePeer reports whether the fault program makes the peer of a program unreachable.
func (s *Server) isolatePeer(n cm.NIC, requester cm.Owner) (isolated bool) {
	call := fault.Call{Verb: fault.VerbPeer, NIC: n.Name(), PID: requester.PID, Comm: requester.Comm}
	for _, r := range s.config.Faults.Evaluate(call).Rules {
		s.ruleActed("peer is unreachable by the fault program", r, &call)
		isolated = true
	}
	return isolated
}

// prolongTimewait returns by how many nanoseconds the fault program makes the timewait of a
// connection of a program longer.
func (s *Server) prolongTimewait(n cm.NIC, o cm.Owner) int64 {
	call := fault.Call{Verb: fault.VerbTimewait, NIC: n.Name(), PID: o.PID, Comm: o.Comm}
	v := s.config.Faults.Evaluate(call)
	for _, r := range v.Rules {
		s.ruleActed("timewait is prolonged by the fault program", r, &call)
	}
	return int64(v.Delay)
}

// addFaults adds the rules of a program to those that the daemon has.
func (c *conn) addFaults(v *abi.AddFaultsRequest, text []byte) (reply, error) {
	if err := c.checkOperator("adding faults"); err != nil {
		return reply{}, err
	}
	if int64(v.Length) > int64(len(text)) {
		return reply{}, errorf(syscall.EINVAL, "program of %d bytes in a message with %d", v.Length, len(text))
	}
	p, err := fault.Parse(bytes.NewReader(text[:v.Length]))
	if err != nil {
		return reply{}, errorf(syscall.EINVAL, "%v", err)
	}
	if err := p.CheckNICs(c.server.deviceNames()); err != nil {
		return reply{}, errorf(syscall.ENODEV, "%v", err)
	}
	first, last := c.server.config.Faults.Number(p)
	c.server.config.Faults.Add(p)
	for _, d := range c.server.devices {
		d.engine.Do(func() { d.AddFaults(p) })
	}
	c.server.log.Info("fault rules added", "first", first, "last", last, "pid", c.peer.PID)
	return reply{body: []any{abi.AddFaultsReply{First: uint32(first), Last: uint32(last)}}}, nil
}

// removeFault removes a rule, however it came.
func (c *conn) removeFault(v *abi.RemoveFaultRequest, _ *control.Packet) (reply, error) {
	if err := c.checkOperator("removing a fault"); err != nil {
		return reply{}, err
	}
	found := c.server.config.Faults.Remove(int(v.ID))
	for _, d := range c.server.devices {
		d.engine.Do(func() { found = d.RemoveFault(int(v.ID)) || found })
	}
	if !found {
		return reply{}, errorf(syscall.ENOENT, "no rule has the ID %d", v.ID)
	}
	c.server.log.Info("fault rule removed", "id", v.ID, "pid", c.peer.PID)
	return reply{}, nil
}

// verbFaults lists the rules of the fault program for verbs on a NIC. Calls without a NIC count for
// the first one.
func (s *Server) verbFaults(d *nic.Device) (l []nic.FaultInfo) {
	names := []string{d.Name()}
	if d == s.devices[0].Device {
		names = append(names, "")
	}
	for _, c := range s.config.Faults.Counters(names...) {
		l = append(l, nic.FaultInfo{ID: c.Rule.ID, Line: c.Rule.Line, Rule: c.Rule.Text, Matched: c.Matched, Acted: c.Acted})
	}
	return l
}

// wait waits as long as the fault program demands, or until the connection ends. Then it ends the
// connection if the fault program does, for which err is the reason.
func (c *conn) wait(v fault.VerbVerdict, err error) {
	if v.Delay > 0 {
		select {
		case <-time.After(v.Delay):
		case <-c.ctx.Done():
		}
	}
	if v.Held != nil {
		select {
		case <-v.Held:
		case <-c.ctx.Done():
		}
	}
	if n := len(v.Rules); n > 0 && v.Rules[n-1].Close {
		c.end(err)
	}
}
