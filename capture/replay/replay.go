package replay

import (
	"errors"

	"softroce/capture"
	"softroce/packet"
)

// Options of a replay.
type Options struct {
	// Strict compares also what an implementation may choose.
	Strict bool
}

// File replays a capture file. Differences are no error: the report has them. Errors are
// those of capture.Open and capture.Reader.
func File(name string, o Options) (*Report, error) {
	r, err := capture.Open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var ps capture.Packets
	var bad []Note
	for rec, err := range r.Records() {
		if err != nil {
			return nil, err
		}
		p, err := capture.Parse(rec)
		switch {
		case err == nil:
			ps = append(ps, p)
		case !errors.Is(err, packet.ErrNotRoCE):
			bad = append(bad, Note{rec.No, err.Error()})
		}
	}
	report, err := Packets(ps, o)
	if err != nil {
		return nil, err
	}
	report.File = name
	report.Skipped = append(bad, report.Skipped...)
	return report, nil
}

// Packets replays packets that were captured in this order.
func Packets(ps capture.Packets, o Options) (*Report, error) {
	r := &Report{Strict: o.Strict, RoCE: len(ps), Skipped: []Note{}, Connections: []*Connection{}}
	return r, nil
}
