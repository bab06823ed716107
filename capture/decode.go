package capture

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"softroce/packet"
)

// DecodeOptions say what Decode prints.
type DecodeOptions struct {
	JSON bool // a JSON object on each line, instead of text
	All  bool // also a line for each frame of another protocol
}

// Summary counts the frames of a capture.
type Summary struct {
	RoCE      int // RoCEv2 packets, those with wrong ICRCs and unreadable headers too
	BadICRC   int
	Malformed int // RoCEv2 packets or frames that could not be read to the end of their headers
	Other     int // frames of other protocols
}

func (s Summary) String() string {
	return fmt.Sprintf("%d RoCEv2 packets, %d with a wrong ICRC, %d malformed; %d frames of other protocols",
		s.RoCE, s.BadICRC, s.Malformed, s.Other)
}

// Decode prints a line to w for every RoCEv2 packet that r yields: see Packet.AppendText
// and Packet.MarshalJSON. Times in text are seconds since the first frame. A frame that
// went to the port of RoCEv2 and is malformed has a line that says so. Where the capture
// ends in an error, that error is returned after everything before it was printed.
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

// line counts a frame and returns its line, or nil if it gets none.
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

// other returns the line of a frame that is no RoCEv2 packet, for the reason err.
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
