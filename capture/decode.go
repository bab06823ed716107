package capture

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"softroce/packet"
)

// DecodeOptions select what Decode prints.
type DecodeOptions struct {
	JSON  bool // a JSON object on each line, instead of text
	Short bool // lines of text with what distinguishes packets: see Packet.AppendShort
	All   bool // also a line for each frame of another protocol

	Filter Match // only the packets that match, if it is not nil: see ParseFilter

	// Remark, if it is not nil, is called for each packet, and its result is printed with the
	// packet. It may return nil.
	Remark func(*Packet) *Remark
}

// Summary counts the frames of a capture.
type Summary struct {
	RoCE       int // packets of RoCE and InfiniBand, also with a wrong ICRC or unreadable headers
	RoCEv1     int // those of RoCE v1
	InfiniBand int // those of InfiniBand
	BadICRC    int
	BadVCRC    int // of InfiniBand packets
	Malformed  int // packets or frames whose headers could not be parsed completely
	Other      int // frames of other protocols
	Cut        int // packets that the capture truncated
	Again      int // packets that were sent again, according to DecodeOptions.Remark
	Filtered   int // packets that DecodeOptions.Filter left out
	Lost       int // frames that the capture lost, according to the file
	Notes      int
}

func (s Summary) String() string {
	text := packetsOf(s.RoCE, s.RoCEv1, s.InfiniBand)
	text += fmt.Sprintf(", %d with a wrong ICRC, %d malformed", s.BadICRC, s.Malformed)
	for _, c := range []struct {
		n    int
		what string
	}{{s.BadVCRC, "with a wrong VCRC"}, {s.Cut, "cut by the capture"}, {s.Again, "sent again"}, {s.Filtered, "left out by the filter"}, {s.Lost, "lost by the capture"}, {s.Notes, "notes"}} {
		if c.n > 0 {
			text += fmt.Sprintf(", %d %s", c.n, c.what)
		}
	}
	return text + fmt.Sprintf("; %d frames of other protocols", s.Other)
}

// packetsOf says in words how many of all packets are of which network.
func packetsOf(all, roceV1, infiniBand int) string {
	var l []string
	for _, c := range []struct {
		n    int
		what string
	}{{all - roceV1 - infiniBand, "RoCEv2"}, {roceV1, "RoCE v1"}, {infiniBand, "InfiniBand"}} {
		if c.n > 0 || all == 0 && len(l) == 0 {
			l = append(l, fmt.Sprintf("%d %s packets", c.n, c.what))
		}
	}
	return strings.Join(l, " and ")
}

// Decode writes a line to w for each packet of r: see Packet.AppendText, Packet.AppendShort
// and Packet.MarshalJSON. It reads one frame at a time. Times in text are seconds since the first
// frame or note. A malformed frame to RoCEv2's UDP port has a line that says so, and so has each
// note, unless there is a filter. If reading ends in an error, Decode returns it after it has
// written everything before.
func Decode(w io.Writer, r *Reader, o DecodeOptions) (Summary, error) {
	d := decoder{w: w, options: o}
	r.OnNote(d.note)
	defer r.OnNote(nil)
	for rec, err := range r.Records() {
		if err = cmp.Or(d.err, err); err != nil {
			return d.sum, err
		}
		if rec.No == 1 {
			d.begin(rec.Time)
		}
		line, err := d.line(rec)
		if err != nil {
			return d.sum, err
		}
		if line == nil {
			continue
		}
		if _, err := w.Write(line); err != nil {
			return d.sum, err
		}
	}
	d.sum.Lost = int(r.Lost())
	return d.sum, d.err
}

type decoder struct {
	w       io.Writer
	options DecodeOptions
	start   time.Time
	began   bool
	sum     Summary
	buf     []byte
	err     error // of writing the line of a note
}

// begin sets the time from which those in text count.
func (d *decoder) begin(at time.Time) {
	if !d.began {
		d.start, d.began = at, true
	}
}

// note writes the line of a note.
func (d *decoder) note(n Note) {
	d.begin(n.Time)
	d.sum.Notes++
	at := seconds(n.Time.Sub(d.start))
	switch {
	case d.options.Filter != nil || d.err != nil:
	case d.options.JSON:
		line, err := newline(json.Marshal(jsonNote{n.Text, epoch(n.Time), n.NIC, n.Rule, n.PID, n.Program, n.QP}))
		if d.err = err; err == nil {
			_, d.err = d.w.Write(line)
		}
	case d.options.Short:
		_, d.err = fmt.Fprintf(d.w, "- %s note %q\n", at, n.Text)
	default:
		_, d.err = fmt.Fprintf(d.w, "- %s note=%q\n", at, n.Text)
	}
}

// line counts a frame and returns its line, nil if it has none.
func (d *decoder) line(rec Record) ([]byte, error) {
	p, err := ParseCut(rec)
	switch {
	case errors.Is(err, packet.ErrNotRoCE):
		d.sum.Other++
		if !d.options.All || d.options.Filter != nil {
			return nil, nil
		}
		return d.other(rec, err)
	case err != nil:
		d.sum.Malformed++
		if d.options.Filter != nil {
			return nil, nil
		}
		return d.other(rec, err)
	}
	d.sum.RoCE++
	d.sum.RoCEv1 += bit(p.Network == packet.RoCEv1)
	d.sum.InfiniBand += bit(p.Network == packet.InfiniBand)
	d.sum.BadVCRC += bit(!p.Cut && !p.VCRCOK())
	d.sum.Cut += bit(p.Cut)
	d.sum.Malformed += bit(p.Err != nil && !p.Cut)
	d.sum.BadICRC += bit(!p.Cut && !p.ICRCOK())
	var remark *Remark
	if d.options.Remark != nil {
		remark = d.options.Remark(p)
		d.sum.Again += bit(remark != nil && remark.Again != nil)
	}
	if d.options.Filter != nil && !d.options.Filter(p) {
		d.sum.Filtered++
		return nil, nil
	}
	switch {
	case d.options.JSON:
		return newline(p.json(remark))
	case d.options.Short:
		d.buf = p.AppendShort(d.buf[:0], d.start)
	default:
		d.buf = p.AppendText(d.buf[:0], d.start)
	}
	if remark != nil {
		d.buf = append(append(d.buf, ' '), remark.String()...)
	}
	d.buf = append(d.buf, '\n')
	return d.buf, nil
}

// other returns the line of a frame that is not a RoCE packet because of err.
func (d *decoder) other(rec Record, err error) ([]byte, error) {
	foreign := errors.Is(err, packet.ErrNotRoCE)
	if d.options.JSON {
		return newline(json.Marshal(jsonOther{rec.No, epoch(rec.Time), rec.Interface, rec.Length, foreign, err.Error()}))
	}
	d.buf = fmt.Appendf(d.buf[:0], "%d %s %s: %d bytes, %v\n",
		rec.No, seconds(rec.Time.Sub(d.start)), word(foreign, "other protocol", "malformed"), rec.Length, err)
	return d.buf, nil
}

// newline ends a line of JSON. Strings of a capture may hold any bytes: control characters that
// JSON permits, but a terminal obeys, are escaped.
func newline(b []byte, err error) ([]byte, error) {
	b = obeyed.ReplaceAllFunc(b, func(c []byte) []byte { return fmt.Appendf(nil, "\\u%04x", []rune(string(c))[0]) })
	return append(b, '\n'), err
}

var obeyed = regexp.MustCompile("[\u007f-\u009f]")
