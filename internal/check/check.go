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
	report, ordered, err := judgeInOrder(rs)
	if ordered || report.Total == 0 {
		return report, err
	}
	other, _, otherErr := judgeInOrder(byTime(rs))
	return fewer(report, err, other, otherErr)
}

// fewer returns the one of two reports on the same frames that has fewer violations, or the first.
func fewer(report *Report, err error, other *Report, otherErr error) (*Report, error) {
	switch {
	case err == nil && otherErr != nil: // a signal ended the pass: it says less than the whole file
		return report, otherErr
	case other.Total < report.Total:
		return other, otherErr
	}
	return report, err
}

// judgeInOrder judges a capture in one order, and reports whether that is the order of its
// timestamps. If the capture is that of a mirror port, its copies are not judged, unless there are
// fewer violations if they are.
func judgeInOrder(rs records) (report *Report, ordered bool, err error) {
	fs, ordered, mirror := survey(rs, nil)
	if mirror == nil {
		report, err = judgeOnce(rs, fs, nil)
		return report, ordered, err
	}
	once, _, _ := survey(rs, mirror.SecondPass())
	report, err = judgeOnce(rs, once, mirror.SecondPass())
	if report.Total > 0 {
		other, otherErr := judgeOnce(rs, fs, nil)
		report, err = fewer(report, err, other, otherErr)
	}
	return report, ordered, err
}

// judgeOnce is the second pass over a capture.
func judgeOnce(rs records, fs *flows, mirror *conversation.Mirror) (*Report, error) {
	j := newJudge(fs)
	j.mirror = mirror
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

// survey is the first pass over a capture, without the copies of a mirror port that is known: it
// finds the flows, whether timestamps are in order, and whether there is a mirror port. It ends at
// the first error, which the second pass reports.
func survey(rs records, known *conversation.Mirror) (fs *flows, ordered bool, shown *conversation.Mirror) {
	s, mirror := conversation.NewSurvey(), conversation.NewMirror()
	ordered = true
	var newest time.Time
	for rec, err := range rs() {
		if err != nil {
			break
		}
		ordered = ordered && !rec.Time.Before(newest)
		newest = rec.Time
		if p, err := conversation.ParseBTH(rec); err == nil && !known.IsCopy(p) {
			mirror.IsCopy(p)
			s.Add(p)
		}
	}
	s.Pair()
	if mirror.SecondPass() == nil {
		mirror = nil
	}
	return newFlows(s), ordered, mirror
}
