package show

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"softroce/metrics"
	"softroce/nic"
)

// MarshalJSON puts the fields of o.Of beside those of its link.
func (o object[T]) MarshalJSON() ([]byte, error) {
	link, err := json.Marshal(o.Link)
	if err != nil {
		return nil, err
	}
	of, err := json.Marshal(o.Of)
	if err != nil {
		return nil, err
	}
	return append(append(link[:len(link)-1], ','), of[1:]...), nil
}

// WriteText writes what kind asks for, a line per object. Keys and values stand in columns.
func (s *Snapshot) WriteText(w io.Writer, kind string) error {
	list, err := s.Select(kind)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 1, ' ', 0)
	switch list := list.(type) {
	case []DeviceLine:
		for _, d := range list {
			writeDevice(t, d)
		}
	case []object[nic.QPInfo]:
		for _, q := range list {
			writeQP(t, q.Link, q.Of)
		}
	case []object[nic.MRInfo]:
		for _, m := range list {
			line(t, "link", m.Link, "iova", fmt.Sprintf("%#x", m.Of.IOVA), "length", m.Of.Length, "access", orDash(m.Of.Access),
				"pid", m.Of.PID, "comm", m.Of.Comm)
		}
	case []object[nic.CQInfo]:
		for _, c := range list {
			line(t, "link", c.Link, "cqe", c.Of.Entries, "waiting", c.Of.Waiting, "users", c.Of.Users, "events", c.Of.Notified,
				"overrun", c.Of.Overrun, "pid", c.Of.PID, "comm", c.Of.Comm)
		}
	case []object[Counters]:
		for _, c := range list {
			writeCounters(t, c.Link, &c.Of)
		}
	}
	return t.Flush()
}

// line writes keys and values in columns.
func line(w io.Writer, keysAndValues ...any) {
	var b strings.Builder
	for i := 0; i < len(keysAndValues); i += 2 {
		if i > 0 {
			b.WriteByte('\t')
		}
		fmt.Fprintf(&b, "%v %v", keysAndValues[i], keysAndValues[i+1])
	}
	fmt.Fprintln(w, b.String())
}

func writeDevice(w io.Writer, d DeviceLine) {
	line(w, "link", d.Link, "state", d.State, "physical_state", d.PhysicalState, "netdev", orDash(d.Netdev),
		"mtu", d.ActiveMTU, "node_guid", d.GUID, "clients", d.Clients)
	if d.LinkError != "" {
		fmt.Fprintf(w, "    error %s\n", d.LinkError)
	}
	for _, g := range d.GIDs {
		if g.VLAN != 0 {
			fmt.Fprintf(w, "    gid %d %v vlan %d\n", g.Index, g.Addr, g.VLAN)
		} else {
			fmt.Fprintf(w, "    gid %d %v\n", g.Index, g.Addr)
		}
	}
	for i, k := range d.PKeys {
		fmt.Fprintf(w, "    pkey %d %s\n", i, k)
	}
}

func writeQP(w io.Writer, l Link, q nic.QPInfo) {
	path := "-"
	if q.Dst.IsValid() {
		path = fmt.Sprintf("%v > %v", q.Src, q.Dst)
	}
	line(w, "link", l, "lqpn", q.QPN, "rqpn", q.RemoteQPN, "type", q.Type, "state", q.State, "rq-psn", q.RQPSN,
		"sq-psn", q.SQPSN, "mtu", q.PathMTU, "path", path, "sq", q.SendPosted, "rq", q.RecvPosted, "pid", q.PID, "comm", q.Comm)
}

// writeCounters writes a counter a line: those that have a value whatever it is, of the others
// the ones that have occurred.
func writeCounters(w io.Writer, l Link, c *Counters) {
	for _, k := range metrics.Counters {
		line(w, "link", l, k.Name, c.Values[k.Name])
	}
	for _, kind := range []struct {
		prefix string
		counts map[string]uint64
	}{
		{"rx_opcode", c.RxOpcodes}, {"tx_opcode", c.TxOpcodes}, {"nak_sent", c.NAKsSent},
		{"nak_received", c.NAKsReceived}, {"drop", c.Drops},
	} {
		for _, name := range slices.Sorted(maps.Keys(kind.counts)) {
			line(w, "link", l, kind.prefix+" "+name, kind.counts[name])
		}
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
