// Package top draws what softroce top shows: NICs, queue pairs and clients with their rates, what
// is wrong first.
package top

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"softroce/internal/daemon"
	"softroce/internal/explain"
	"softroce/nic"
)

// A Frame is two snapshots and the time between them, from which rates follow.
type Frame struct {
	Before, Now *daemon.Snapshot
	Elapsed     time.Duration
}

// Size is what there is room for. Zero means no limit.
type Size struct{ Columns, Rows int }

// A Table is rows of cells, of which the first has the names of the columns.
type Table struct {
	Name string     `json:"name"`
	Rows [][]string `json:"rows"`
}

// Tables returns the frame as tables, whose rows are in the order of WriteText, after a summary.
func (f *Frame) Tables() (summary string, tables []Table) {
	list := f.queuePairs()
	return f.summary(list), []Table{
		{"NICs", f.nicRows()}, {"Queue pairs", f.qpRows(list)}, {"Drops", f.dropRows()}, {"Fault rules", f.faultRows()}, {"Clients", f.clientRows(list)},
	}
}

// WriteText writes the frame, without drops and fault rules if there are none. If it has more rows
// than fit, the least interesting ones are left out, and a line says how many.
func (f *Frame) WriteText(w io.Writer, size Size) error {
	head, tables := f.Tables()
	tables = slices.DeleteFunc(tables, func(t Table) bool { return len(t.Rows) == 1 && (t.Name == "Drops" || t.Name == "Fault rules") })
	lines := []string{head}
	room := max(size.Rows-1-len(tables), 0) // without the summary and the empty lines
	left := room
	for i, t := range tables {
		rows := align(t.Rows)
		if size.Rows > 0 {
			n := left
			for _, later := range tables[i+1:] {
				n -= min(len(later.Rows), max(room/6, 2))
			}
			if i == 0 && len(tables) > 1 {
				n = min(n, room/3)
			}
			what := t.Name
			if what != "NICs" {
				what = strings.ToLower(what)
			}
			rows = cut(rows, max(n, 2), what)
			left -= len(rows)
		}
		lines = append(append(lines, ""), rows...)
	}
	var b strings.Builder
	for i, l := range lines {
		if size.Rows > 0 && i >= size.Rows {
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(fit(l, size.Columns))
	}
	if size.Rows == 0 {
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// cut leaves out the last rows of a table so that n lines remain.
func cut(rows []string, n int, what string) []string {
	if len(rows) <= n {
		return rows
	}
	return append(slices.Clone(rows[:n-1]), fmt.Sprintf("… %d more %s", len(rows)-n+1, what))
}

// fit cuts a line to a number of columns.
func fit(l string, columns int) string {
	l = strings.TrimRight(l, " ")
	if columns <= 0 || utf8.RuneCountInString(l) <= columns {
		return l
	}
	return string([]rune(l)[:max(columns-1, 0)]) + "…"
}

// align aligns rows of cells.
func align(rows [][]string) []string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	w.Flush()
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

// A queuePair is a queue pair and its rates in packets per second.
type queuePair struct {
	explain.Explanation
	tx, rx, resent float64
}

// queuePairs returns the queue pairs that exist, what is wrong first, then the busiest.
func (f *Frame) queuePairs() (l []queuePair) {
	type key struct {
		nic         string
		qpn, client uint32
	}
	before := map[key]*nic.QPInfo{}
	for i := range f.Before.Devices {
		d := &f.Before.Devices[i]
		for k := range d.QPs {
			q := &d.QPs[k]
			before[key{d.Name, q.QPN, q.Client}] = q
		}
	}
	for _, x := range explain.All(f.Now) {
		if x.Ended {
			continue
		}
		q := queuePair{Explanation: x}
		if old := before[key{x.NIC, x.QP.QPN, x.QP.Client}]; old != nil && old.State == x.QP.State {
			q.tx = f.Rate(uint64((x.QP.SQPSN-old.SQPSN)&psnMask), 0)
			q.rx = f.Rate(uint64((x.QP.RQPSN-old.RQPSN)&psnMask), 0)
			q.resent = f.Rate(x.QP.Retransmitted, old.Retransmitted)
		}
		l = append(l, q)
	}
	slices.SortStableFunc(l, func(a, b queuePair) int {
		return cmp.Or(a.rank()-b.rank(), cmp.Compare(b.resent, a.resent), cmp.Compare(b.tx+b.rx, a.tx+a.rx))
	})
	return l
}

// rank orders queue pairs by severity, those that work before those that do not yet if packets are
// sent again.
func (q *queuePair) rank() int {
	r := 2 * int(q.Severity)
	if q.Severity == explain.Working && q.resent > 0 {
		r = 2*int(explain.Idle) - 1
	}
	return r
}

const psnMask = 0xffffff

// Rate returns by how much a counter grows in a second. One that is smaller than before was set, by
// softroce counters set.
func (f *Frame) Rate(now, before uint64) float64 {
	if f.Elapsed <= 0 || now < before {
		return 0
	}
	return float64(now-before) / f.Elapsed.Seconds()
}

func (f *Frame) summary(l []queuePair) string {
	var n [explain.Working + 1]int
	for i := range l {
		n[l[i].Severity]++
	}
	ended := 0
	for i := range f.Now.Devices {
		ended += len(f.Now.Devices[i].Ended)
	}
	return fmt.Sprintf("softroce %s  %d NICs  %d clients  %d queue pairs: %d failed, %d stalled, %d idle, %d working; %d failed before (softroce explain)",
		f.Now.Release, len(f.Now.Devices), len(f.Now.Clients), len(l), n[explain.Failed], n[explain.Stalled], n[explain.Idle], n[explain.Working], ended)
}

// nicRows has the NICs whose port is down first, then those that drop, retransmit, and transfer
// most.
func (f *Frame) nicRows() [][]string {
	type row struct {
		cells                 []string
		down, dropped, resent float64
		bits                  float64
	}
	var rows []row
	for i := range f.Now.Devices {
		d := &f.Now.Devices[i]
		old := &daemon.Counters{}
		for k := range f.Before.Devices {
			if f.Before.Devices[k].Name == d.Name {
				old = &f.Before.Devices[k].Counters
			}
		}
		counter := func(name string) float64 { return f.Rate(d.Counters.Values[name], old.Values[name]) }
		r := row{dropped: f.Rate(sum(d.Counters.Drops), sum(old.Drops)), resent: counter("retransmitted")}
		if d.PortState.String() != "ACTIVE" {
			r.down = 1
		}
		tx, rx := 8*counter("port_xmit_bytes"), 8*counter("port_rcv_bytes")
		r.bits = tx + rx
		r.cells = []string{d.Name, d.PortState.String(), si(tx), si(rx), si(counter("port_xmit_packets")), si(counter("port_rcv_packets")),
			si(r.resent), si(r.dropped), fmt.Sprint(len(d.Contexts)), fmt.Sprint(len(d.QPs)), fmt.Sprint(len(d.MRs))}
		rows = append(rows, r)
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.down, a.down), cmp.Compare(b.dropped, a.dropped), cmp.Compare(b.resent, a.resent), cmp.Compare(b.bits, a.bits))
	})
	out := [][]string{{"NIC", "PORT", "TX b/s", "RX b/s", "TX p/s", "RX p/s", "RESENT/s", "DROPPED/s", "CLIENTS", "QPS", "MRS"}}
	for _, r := range rows {
		out = append(out, r.cells)
	}
	return out
}

func (f *Frame) qpRows(l []queuePair) [][]string {
	out := [][]string{{"QP", "TYPE", "STATE", "", "TX p/s", "RX p/s", "RESENT/s", "SQ", "RQ", "PID", "COMM", "WHY"}}
	for i := range l {
		q := &l[i]
		tx, rx := si(q.tx), si(q.rx)
		if q.QP.Hidden {
			tx, rx = "-", "-" // they follow from PSNs, which are shown to the owner
		}
		out = append(out, []string{fmt.Sprintf("%s/%d", q.NIC, q.QP.QPN), q.QP.Type, q.QP.State, q.Severity.String(), tx, rx, si(q.resent),
			fmt.Sprint(q.QP.SendPosted), fmt.Sprint(q.QP.RecvPosted), fmt.Sprint(q.QP.PID), printable(q.QP.Comm), q.Why})
	}
	return out
}

// dropRows has the drop reasons that have occurred, those that occur now first.
func (f *Frame) dropRows() [][]string {
	type row struct {
		cells []string
		rate  float64
		count uint64
	}
	var rows []row
	for i := range f.Now.Devices {
		d := &f.Now.Devices[i]
		before := map[string]uint64{}
		for k := range f.Before.Devices {
			if f.Before.Devices[k].Name == d.Name {
				before = f.Before.Devices[k].Counters.Drops
			}
		}
		for reason, n := range d.Counters.Drops {
			if n > 0 {
				rate := f.Rate(n, before[reason])
				rows = append(rows, row{[]string{d.Name, reason, fmt.Sprint(n), si(rate)}, rate, n})
			}
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.rate, a.rate), cmp.Compare(b.count, a.count), slices.Compare(a.cells, b.cells))
	})
	out := [][]string{{"NIC", "REASON", "DROPPED", "DROPPED/s"}}
	for _, r := range rows {
		out = append(out, r.cells)
	}
	return out
}

func (f *Frame) faultRows() [][]string {
	out := [][]string{{"NIC", "ID", "RULE", "MATCHED", "ACTED"}}
	for i := range f.Now.Devices {
		for _, r := range f.Now.Devices[i].Faults {
			out = append(out, []string{f.Now.Devices[i].Name, fmt.Sprint(r.ID), printable(r.Rule), fmt.Sprint(r.Matched), fmt.Sprint(r.Acted)})
		}
	}
	return out
}

// clientRows has the clients with queue pairs that failed first, then those with stalled ones.
func (f *Frame) clientRows(l []queuePair) [][]string {
	type row struct {
		nic.ContextInfo
		nic             string
		failed, stalled int
	}
	var rows []row
	for i := range f.Now.Devices {
		d := &f.Now.Devices[i]
		for _, c := range d.Contexts {
			r := row{ContextInfo: c, nic: d.Name}
			for k := range l {
				switch q := &l[k]; {
				case q.NIC != d.Name || q.QP.Client != c.Client:
				case q.Severity == explain.Failed:
					r.failed++
				case q.Severity == explain.Stalled:
					r.stalled++
				}
			}
			rows = append(rows, r)
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(b.failed-a.failed, b.stalled-a.stalled, b.QPs-a.QPs)
	})
	out := [][]string{{"CLIENT", "NIC", "PID", "UID", "COMM", "QPS", "FAILED", "STALLED", "MRS", "REGISTERED"}}
	for _, r := range rows {
		out = append(out, []string{fmt.Sprint(r.Client), r.nic, fmt.Sprint(r.PID), fmt.Sprint(r.UID), printable(r.Comm), fmt.Sprint(r.QPs),
			fmt.Sprint(r.failed), fmt.Sprint(r.stalled), fmt.Sprint(r.MRs), si(float64(r.RegisteredBytes)) + "B"})
	}
	return out
}

func sum(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

// printable replaces what a terminal might execute: a program chooses its name.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

// si formats a number with a prefix and three digits.
func si(v float64) string {
	prefix := ""
	for _, p := range []string{"k", "M", "G", "T"} {
		if v < 1000 {
			break
		}
		v, prefix = v/1000, p
	}
	if prefix == "" {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g%s", v, prefix)
}
