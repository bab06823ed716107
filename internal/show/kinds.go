package show

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"softroce/attach"
	"softroce/cm"
	"softroce/internal/daemon"
	"softroce/nic"
	"softroce/wire"
)

// A Kind is one of the arguments of softroce show.
type Kind struct {
	Name string
	Help string

	list func(*daemon.Snapshot) any // for JSON: one element per object
	text func(*daemon.Snapshot, io.Writer, Options)
}

// Options say what the text form has.
type Options struct {
	All    bool             // also counters that are zero
	Before *daemon.Snapshot // if not nil, counters show the change since
}

var kinds = []Kind{
	{"devices", "NICs with their GIDs and P_Keys", func(s *daemon.Snapshot) any { return devices(s) }, func(s *daemon.Snapshot, w io.Writer, _ Options) {
		for _, d := range devices(s) {
			writeDevice(w, d)
		}
	}},
	objects("ctx", "clients, and how much of each resource they hold", func(d *daemon.Device) []nic.ContextInfo { return d.Contexts }, func(c nic.ContextInfo) []any {
		return owned(c.Owner, "pd", c.PDs, "mr", c.MRs, "mw", c.MWs, "cq", c.CQs, "srq", c.SRQs, "qp", c.QPs, "ah", c.AHs, "xrcd", c.XRCDs,
			"dm", c.DMs, "registered", c.RegisteredBytes, "rings", c.RingBytes, "device_memory", c.DeviceMemory)
	}),
	objects("pd", "protection domains", func(d *daemon.Device) []nic.PDInfo { return d.PDs }, func(p nic.PDInfo) []any {
		return owned(p.Owner, "pdn", p.ID, "users", p.Users)
	}),
	objects("mr", "memory regions", func(d *daemon.Device) []nic.MRInfo { return d.MRs }, func(m nic.MRInfo) []any {
		return owned(m.Owner, "mrn", m.ID, "iova", secret(m.Owner, m.IOVA), "length", m.Length, "access", orDash(m.Access), "pdn", m.PD, "dmn", number(m.DM),
			"backing", orDash(m.Backing), "unshared", orDash(m.Unshared))
	}),
	objects("mw", "memory windows", func(d *daemon.Device) []nic.MWInfo { return d.MWs }, func(m nic.MWInfo) []any {
		return owned(m.Owner, "mwn", m.ID, "type", m.Type, "bound", m.Bound, "lqpn", number(m.QPN), "iova", secret(m.Owner, m.IOVA), "length", m.Length,
			"access", orDash(m.Access), "pdn", m.PD)
	}),
	objects("dm", "device memory", func(d *daemon.Device) []nic.DMInfo { return d.DMs }, func(m nic.DMInfo) []any {
		return owned(m.Owner, "dmn", m.ID, "length", m.Length, "users", m.Users)
	}),
	objects("cq", "completion queues", func(d *daemon.Device) []nic.CQInfo { return d.CQs }, func(c nic.CQInfo) []any {
		return owned(c.Owner, "cqn", c.ID, "cqe", c.Entries, "waiting", c.Waiting, "users", c.Users, "events", c.Notified, "overrun", c.Overrun)
	}),
	objects("srq", "shared receive queues", func(d *daemon.Device) []nic.SRQInfo { return d.SRQs }, func(q nic.SRQInfo) []any {
		return owned(q.Owner, "srqn", q.ID, "wr", q.Entries, "sge", q.MaxSGE, "posted", q.Posted, "limit", q.Limit, "users", q.Users,
			"pdn", q.PD, "cqn", number(q.CQ), "xrc_srqn", number(q.Number))
	}),
	objects("qp", "queue pairs, with their retransmissions, timeouts and NAKs", func(d *daemon.Device) []nic.QPInfo { return d.QPs }, qpLine),
	objects("ah", "address handles", func(d *daemon.Device) []nic.AHInfo { return d.AHs }, func(a nic.AHInfo) []any {
		l := owned(a.Owner, "ahn", a.ID, "path", fmt.Sprintf("%v > %v", a.Src, a.Dst), "tclass", a.TClass, "hop_limit", a.HopLimit, "pdn", a.PD)
		if a.RoCEv1 {
			l = append(l, "roce", "v1")
		}
		return l
	}),
	objects("mcast", "multicast groups with their queue pairs", func(d *daemon.Device) []nic.GroupInfo { return d.Groups }, func(g nic.GroupInfo) []any {
		return []any{"group", g.Addr, "lqpn", strings.Trim(strings.ReplaceAll(fmt.Sprint(g.QPs), " ", ","), "[]")}
	}),
	{"cm_id", "identifiers of the connection manager", func(s *daemon.Snapshot) any { return append([]cm.IDInfo{}, s.CMIDs...) }, func(s *daemon.Snapshot, w io.Writer, _ Options) {
		for _, i := range s.CMIDs {
			link := "-"
			if i.Device != "" {
				link = Link{i.Device, i.Port}.String()
			}
			line(w, "link", link, "cm-idn", i.Handle, "lqpn", number(i.QPN), "ps", i.PortSpace, "state", i.State,
				"src-addr", addrPort(i.Src), "dst-addr", addrPort(i.Dst), "client", i.Client, "pid", i.PID, "comm", i.Comm)
		}
	}},
	{"user", "users, and what their clients use of the daemon", func(s *daemon.Snapshot) any { return append([]attach.UserInfo{}, s.Users...) }, func(s *daemon.Snapshot, w io.Writer, _ Options) {
		for _, u := range s.Users {
			line(w, "uid", u.UID, "connections", u.Connections, "mappings", u.Mappings, "descriptors", u.Descriptors,
				"memory", u.Memory, "populated", u.Populated, "waiting", u.Waiting)
		}
	}},
	{"ports", "ports of the fabric's network of switches", func(s *daemon.Snapshot) any { return append([]wire.SwitchPort{}, s.Ports...) }, func(s *daemon.Snapshot, w io.Writer, _ Options) {
		for _, p := range s.Ports {
			line(w, "switch-port", p.Name, "rate", fmt.Sprintf("%.4gGb/s", float64(p.Rate)/1e9), "frames", p.Frames, "bytes", p.Bytes,
				"queue", p.Queue, "mean", int(p.MeanQueue), "max", p.MaxQueue, "marked", p.Marked, "dropped", p.Dropped,
				"pauses-sent", p.PausesSent, "received", p.PausesReceived, "paused", time.Duration(p.Paused))
		}
	}},
	objects("faults", "rules of the fault program, and how many packets they matched", func(d *daemon.Device) []nic.FaultInfo { return d.Faults }, func(f nic.FaultInfo) []any {
		return []any{"id", f.ID, "line", f.Line, "matched", f.Matched, "acted", f.Acted, "overflowed", f.Overflowed, "rule", f.Rule}
	}),
	{"counters", "counters of the NICs, except those that are 0", func(s *daemon.Snapshot) any { return collect(s, counters) }, func(s *daemon.Snapshot, w io.Writer, o Options) {
		before := map[Link]*daemon.Counters{}
		if o.Before != nil {
			for _, c := range collect(o.Before, counters) {
				before[c.Link] = &c.Of
			}
		}
		for _, c := range collect(s, counters) {
			writeCounters(w, c.Link, &c.Of, before[c.Link], o.All)
		}
	}},
}

// qpLine ends with what the queue pair has counted, if it is not 0.
func qpLine(q nic.QPInfo) []any {
	path := "-"
	if q.Dst.IsValid() {
		path = fmt.Sprintf("%v > %v", q.Src, q.Dst)
	}
	l := owned(q.Owner, "lqpn", q.QPN, "rqpn", q.RemoteQPN, "type", q.Type, "state", q.State, "rq-psn", secret(q.Owner, q.RQPSN),
		"sq-psn", secret(q.Owner, q.SQPSN), "mtu", q.PathMTU, "path", path, "sq", q.SendPosted, "rq", q.RecvPosted,
		"pdn", number(q.PD), "send_cqn", number(q.SendCQ), "recv_cqn", number(q.RecvCQ), "srqn", number(q.SRQ), "engine", q.Engine)
	if q.RoCEv1 {
		l = append(l, "roce", "v1")
	}
	if q.Rate > 0 {
		l = append(l, "rate", fmt.Sprintf("%.4gGb/s", float64(q.Rate)/1e9))
	}
	for _, c := range []struct {
		name  string
		value uint64
	}{
		{"retransmitted", q.Retransmitted}, {"timeouts", q.Timeouts}, {"nak_sent", q.NAKsSent}, {"nak_received", q.NAKsReceived},
		{"rnr_nak_sent", q.RNRNAKsSent}, {"rnr_nak_received", q.RNRNAKsReceived},
	} {
		if c.value > 0 {
			l = append(l, c.name, c.value)
		}
	}
	return l
}

// number formats a number, or a dash for 0, which is no object.
func number(n uint32) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(uint64(n), 10)
}

func counters(d *daemon.Device) []daemon.Counters { return []daemon.Counters{d.Counters} }

// objects returns a kind whose text form is one line per object: the link, then the keys and values
// of row.
func objects[T any](name, help string, of func(*daemon.Device) []T, row func(T) []any) Kind {
	return Kind{
		Name: name, Help: help,
		list: func(s *daemon.Snapshot) any { return collect(s, of) },
		text: func(s *daemon.Snapshot, w io.Writer, _ Options) {
			for _, o := range collect(s, of) {
				line(w, append([]any{"link", o.Link}, row(o.Of)...)...)
			}
		},
	}
}

// addrPort formats an address, or a dash if there is none.
func addrPort(a netip.AddrPort) string {
	if !a.IsValid() {
		return "-"
	}
	return a.String()
}

// owned appends the owning process to keysAndValues.
func owned(o nic.Owner, keysAndValues ...any) []any {
	return append(keysAndValues, "client", o.Client, "pid", o.PID, "comm", o.Comm)
}

// secret returns v, or a dash if the daemon did not disclose it.
func secret(o nic.Owner, v any) any {
	if o.Hidden {
		return "-"
	}
	return v
}

// Kinds returns what can be shown.
func Kinds() []Kind { return slices.Clone(kinds) }

// Check returns an error if name is not that of a kind.
func Check(name string) error {
	_, err := find(name)
	return err
}

func find(name string) (*Kind, error) {
	var names []string
	for i := range kinds {
		if kinds[i].Name == name {
			return &kinds[i], nil
		}
		names = append(names, kinds[i].Name)
	}
	return nil, fmt.Errorf("unknown kind %q: want one of %s", name, strings.Join(names, ", "))
}

// Select returns the objects of kind name for JSON output: a list with one element per object.
func Select(s *daemon.Snapshot, name string) (any, error) {
	k, err := find(name)
	if err != nil {
		return nil, err
	}
	return k.list(s), nil
}

// WriteText writes the objects of kind name as text, one line per object, with keys and values
// aligned in columns.
func WriteText(w io.Writer, s *daemon.Snapshot, name string, o Options) error {
	k, err := find(name)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 1, ' ', 0)
	k.text(s, t, o)
	return t.Flush()
}
