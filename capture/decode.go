package capture

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"softroce/packet"
)

// DecodeOptions select what Decode prints.
type DecodeOptions struct {
	JSON bool // a JSON object on each line, instead of text
	All  bool // also a line for each frame of another protocol
}

// Summary counts the frames of a capture.
type Summary struct {
	RoCE      int // RoCEv2 packets, including those with a wrong ICRC or unreadable headers
	BadICRC   int
	Malformed int // RoCEv2 packets or frames whose headers could not be parsed completely
	Other     int // frames of other protocols
}

func (s Summary) String() string {
	return fmt.Sprintf("%d RoCEv2 packets, %d with a wrong ICRC, %d malformed; %d frames of other protocols",
		s.RoCE, s.BadICRC, s.Malformed, s.Other)
}

// Decode writes a line to w for each RoCEv2 packet of r: see Packet.AppendText and
// Packet.MarshalJSON. Times in text are seconds since the first frame. A malformed frame to
// RoCEv2's UDP port has a line that says so. If reading ends in an error, Decode returns it after
// it has written everything before.
func Decode(w io.Writer, r *Reader, o DecodeOptions) (Summary, error) {
	d := decoder{options: o}
	for rec, err := range r.Records() {
		if err != nil {
			return d.sum, err
		}
		if rec.No == 1 {
			d.start = rec.Time
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
	return d.sum, nil
}

type decoder struct {
	options DecodeOptions
	start   time.Time
	sum     Summary
	buf     []byte
}

// line counts a frame and returns its line, nil if it has none.
func (d *decoder) line(rec Record) ([]byte, error) {
	p, err := Parse(rec)
	switch {
	case errors.Is(err, packet.ErrNotRoCE):
		d.sum.Other++
		if !d.options.All {
			return nil, nil
		}
		return d.other(rec, err)
	case err != nil:
		d.sum.Malformed++
		return d.other(rec, err)
	}
	d.sum.RoCE++
	d.sum.Malformed += bit(p.Err != nil)
	d.sum.BadICRC += bit(!p.ICRCOK())
	if d.options.JSON {
		return newline(json.Marshal(p))
	}
	d.buf = append(p.AppendText(d.buf[:0], d.start), '\n')
	return d.buf, nil
}

// other returns the line of a frame that is not a RoCEv2 packet because of err.
func (d *decoder) other(rec Record, err error) ([]byte, error) {
	foreign := errors.Is(err, packet.ErrNotRoCE)
	if d.options.JSON {
		return newline(json.Marshal(jsonOther{rec.No, epoch(rec.Time), rec.Interface, rec.Length, foreign, err.Error()}))
	}
	d.buf = fmt.Appendf(d.buf[:0], "%d %s %s: %d bytes, %v\n",
		rec.No, seconds(rec.Time.Sub(d.start)), word(foreign, "other protocol", "malformed"), rec.Length, err)
	return d.buf, nil
}

func newline(b []byte, err error) ([]byte, error) { return append(b, '\n'), err }
