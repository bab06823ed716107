package report

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"softroce/internal/check"
	"softroce/internal/htmlpage"
	"softroce/packet"
)

// What the page consists of, beside what it shares with others.
var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageCSS string
	//go:embed page/page.js
	pageJS string
)

var pages = template.Must(template.New("page").Funcs(template.FuncMap{"number": number, "bytes": byteCount, "duration": shortDuration}).Parse(pageHTML))

// WriteHTML writes the page.
func (r *Report) WriteHTML(to io.Writer) error {
	w := bufio.NewWriterSize(to, 1<<16)
	err := pages.ExecuteTemplate(w, "top", map[string]any{
		"Report": r, "Verdict": r.verdict(), "Rows": r.rows(), "Notices": r.notices(), "Policy": contentPolicy,
		"CSS": template.CSS(htmlpage.UPlotCSS + htmlpage.BaseCSS + pageCSS),
	})
	if err != nil {
		return err
	}
	b := r.collect()
	meta, err := json.Marshal(r.meta(&b)) // escapes what could end the element
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "<script type=\"application/json\" id=\"meta\">%s</script>\n", meta)
	for _, script := range scripts {
		fmt.Fprintf(w, "<script>%s</script>\n", script)
	}
	for i, x := range slices.Concat(b.levels, b.points, b.edges, b.texts) {
		fmt.Fprintf(w, "<script type=\"text/plain\" id=\"b%d\">%s</script>\n", i, x.text())
	}
	if err := pages.ExecuteTemplate(w, "bottom", nil); err != nil {
		return err
	}
	return w.Flush()
}

var (
	scripts       = []string{htmlpage.UPlotJS, htmlpage.PlotJS, pageJS}
	contentPolicy = htmlpage.Policy(scripts...)
)

// A verdict is the sentence that the page begins with.
type verdict struct {
	Class, Sign, Text string
}

func (r *Report) verdict() verdict {
	text := strings.ToUpper(r.Check.Verdict[:1]) + r.Check.Verdict[1:] + "."
	switch {
	case r.Check.Total > 0:
		return verdict{"bad", "✗", text}
	case len(r.Check.Incomplete()) > 0:
		return verdict{"partial", "?", text}
	}
	return verdict{"good", "✓", text}
}

// notices says what the page does not show, and what the capture lacks.
func (r *Report) notices() []string {
	n := append([]string{}, r.Check.NotJudged...)
	if r.Interrupted != nil {
		n = append(n, "The capture was not read to its end: "+r.Interrupted.Error())
	}
	for _, x := range []struct {
		count int
		text  string
	}{
		{int(r.Lost), "frames are missing: the capture could not keep up"},
		{r.Malformed, "frames to RoCEv2's UDP port, or of InfiniBand, cannot be parsed, and are not shown"},
		{r.Check.Views, "packets were captured more than once, and are shown once"},
		{r.Beyond, fmt.Sprintf("packets are not shown: they belong to more than %d connections", maxConnections)},
		{r.Unlisted, fmt.Sprintf("packets are counted, but not in the diagrams, which hold %d packets", maxPackets)},
		{r.Unsaid, "comments and notes are not shown"},
		{r.Check.Total - len(r.Check.Violations), "more violations are not listed"},
	} {
		if x.count > 0 {
			n = append(n, number(x.count)+" "+x.text)
		}
	}
	return n
}

// A row is a connection in the table.
type row struct {
	*Connection
	Index      int
	Operations string
	Bytes      int64
	SentAgain  int
	Timeouts   int
	NAKs       int
	RNRs       int
	Refused    int
	Latencies  []latency
}

type latency struct {
	Name  string
	Value time.Duration
	Known bool
}

func (r *Report) rows() []row {
	rows := make([]row, len(r.Connections))
	for i, c := range r.Connections {
		w := row{Connection: c, Index: i, Operations: c.operations()}
		var all []time.Duration
		for _, s := range c.Streams {
			w.Bytes += s.Bytes
			w.SentAgain += s.SentAgain
			w.Timeouts += s.Timeouts
			w.NAKs += s.NAKs
			w.RNRs += s.RNRs
			w.Refused += s.Refused
			all = merge(all, s.Latencies)
		}
		for _, p := range []struct {
			name  string
			share float64
		}{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1}} {
			w.Latencies = append(w.Latencies, latency{p.name, percentile(all, p.share), len(all) > 0})
		}
		rows[i] = w
	}
	return rows
}

// merge returns the durations of two sorted lists in order.
func merge(a, b []time.Duration) []time.Duration {
	if len(a) == 0 || len(b) == 0 {
		return append(a, b...)
	}
	m := make([]time.Duration, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0] <= b[0] {
			m, a = append(m, a[0]), a[1:]
		} else {
			m, b = append(m, b[0]), b[1:]
		}
	}
	return append(append(m, a...), b...)
}

// kinds are the names of operations, in the order in which the table has them.
var kinds = []struct {
	kind packet.Kind
	name string
}{
	{packet.KindSend, "SEND"}, {packet.KindWrite, "WRITE"}, {packet.KindRead, "READ"}, {packet.KindCompareSwap, "CMP_SWAP"},
	{packet.KindFetchAdd, "FETCH_ADD"}, {packet.KindFlush, "FLUSH"}, {packet.KindAtomicWrite, "ATOMIC_WRITE"},
}

// operations says which messages a connection has, in both directions.
func (c *Connection) operations() string {
	var parts []string
	for _, k := range kinds {
		if n := c.Streams[0].Messages[k.kind] + c.Streams[1].Messages[k.kind]; n > 0 {
			parts = append(parts, number(n)+" "+k.name)
		}
	}
	return strings.Join(parts, ", ")
}

// number formats a count with thin spaces between groups of three digits.
func number(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// byteCount formats a number of bytes with three digits.
func byteCount(n int64) string {
	f, unit := float64(n), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for f >= 1024 && unit < len(units)-1 {
		f /= 1024
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.3g %s", f, units[unit])
}

// shortDuration formats a duration with three digits.
func shortDuration(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}} {
		if d >= u.unit {
			return fmt.Sprintf("%.3g\u202f%s", float64(d)/float64(u.unit), u.name)
		}
	}
	return fmt.Sprintf("%d\u202fns", d)
}

// blobs are compressed data, each an element of the page with a number as its id. They are written
// in the order in which the page needs them: it draws the coarsest levels while it is loading.
type blobs struct{ levels, points, edges, texts []*blob }

// collect numbers the blobs of the connections.
func (r *Report) collect() (b blobs) {
	for _, c := range r.Connections {
		b.levels = append(b.levels, c.levels.blobs...)
		for _, p := range c.points.chunks {
			b.points = append(b.points, p.blob)
		}
		for _, s := range c.Streams {
			for _, e := range s.edges.chunks {
				b.edges = append(b.edges, e.blob)
			}
		}
		b.texts = append(b.texts, c.points.texts...)
	}
	return b
}

// What the script reads: see page.js. Times are nanoseconds since the start of the capture, PSNs
// are relative to the first of their stream.
type (
	metaPage struct {
		Duration    int64             `json:"duration"`
		Detail      int               `json:"detail"`
		ChunkPoints int               `json:"chunk_points"`
		ChunkTexts  int               `json:"chunk_texts"`
		BlockFactor int               `json:"block_factor"`
		Opcodes     map[string]string `json:"opcodes"` // by number
		Connections []metaConnection  `json:"connections"`
		Violations  []check.Violation `json:"violations"`
		Comments    []metaMark        `json:"comments"`
		Spots       [][3]int          `json:"spots"` // packet number, connection, index in it
	}
	metaConnection struct {
		Service string        `json:"service"`
		Ends    [2]string     `json:"ends"`
		Packets int           `json:"packets"`
		First   int64         `json:"first"`
		Last    int64         `json:"last"`
		Streams [2]metaStream `json:"streams"`
		Chunks  [][4]int64    `json:"chunks"` // id, packets, lowest and highest time
		Texts   []int         `json:"texts"`  // ids
		Levels  []metaLevel   `json:"levels"` // the finest first
	}
	metaStream struct {
		PSN      uint32     `json:"psn"`
		Requests int        `json:"requests"`
		Edges    [][2]int64 `json:"edges"`       // time and PSN, -1 if the limit has no PSN in the capture; of many, some
		Chunks   [][4]int64 `json:"edge_chunks"` // of all, as those of a connection
	}
	metaLevel struct {
		ID int `json:"id"`
		N  int `json:"n"`
	}
	metaMark struct {
		Packet int    `json:"packet"`
		Text   string `json:"text"`
	}
)

// meta returns what the script needs to find the compressed data.
func (r *Report) meta(b *blobs) *metaPage {
	level, point := 0, len(b.levels) // the next blobs
	edge := point + len(b.points)
	text := edge + len(b.edges)
	m := &metaPage{
		Duration: int64(r.Duration), Detail: detail, ChunkPoints: chunkPoints, ChunkTexts: chunkTexts, BlockFactor: blockFactor,
		Opcodes: map[string]string{}, Connections: []metaConnection{}, Violations: r.Check.Violations, Comments: []metaMark{}, Spots: [][3]int{},
	}
	for o := range 256 {
		m.Opcodes[fmt.Sprint(o)] = packet.Opcode(o).String()
	}
	for i, c := range r.Connections {
		k := metaConnection{
			Service: c.Service, Ends: [2]string{c.Ends[0].String(), c.Ends[1].String()}, Packets: c.points.n,
			First: int64(c.First.Sub(r.Start)), Last: int64(c.Last.Sub(r.Start)), Chunks: [][4]int64{}, Texts: []int{}, Levels: []metaLevel{},
		}
		for j, s := range c.Streams {
			k.Streams[j] = metaStream{PSN: s.PSN, Requests: s.Requests, Edges: append([][2]int64{}, s.edges.overview...), Chunks: [][4]int64{}}
			for _, e := range s.edges.chunks {
				k.Streams[j].Chunks = append(k.Streams[j].Chunks, e.meta(edge))
				edge++
			}
		}
		for _, l := range c.levels.blocks {
			k.Levels = append(k.Levels, metaLevel{level, len(l)})
			level++
		}
		for _, p := range c.points.chunks {
			k.Chunks = append(k.Chunks, p.meta(point))
			point++
		}
		for range c.points.texts {
			k.Texts = append(k.Texts, text)
			text++
		}
		for _, s := range c.spots {
			m.Spots = append(m.Spots, [3]int{s.no, i, s.index})
		}
		m.Connections = append(m.Connections, k)
	}
	for _, c := range r.Comments {
		m.Comments = append(m.Comments, metaMark(c))
	}
	return m
}
