package show

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"softroce/attach"
	"softroce/cm"
	"softroce/internal/daemon"
	"softroce/nic"
)

// A kind is one of the arguments of softroce show.
type kind struct {
	name string
	list func(*daemon.Snapshot) any // for JSON: one element per object
	text func(*daemon.Snapshot, io.Writer)
}

var kinds = []kind{
	{"devices", func(s *daemon.Snapshot) any { return devices(s) }, func(s *daemon.Snapshot, w io.Writer) {
		for _, d := range devices(s) {
			writeDevice(w, d)
		}
	}},
	objects("ctx", func(d *daemon.Device) []nic.ContextInfo { return d.Contexts }, func(c nic.ContextInfo) []any {
		return owned(c.Owner, "pd", c.PDs, "mr", c.MRs, "mw", c.MWs, "cq", c.CQs, "srq", c.SRQs, "qp", c.QPs, "ah", c.AHs, "xrcd", c.XRCDs,
			"dm", c.DMs,
			"registered", c.RegisteredBytes, "rings", c.RingBytes, "device_memory", c.DeviceMemory)
	}),
	objects("pd", func(d *daemon.Device) []nic.PDInfo { return d.PDs }, func(p nic.PDInfo) []any {
		return owned(p.Owner, "users", p.Users)
	}),
	objects("mr", func(d *daemon.Device) []nic.MRInfo { return d.MRs }, func(m nic.MRInfo) []any {
		return owned(m.Owner, "iova", secret(m.Owner, hex(m.IOVA)), "length", m.Length, "access", orDash(m.Access))
	}),
	objects("mw", func(d *daemon.Device) []nic.MWInfo { return d.MWs }, func(m nic.MWInfo) []any {
		return owned(m.Owner, "type", m.Type, "bound", m.Bound, "lqpn", m.QPN, "iova", secret(m.Owner, hex(m.IOVA)), "length", m.Length, "access", orDash(m.Access))
	}),
	objects("dm", func(d *daemon.Device) []nic.DMInfo { return d.DMs }, func(m nic.DMInfo) []any {
		return owned(m.Owner, "length", m.Length, "users", m.Users)
	}),
	objects("cq", func(d *daemon.Device) []nic.CQInfo { return d.CQs }, func(c nic.CQInfo) []any {
		return owned(c.Owner, "cqe", c.Entries, "waiting", c.Waiting, "users", c.Users, "events", c.Notified, "overrun", c.Overrun)
	}),
	objects("srq", func(d *daemon.Device) []nic.SRQInfo { return d.SRQs }, func(q nic.SRQInfo) []any {
		return owned(q.Owner, "srqn", q.Number, "wr", q.Entries, "sge", q.MaxSGE, "posted", q.Posted, "limit", q.Limit, "users", q.Users)
	}),
	objects("qp", func(d *daemon.Device) []nic.QPInfo { return d.QPs }, func(q nic.QPInfo) []any {
		path := "-"
		if q.Dst.IsValid() {
			path = fmt.Sprintf("%v > %v", q.Src, q.Dst)
		}
		return owned(q.Owner, "lqpn", q.QPN, "rqpn", q.RemoteQPN, "type", q.Type, "state", q.State, "rq-psn", secret(q.Owner, q.RQPSN),
			"sq-psn", secret(q.Owner, q.SQPSN), "mtu", q.PathMTU, "path", path, "sq", q.SendPosted, "rq", q.RecvPosted)
	}),
	objects("ah", func(d *daemon.Device) []nic.AHInfo { return d.AHs }, func(a nic.AHInfo) []any {
		return owned(a.Owner, "path", fmt.Sprintf("%v > %v", a.Src, a.Dst), "tclass", a.TClass, "hop_limit", a.HopLimit)
	}),
	objects("mcast", func(d *daemon.Device) []nic.GroupInfo { return d.Groups }, func(g nic.GroupInfo) []any {
		return []any{"group", g.Addr, "lqpn", strings.Trim(strings.ReplaceAll(fmt.Sprint(g.QPs), " ", ","), "[]")}
	}),
	{"cm_id", func(s *daemon.Snapshot) any { return append([]cm.IDInfo{}, s.CMIDs...) }, func(s *daemon.Snapshot, w io.Writer) {
		for _, i := range s.CMIDs {
			line(w, "link", orDash(i.Device), "cm-idn", i.Handle, "lqpn", i.QPN, "ps", i.PortSpace, "state", i.State,
				"src-addr", addrPort(i.Src), "dst-addr", addrPort(i.Dst), "pid", i.PID, "comm", i.Comm)
		}
	}},
	{"user", func(s *daemon.Snapshot) any { return append([]attach.UserInfo{}, s.Users...) }, func(s *daemon.Snapshot, w io.Writer) {
		for _, u := range s.Users {
			line(w, "uid", u.UID, "connections", u.Connections, "mappings", u.Mappings, "descriptors", u.Descriptors,
				"memory", u.Memory, "populated", u.Populated, "waiting", u.Waiting)
		}
	}},
	objects("faults", func(d *daemon.Device) []nic.FaultInfo { return d.Faults }, func(f nic.FaultInfo) []any {
		return []any{"line", f.Line, "matched", f.Matched, "acted", f.Acted, "overflowed", f.Overflowed, "rule", f.Rule}
	}),
	{"counters", func(s *daemon.Snapshot) any { return collect(s, counters) }, func(s *daemon.Snapshot, w io.Writer) {
		for _, c := range collect(s, counters) {
			writeCounters(w, c.Link, &c.Of)
		}
	}},
}

func counters(d *daemon.Device) []daemon.Counters { return []daemon.Counters{d.Counters} }

// objects returns a kind whose text form is one line per object: the link, then the keys and values
// of row.
func objects[T any](name string, of func(*daemon.Device) []T, row func(T) []any) kind {
	return kind{
		name: name,
		list: func(s *daemon.Snapshot) any { return collect(s, of) },
		text: func(s *daemon.Snapshot, w io.Writer) {
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
	return append(keysAndValues, "pid", o.PID, "comm", o.Comm)
}

// secret returns v, or a dash if the daemon did not disclose it.
func secret(o nic.Owner, v any) any {
	if o.Hidden {
		return "-"
	}
	return v
}

func hex(v uint64) string { return fmt.Sprintf("%#x", v) }

// Kinds returns the names of the kinds that can be shown.
func Kinds() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// Check returns an error if name is not one of Kinds.
func Check(name string) error {
	_, err := find(name)
	return err
}

func find(name string) (*kind, error) {
	if i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name }); i >= 0 {
		return &kinds[i], nil
	}
	return nil, fmt.Errorf("unknown kind %q: want one of %s", name, strings.Join(Kinds(), ", "))
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
func WriteText(w io.Writer, s *daemon.Snapshot, name string) error {
	k, err := find(name)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 1, ' ', 0)
	k.text(s, t)
	return t.Flush()
}
