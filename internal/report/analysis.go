package report

import (
	"errors"
	"io"
	"slices"
	"time"

	"softroce/capture"
	"softroce/internal/check"
	"softroce/internal/conversation"
	"softroce/packet"
)

// Bounds on what is kept of a capture.
const (
	maxConnections = 1 << 11 // with a row and diagrams of their own
	maxPackets     = 1 << 22 // that are on the page
	maxComments    = 10000
	maxNotes       = 1000
)

// Passes is how often Read reads a capture, at least.
const Passes = 3

// A Report is what the page shows.
type Report struct {
	Check       *check.Report
	Name        string // of the capture
	Start       time.Time
	Duration    time.Duration
	Connections []*Connection
	Comments    []Mark
	Notes       []capture.Note

	Beyond    int    // packets of connections that have no row
	Unlisted  int    // packets of listed connections that the page cannot show one by one
	Lost      uint64 // frames that the capture has lost, according to the file
	Malformed int    // frames to RoCEv2's UDP port, or of InfiniBand, that are not packets
	Unsaid    int    // comments and notes beyond their bounds

	Interrupted error // why reading ended early
}

// A Mark is a comment on a packet.
type Mark struct {
	Packet int
	Text   string
}

// Read analyzes a capture that open opens, each time from its beginning. If reading ends in an
// error, Read returns the error and a report on the packets before it.
func Read(open func() (*capture.Reader, error)) (*Report, error) {
	judged, first, err := check.ReadSurvey(open)
	if judged == nil {
		return nil, err
	}
	a := newAnalysis(judged, first, err)
	if err := a.pass(open); err != nil && a.Interrupted == nil {
		a.Interrupted = err
	}
	a.finish()
	return a.Report, a.Interrupted
}

// An analysis makes a report. It reads the capture once, after check has.
type analysis struct {
	*Report
	*compressor
	began    bool
	flows    *conversation.Survey
	mirror   *conversation.Mirror // of the second pass
	views    *conversation.Views
	remarks  *conversation.Remarks
	violated map[int]bool // numbers of packets that break a rule

	byFlow     map[*conversation.Flow]*Connection
	byEnds     map[ends]*Connection // of packets without a flow
	gap        time.Duration        // between packets, that ends a block of a level of detail
	points     int
	end        time.Time
	latencies  int
	textBuffer []byte
}

func newAnalysis(judged *check.Report, first *check.Survey, err error) *analysis {
	a := &analysis{
		Report: &Report{Check: judged, Name: judged.File, Interrupted: err}, compressor: newCompressor(),
		flows: first.Flows, gap: max(first.Last.Sub(first.First)/cuts, time.Microsecond),
		views: conversation.NewViews(), remarks: conversation.NewRemarks(), violated: map[int]bool{},
		byFlow: map[*conversation.Flow]*Connection{}, byEnds: map[ends]*Connection{},
	}
	if first.Mirror != nil {
		a.mirror = first.Mirror.SecondPass()
	}
	for _, v := range judged.Violations {
		a.violated[v.Packet] = true
	}
	return a
}

// pass adds each frame and note.
func (a *analysis) pass(open func() (*capture.Reader, error)) error {
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	r.OnNote(a.note)
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		a.add(rec)
	}
	a.Lost = r.Lost()
	return nil
}

// note keeps a note between the packets.
func (a *analysis) note(n capture.Note) {
	a.begin(n.Time)
	if len(a.Notes) == maxNotes {
		a.Unsaid++
		return
	}
	a.Notes = append(a.Notes, n)
}

// begin sets the time from which those on the page count: that of the first frame or note.
func (a *analysis) begin(at time.Time) {
	if !a.began {
		a.began, a.Start, a.end = true, at, at
	}
	if at.After(a.end) {
		a.end = at
	}
}

// add makes the point of a frame.
func (a *analysis) add(rec capture.Record) {
	a.begin(rec.Time)
	p, err := conversation.ParseBTH(rec)
	if errors.Is(err, packet.ErrNotRoCE) {
		return
	}
	if err != nil {
		a.Malformed++
		return
	}
	shown := p
	if conversation.IsCut(rec) {
		if cut, err := capture.ParseCut(rec); err == nil {
			shown = cut
		}
	}
	remark := a.remarks.On(shown)
	if a.mirror.IsCopy(p) || a.views.IsAnother(p) {
		return
	}
	c, side := a.connection(p)
	if c == nil {
		a.Beyond++
		return
	}
	c.add(a, side, observation{Packet: p, shown: shown, remark: remark})
}

// An observation is a packet with what is known of it.
type observation struct {
	*capture.Packet
	shown  *capture.Packet // the packet as decode has it: cut, if the capture has only a part
	remark *capture.Remark
}

// finish ends the connections, and puts first what is wrong.
func (a *analysis) finish() {
	a.Duration = a.end.Sub(a.Start)
	for _, c := range a.Connections {
		c.finish()
	}
	slices.SortStableFunc(a.Connections, func(x, y *Connection) int { return y.compareTrouble(x) })
}
