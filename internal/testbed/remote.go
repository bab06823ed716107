package testbed

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
)

// A remoteNIC is a NIC whose verbs program runs elsewhere. Each method sends a line to the program
// and waits for the reply. internal/testbed/program/README.md describes the lines.
type remoteNIC struct {
	peer    netip.Addr // address of the script
	link    *LiveLink  // the source of the program; nil if the script started it
	program *programConn
	addr    netip.Addr
	gid     int   // index of its GID of RoCE v2
	roceV1  error // why the link does not carry RoCE v1; nil if it does
	regions map[string]Region
}

// start acquires the program when it is first needed.
func (n *remoteNIC) start() error {
	if n.program != nil {
		return nil
	}
	l, err := n.link.acquireProgram()
	if err != nil {
		return err
	}
	return n.hello(l)
}

// hello starts the conversation and learns the NIC's address and its GID.
func (n *remoteNIC) hello(l *programConn) error {
	n.program = l
	a, err := l.request("hello " + n.peer.String())
	if err != nil {
		return err
	}
	if n.addr, err = netip.ParseAddr(a.word(0)); err != nil {
		return fmt.Errorf("verbs program: invalid address %q", a.word(0))
	}
	n.addr, n.gid = n.addr.Unmap(), int(a.number(1))
	return nil
}

// sync waits until the program, if it is in use, has replied to a line.
func (n *remoteNIC) sync() {
	if n.program != nil {
		n.command("now")
	}
}

func (n *remoteNIC) close() error {
	if n.program == nil {
		return nil
	}
	if n.link != nil && !n.program.broken {
		return n.link.releaseProgram(n.program)
	}
	return n.program.close()
}

// request sends a line of words and returns the values of the reply.
func (n *remoteNIC) request(words ...any) (reply, error) {
	if err := n.start(); err != nil {
		return nil, err
	}
	return n.program.request(strings.TrimSuffix(fmt.Sprintln(words...), "\n"))
}

func (n *remoteNIC) command(words ...any) error {
	_, err := n.request(words...)
	return err
}

// orDash returns a dash in place of an empty name.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Addr implements NIC.
func (n *remoteNIC) Addr() netip.Addr { return n.addr }

// GID implements NIC.
func (n *remoteNIC) GID(vlan uint16, network packet.Network) (int, error) {
	if vlan != 0 {
		return 0, ErrNoVLAN
	}
	if err := n.start(); err != nil || network != packet.RoCEv1 {
		return n.gid, err
	}
	if n.roceV1 != nil {
		return 0, n.roceV1
	}
	a, err := n.request("gid", 1)
	if err != nil && !n.program.broken {
		err = fmt.Errorf("%w: %w", ErrNoRoCEv1, err)
	}
	return int(a.number(0)), err
}

// Register implements NIC.
func (n *remoteNIC) Register(name string, o RegionOptions) (Region, error) {
	a, err := n.request("mr", name, o.Size, o.Fill, uint32(o.Access), orDash(o.PD), orDash(o.Of))
	if err != nil {
		return Region{}, err
	}
	r := Region{Size: o.Size}
	r.Addr, r.LKey, r.RKey = a.number(0), uint32(a.number(1)), uint32(a.number(2))
	n.regions[name] = r
	return r, nil
}

// Deregister implements NIC.
func (n *remoteNIC) Deregister(name string) error { return n.command("dereg", name) }

// ReadMemory implements NIC.
func (n *remoteNIC) ReadMemory(name string, off, size uint64) ([]byte, error) {
	if size == 0 {
		return nil, nil
	}
	a, err := n.request("read", name, off, size)
	if err != nil {
		return nil, err
	}
	return hex.DecodeString(a.word(0))
}

// WriteMemory implements NIC.
func (n *remoteNIC) WriteMemory(name string, off uint64, data []byte) error {
	return n.command("write", name, off, orDash(hex.EncodeToString(data)))
}

// CreateCQ implements NIC.
func (n *remoteNIC) CreateCQ(name string, entries int) error { return n.command("cq", name, entries) }

// Arm implements NIC.
func (n *remoteNIC) Arm(name string, solicited bool) error {
	if solicited {
		return n.command("arm", name, 1)
	}
	return n.command("arm", name, 0)
}

// CompletionEvents implements NIC.
func (n *remoteNIC) CompletionEvents() (l []string, err error) {
	if n.program == nil {
		return nil, nil
	}
	for {
		a, err := n.request("notice")
		if err != nil || len(a) == 0 {
			return l, err
		}
		l = append(l, a.word(0))
	}
}

// CreateSRQ implements NIC.
func (n *remoteNIC) CreateSRQ(name string, o SRQOptions) (uint32, error) {
	a, err := n.request("srq", name, o.Entries, o.Limit, orDash(o.XRCD), orDash(o.CQ))
	return uint32(a.number(0)), err
}

// OpenXRCD implements NIC.
func (n *remoteNIC) OpenXRCD(name string) error { return n.command("xrcd", name) }

// AllocMW implements NIC.
func (n *remoteNIC) AllocMW(name string, t ib.MWType, pd string) (uint32, error) {
	a, err := n.request("mw", name, uint32(t), orDash(pd))
	return uint32(a.number(0)), err
}

// DeallocMW implements NIC.
func (n *remoteNIC) DeallocMW(name string) error { return n.command("free", name) }

// PostBind implements NIC.
func (n *remoteNIC) PostBind(qp, mw, mr string, w *transport.SendWR) (uint32, error) {
	a, err := n.request("bind", qp, w.ID, uint32(w.Flags), mw, orDash(mr), w.Bind.Addr, w.Bind.Length, uint32(w.Bind.Access), w.RKey)
	return uint32(a.number(0)), err
}

// Attach implements NIC.
func (n *remoteNIC) Attach(qp string, group nic.GID, detach bool) error {
	how := "attach"
	if detach {
		how = "detach"
	}
	return n.command(how, qp, group.Addr())
}

// CreateQP implements NIC.
func (n *remoteNIC) CreateQP(name string, o QPOptions) (uint32, error) {
	sigAll := 0
	if o.SigAll {
		sigAll = 1
	}
	a, err := n.request("qp", name, uint32(o.Type), orDash(o.CQ), orDash(o.SRQ), orDash(o.PD), sigAll, o.MaxSendWR, o.MaxRecvWR,
		orDash(o.XRCD))
	return uint32(a.number(0)), err
}

// DestroyQP implements NIC.
func (n *remoteNIC) DestroyQP(name string) error { return n.command("destroy", name) }

// ModifyQP implements NIC.
func (n *remoteNIC) ModifyQP(name string, a nic.QPAttr, mask ib.QPAttrMask) error {
	return n.command("modify", name, uint32(mask), uint8(a.State), a.PathMTU, a.QKey, a.RQPSN, a.SQPSN, a.DestQPN,
		uint32(a.Access), a.MaxRDAtomic, a.MaxDestRDAtomic, a.MinRNRTimer, a.Timeout, a.RetryCount, a.RNRRetry,
		a.PKeyIndex, a.AV.DGID.Addr(), a.AV.TClass, a.AV.HopLimit, a.AV.FlowLabel, a.AV.SL, a.AV.SGIDIndex)
}

// Query implements NIC.
func (n *remoteNIC) Query(name string) (q nic.QPAttr, err error) {
	a, err := n.request("query", name)
	if err != nil {
		return q, err
	}
	q.State, q.PathMTU, q.QKey = ib.QPState(a.number(0)), int(a.number(1)), uint32(a.number(2))
	q.RQPSN, q.SQPSN, q.DestQPN = uint32(a.number(3)), uint32(a.number(4)), uint32(a.number(5))
	q.Access, q.MaxRDAtomic, q.MaxDestRDAtomic = ib.Access(a.number(6)), uint8(a.number(7)), uint8(a.number(8))
	q.MinRNRTimer, q.Timeout, q.RetryCount = uint8(a.number(9)), uint8(a.number(10)), uint8(a.number(11))
	q.RNRRetry, q.PKeyIndex = uint8(a.number(12)), int(a.number(13))
	q.AV.TClass, q.AV.HopLimit, q.AV.FlowLabel, q.AV.SL = uint8(a.number(14)), uint8(a.number(15)), uint32(a.number(16)), uint8(a.number(17))
	return q, nil
}

// State implements NIC.
func (n *remoteNIC) State(name string) (ib.QPState, error) {
	a, err := n.request("state", name)
	return ib.QPState(a.number(0)), err
}

// PostSend implements NIC.
func (n *remoteNIC) PostSend(name string, w *transport.SendWR) error {
	addr, key := w.RemoteAddr, w.RKey
	if d, ok := w.Dest.(Destination); ok && d.PD != "" {
		return ErrNoRings
	}
	if w.Dest != nil { // a datagram has its destination queue pair and Q_Key instead
		addr, key = uint64(w.RemoteQPN), w.RemoteQKey
	}
	words := []any{"send", name, w.ID, uint32(w.Opcode), uint32(w.Flags), w.Imm, addr, key, w.CompareAdd, w.Swap,
		orDash(hex.EncodeToString(w.Inline)), w.RemoteSRQ, w.Flush.Length, w.Flush.Placement, w.Flush.Selectivity}
	return n.command(appendSGEs(words, w.SGEs)...)
}

// PostRecv implements NIC.
func (n *remoteNIC) PostRecv(name string, w *transport.RecvWR) error {
	return n.command(appendSGEs([]any{"recv", name, w.ID | recvID}, w.SGEs)...)
}

func appendSGEs(words []any, sges []transport.SGE) []any {
	words = append(words, len(sges))
	for _, g := range sges {
		words = append(words, g.Addr, g.Length, g.LKey)
	}
	return words
}

// Completions implements NIC.
func (n *remoteNIC) Completions() (l []Completion, err error) {
	if n.program == nil {
		return nil, nil
	}
	for {
		a, err := n.request("poll")
		if err != nil || len(a) == 0 {
			return l, err
		}
		id := a.number(1)
		l = append(l, Completion{QP: a.word(0), Recv: id&recvID != 0, ID: id &^ recvID, Status: ib.WCStatus(a.number(2)),
			Opcode: ib.WCOpcode(a.number(3)), ByteLen: uint32(a.number(4)), Imm: uint32(a.number(5)),
			SrcQP: uint32(a.number(6)), Flags: ib.WCFlags(a.number(7))})
	}
}

// Events implements NIC.
func (n *remoteNIC) Events() (l []Event, err error) {
	if n.program == nil {
		return nil, nil
	}
	for {
		a, err := n.request("event")
		if err != nil || len(a) == 0 {
			return l, err
		}
		e := Event{Type: ib.EventType(a.number(0)), Object: a.word(1)}
		if e.Object == "-" {
			e.Object = ""
		}
		l = append(l, e)
	}
}

// Counters implements NIC: verbs have no counters.
func (n *remoteNIC) Counters() *nic.Counters { return nil }

// A reply holds the values of a reply line that begins with ok.
type reply []string

func (a reply) word(i int) string {
	if i < len(a) {
		return a[i]
	}
	return ""
}

func (a reply) number(i int) uint64 {
	v, _ := strconv.ParseUint(a.word(i), 0, 64)
	return v
}

// Resize implements NIC.
func (n *remoteNIC) Resize(name string, entries int) error { return n.command("resize", name, entries) }

// Limit implements NIC.
func (n *remoteNIC) Limit(name string, limit int) error { return n.command("limit", name, limit) }
