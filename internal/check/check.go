package check

import (
	"iter"

	"softroce/capture"
)

// records yields the frames of a capture; it can be asked for them again.
type records func() iter.Seq2[capture.Record, error]

// File judges a capture file, which has to be one that can be read twice. Violations are
// no error: the report has them. Where the file ends in an error, the report judges what
// was before, and comes with the error.
func File(name string) (*Report, error) {
	r, err := capture.Open(name)
	if err != nil {
		return nil, err
	}
	r.Close()
	report, err := judge(func() iter.Seq2[capture.Record, error] {
		return func(yield func(capture.Record, error) bool) {
			r, err := capture.Open(name)
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
	report, _ := judge(func() iter.Seq2[capture.Record, error] {
		return func(yield func(capture.Record, error) bool) {
			for _, r := range rs {
				if !yield(r, nil) {
					return
				}
			}
		}
	})
	return report
}

// Packets is Records for packets that were parsed already, such as a Recorder's.
func Packets(ps capture.Packets) *Report {
	rs := make([]capture.Record, len(ps))
	for i, p := range ps {
		rs[i] = p.Record
	}
	return Records(rs)
}

func judge(rs records) (*Report, error) {
	s := newSurvey()
	for rec, err := range rs() {
		if err != nil {
			break // the second reading comes to it as well
		}
		s.record(rec)
	}
	s.pair()
	j := &judgement{Report: newReport(), survey: s}
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
