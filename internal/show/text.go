package show

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"softroce/internal/daemon"
	"softroce/internal/metrics"
)

// MarshalJSON merges the fields of o.Of with those of its link.
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

// line writes keys and values, separated by tabs, for a tabwriter.
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
		"mtu", d.ActiveMTU, "node_guid", d.GUID, "engines", d.Engines, "clients", d.Clients)
	if d.Via != "" {
		fmt.Fprintf(w, "    via %s\n", d.Via)
	}
	if d.LinkError != "" {
		fmt.Fprintf(w, "    error %s\n", d.LinkError)
	}
	for _, g := range d.GIDs {
		fmt.Fprintf(w, "    gid %d %v", g.Index, g.Addr)
		if g.VLAN != 0 {
			fmt.Fprintf(w, " vlan %d", g.VLAN)
		}
		if g.RoCEv1 {
			fmt.Fprint(w, " RoCE v1")
		}
		fmt.Fprintln(w)
	}
	for i, k := range d.PKeys {
		fmt.Fprintf(w, "    pkey %d %#04x\n", i, k)
	}
}

// writeCounters writes one counter per line, without those that are 0 unless all are wanted. before
// has the values of some time ago, or is nil.
func writeCounters(w io.Writer, l Link, c, before *daemon.Counters, all bool) {
	if before == nil {
		before = c
	}
	write := func(name string, value, was uint64) {
		switch {
		case value == 0 && !all:
		case value > was:
			line(w, "link", l, name, fmt.Sprintf("%d\t+%d", value, value-was))
		default:
			line(w, "link", l, name, value)
		}
	}
	for _, k := range metrics.Counters {
		write(k.Name, c.Values[k.Name], before.Values[k.Name])
	}
	for _, kind := range []struct {
		prefix      string
		counts, was map[string]uint64
	}{
		{"rx_opcode", c.RxOpcodes, before.RxOpcodes}, {"tx_opcode", c.TxOpcodes, before.TxOpcodes},
		{"nak_sent", c.NAKsSent, before.NAKsSent}, {"nak_received", c.NAKsReceived, before.NAKsReceived},
		{"drop", c.Drops, before.Drops},
	} {
		for _, name := range slices.Sorted(maps.Keys(kind.counts)) {
			write(kind.prefix+" "+name, kind.counts[name], kind.was[name])
		}
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
