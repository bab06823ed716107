package check

import (
	"iter"
	"time"

	"softroce/capture"
	"softroce/internal/conversation"
)

// records yields the frames of a capture. It can be called more than once.
type records func() iter.Seq2[capture.Record, error]

// File judges a capture file. Violations are not an error: the report lists them. If reading ends
// in an error, File returns the error and a report on the packets before it.
func File(name string) (*Report, error) {
	return Read(func() (*capture.Reader, error) { return capture.Open(name) })
}

// Read is File for a capture that open opens, each time from its beginning.
func Read(open func() (*capture.Reader, error)) (*Report, error) {
	r, err := open()
	if err != nil {
		return nil, err
	}
	name := r.Name()
	r.Close()
	report, err := judgeRecords(func() iter.Seq2[capture.Record, error] {
		return func(yield func(capture.Record, error) bool) {
			r, err := open()
			if err != nil {
				yield(capture.Record{}, err)
				return
			}
			defer r.Close()
			r.Records()(yield)
		}
	})
	report.File = name
	return report, err
}

// Records judges frames that were captured in this order.
func Records(rs []capture.Record) *Report {
	report, _ := judgeRecords(yield(rs))
	return report
}

// yield returns frames in memory as records.
func yield(rs []capture.Record) records {
	return func() iter.Seq2[capture.Record, error] {
		return func(yield func(capture.Record, error) bool) {
			for _, r := range rs {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

// Packets judges packets that are parsed already, such as those of a Recorder.
func Packets(ps capture.Packets) *Report {
	rs := make([]capture.Record, len(ps))
	for i, p := range ps {
		rs[i] = p.Record
	}
	return Records(rs)
}

// judgeRecords judges a capture in the order of its file. If its timestamps have another order, the
// one with fewer violations is right: several queues of a NIC may be merged in any order, but then
// hosts also set their clocks.
func judgeRecords(rs records) (*Report, error) {
	fs, ordered := survey(rs)
	report, err := judgeInOrder(rs, fs)
	if ordered || report.Total == 0 {
		return report, err
	}
	rs = byTime(rs)
	fs, _ = survey(rs)
	other, otherErr := judgeInOrder(rs, fs)
	switch {
	case err == nil && otherErr != nil: // a signal ended the pass: it says less than the whole file
		return report, otherErr
	case other.Total < report.Total:
		return other, otherErr
	}
	return report, err
}

func judgeInOrder(rs records, fs *flows) (*Report, error) {
	j := newJudge(fs)
	for rec, err := range rs() {
		if err != nil {
			j.finish()
			return j.Report, err
		}
		j.record(rec)
	}
	j.finish()
	return j.Report, nil
}

// survey is the first pass over a capture: it finds the flows, and whether timestamps are in order.
// It ends at the first error, which the second pass reports.
func survey(rs records) (fs *flows, ordered bool) {
	s := conversation.NewSurvey()
	ordered = true
	var newest time.Time
	for rec, err := range rs() {
		if err != nil {
			break
		}
		ordered = ordered && !rec.Time.Before(newest)
		newest = rec.Time
		if p, err := conversation.ParseBTH(rec); err == nil {
			s.Add(p)
		}
	}
	s.Pair()
	return newFlows(s), ordered
}
