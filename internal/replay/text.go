package replay

import (
	"fmt"
	"io"
	"strings"
)

// String returns the report as text.
func (r *Report) String() string {
	var b strings.Builder
	r.WriteText(&b)
	return b.String()
}

// WriteText writes the report as text.
func (r *Report) WriteText(w io.Writer) error {
	b := &printer{w: w}
	for _, why := range r.NotCompared {
		b.printf("%s\n", why)
	}
	if r.File != "" {
		b.printf("%s: ", r.File)
	}
	b.printf("%s, %s of RC, %s\n", Count(r.RoCE, "packet"), Count(r.RC, "packet"), Count(len(r.Connections), "connection"))
	if r.Views > 0 {
		b.printf("  captured more than once: %s, compared once\n", Count(r.Views, "packet"))
	}
	if r.Cut > 0 {
		b.printf("  cut: %s, of which only the captured part of the payload was compared\n", Count(r.Cut, "packet"))
	}
	for _, n := range r.Skipped {
		b.printf("  skipped: packet %d: %s\n", n.Packet, n.Text)
	}
	for _, c := range r.Connections {
		for _, s := range c.Streams {
			s.print(b)
		}
	}
	b.printf("%s\n", r.Verdict)
	return b.err
}

func (s *Stream) print(b *printer) {
	b.printf("%v > %v: %s, %s, path MTU %d\n", s.From, s.To, Count(s.Requests, "request"), Count(s.Replies, "reply"), s.PathMTU)
	s.Responder.print(b, "responder")
	s.Requester.print(b, "requester")
}

// WriteText writes the verdict on a side of the connection as text.
func (v *Verdict) WriteText(w io.Writer, side string) error {
	b := &printer{w: w}
	v.print(b, side)
	return b.err
}

func (v *Verdict) print(b *printer, side string) {
	b.printf("  %s: %d compared, %s\n", side, v.Compared, Count(len(v.Differences), "difference"))
	for _, d := range v.Differences {
		b.printf("    DIFFERENCE %v\n", d)
	}
	for _, n := range v.Lost {
		b.printf("    lost: packet %d: %s\n", n.Packet, n.Text)
	}
	for _, n := range v.Copied {
		b.printf("    duplicated: packet %d: %s\n", n.Packet, n.Text)
	}
	for _, n := range v.Overtaken {
		b.printf("    overtaken: packet %d: %s\n", n.Packet, n.Text)
	}
	for _, d := range v.Deviations {
		b.printf("    known deviation: %s%s\n", d.Name, shownBy(d.Packets))
	}
	for _, n := range v.NotJudged {
		b.printf("    not judged: packet %d: %s\n", n.Packet, n.Text)
	}
}

func (e End) String() string {
	if !e.Known {
		return fmt.Sprintf("%v QP ?", e.Addr)
	}
	return fmt.Sprintf("%v QP %#x", e.Addr, e.QPN)
}

func (d Difference) String() string {
	return fmt.Sprintf("packet %d (PSN %d): %s: captured %s, softroce %s", d.Packet, d.PSN, d.Field, d.Captured, d.Softroce)
}

// Count returns a number with the noun that is counted.
func Count(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "y"):
		what = strings.TrimSuffix(what, "y") + "ie"
	}
	if n == 0 {
		return "no " + what + "s"
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// shownBy names the packets that show a deviation, if any do.
func shownBy(packets []int) string {
	if len(packets) == 0 {
		return ""
	}
	return " (" + numbers(packets) + ")"
}

// numbers lists the first few packet numbers.
func numbers(packets []int) string {
	const shown = 8
	var b strings.Builder
	b.WriteString("packet")
	if len(packets) > 1 {
		b.WriteString("s")
	}
	for i, n := range packets {
		if i == shown {
			fmt.Fprintf(&b, " and %d more", len(packets)-shown)
			break
		}
		fmt.Fprintf(&b, " %d", n)
	}
	return b.String()
}

type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, a ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, a...)
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
