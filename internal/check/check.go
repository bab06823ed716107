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
	report, _, err := ReadSurvey(open)
	return report, err
}

// ReadSurvey is Read that also returns what the first pass has found.
func ReadSurvey(open func() (*capture.Reader, error)) (*Report, *Survey, error) {
	r, err := open()
	if err != nil {
		return nil, nil, err
	}
	name := r.Name()
	r.Close()
	report, first, err := judgeRecords(func() iter.Seq2[capture.Record, error] {
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
	return report, first, err
}

// Records judges frames that were captured in this order.
func Records(rs []capture.Record) *Report {
	report, _, _ := judgeRecords(yield(rs))
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
func judgeRecords(rs records) (*Report, *Survey, error) {
	first := survey(rs, nil)
	report, err := first.judge(rs)
	if first.ordered || report.Total == 0 {
		return report, first, err
	}
	sorted := byTime(rs)
	other, otherErr := survey(sorted, nil).judge(sorted)
	report, err = fewer(report, err, other, otherErr)
	return report, first, err
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

// judge judges a capture in the order in which s has surveyed it. If the capture is that of a
// mirror port, its copies are not judged, unless there are fewer violations if they are.
func (s *Survey) judge(rs records) (*Report, error) {
	if s.Mirror == nil {
		return judgeOnce(rs, newFlows(s.Flows), nil)
	}
	report, err := judgeOnce(rs, newFlows(survey(rs, s.Mirror.SecondPass()).Flows), s.Mirror.SecondPass())
	if report.Total > 0 {
		other, otherErr := judgeOnce(rs, newFlows(s.Flows), nil)
		report, err = fewer(report, err, other, otherErr)
	}
	return report, err
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

// A Survey is what the first pass over a capture finds.
type Survey struct {
	Flows       *conversation.Survey
	Mirror      *conversation.Mirror // after its first pass, nil if there is no mirror port
	First, Last time.Time            // the lowest and the highest time of a frame
	ordered     bool                 // timestamps are
}

// survey is the first pass over a capture, without the copies of a mirror port that is known. It
// ends at the first error, which the second pass reports.
func survey(rs records, known *conversation.Mirror) *Survey {
	s := &Survey{Flows: conversation.NewSurvey(), Mirror: conversation.NewMirror(), ordered: true}
	var newest time.Time
	for rec, err := range rs() {
		if err != nil {
			break
		}
		s.ordered = s.ordered && !rec.Time.Before(newest)
		newest = rec.Time
		if s.First.IsZero() || rec.Time.Before(s.First) {
			s.First = rec.Time
		}
		if rec.Time.After(s.Last) {
			s.Last = rec.Time
		}
		if p, err := conversation.ParseBTH(rec); err == nil && !known.IsCopy(p) {
			s.Mirror.IsCopy(p)
			s.Flows.Add(p)
		}
	}
	s.Flows.Pair()
	if s.Mirror.SecondPass() == nil {
		s.Mirror = nil
	}
	return s
}
