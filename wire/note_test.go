package wire

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"softroce/wire/fault"
)

// noteList is a NoteSink that keeps the comments of each frame, and the notes without a frame.
type noteList struct {
	frames []uint64 // their marks
	list   []string // in the order in which they came
	marks  []uint64 // of list
}

func (l *noteList) WriteFrame(int64, int, []byte) error { panic("a NoteSink gets marked frames") }

func (l *noteList) WriteMarked(_ int64, _ int, _ []byte, mark uint64) error {
	l.frames = append(l.frames, mark)
	return nil
}

func (l *noteList) WriteNote(_ int64, _ int, mark uint64, n *fault.Note) error {
	text := n.Comment()
	if mark == 0 {
		text = n.String()
	}
	l.list, l.marks = append(l.list, text), append(l.marks, mark)
	return nil
}

// lines returns the comments of each frame by its number, and the other notes.
func (l *noteList) lines() (lines []string) {
	for i, text := range l.list {
		at := slices.Index(l.frames, l.marks[i])
		if l.marks[i] == 0 {
			lines = append(lines, "- "+text)
		} else {
			lines = append(lines, fmt.Sprintf("%d %s", at, text))
		}
	}
	return lines
}

func TestFaultNotesSayWhatRulesDid(t *testing.T) {
	const packet = ": 192.0.2.1 > 192.0.2.2 qp 0x11 psn "
	for _, c := range []struct {
		program string
		dir     fault.Direction
		want    string
	}{
		{"drop nth 2", fault.Sent, "- fault rule 1: drop nth 2 (send)" + packet + "1 RC_WRITE_MIDDLE"},
		{"drop nth 2", fault.Received, "1 fault rule 1: drop nth 2 (receive)"},
		{"mark nth 1\nset psn 9 nth 1", fault.Sent, "0 fault rule 1: mark nth 1 (send)\n0 fault rule 2: set psn 9 nth 1 (send)"},
		{"mark nth 1\ndrop nth 1", fault.Received, "0 fault rule 1: mark nth 1 (receive)\n0 fault rule 2: drop nth 1 (receive)"},
		{"duplicate 2 nth 3", fault.Sent, "2 fault rule 1: duplicate 2 nth 3 (send)\n3 fault rule 1: duplicate 2 nth 3, copy 1 (send)\n4 fault rule 1: duplicate 2 nth 3, copy 2 (send)"},
		{"duplicate 2 nth 3", fault.Received, "2 fault rule 1: duplicate 2 nth 3 (receive)"},
		{"delay 1us nth 1", fault.Sent, "3 fault rule 1: delay 1us nth 1 (send)"},
		{"delay 0s nth 1", fault.Sent, "0 fault rule 1: delay 0s nth 1 (send)"},
		{"reorder nth 2", fault.Sent, "2 fault rule 1: reorder nth 2 (send)"},
		{"rate 1Gbit queue 1 psn 2..3", fault.Sent, "- fault rule 1: rate 1Gbit queue 1 psn 2..3, dropped because the queue is full (send)" + packet + "3 RC_WRITE_MIDDLE\n2 fault rule 1: rate 1Gbit queue 1 psn 2..3 (send)"},
		{"drop psn 99", fault.Sent, ""},
	} {
		program, err := fault.Parse(strings.NewReader(c.program))
		if err != nil {
			t.Fatal(err)
		}
		for i := range program.Rules {
			program.Rules[i].ID = i + 1
		}
		fabric, sink := NewFabric(), &noteList{}
		f := NewFaultLink(NewShapedLink(NewCaptureLink(fabric.NewLink(nil, addrA), sink, CaptureOptions{FirstMark: 1 << 48}), Shape{}), program)
		peer := fabric.NewLink(nil, addrB)
		passThrough(t, f, peer, c.dir, 4, 1e9)
		got := strings.Join(sink.lines(), "\n")
		if got != c.want {
			t.Errorf("%s, direction %v:\n%s\nwant\n%s", c.program, c.dir, got, c.want)
		}
		if acted := f.RuleCounters()[0].Acted; acted > uint64(len(sink.list)) {
			t.Errorf("%s: %d notes, acted %d", c.program, len(sink.list), acted)
		}
	}
}

// A FaultLink whose rules do not act allocates nothing for notes while a capture runs.
func TestNotesOfIdleRulesDoNotAllocate(t *testing.T) {
	program, err := fault.Parse(strings.NewReader("drop psn 99\nmark receive psn 99"))
	if err != nil {
		t.Fatal(err)
	}
	fabric := NewFabric()
	f := NewFaultLink(NewCaptureLink(fabric.NewLink("engine", addrA), silentSink{}, CaptureOptions{}), program)
	peer := fabric.NewLink("engine", addrB)
	tx, back := []TxFrame{frame(aToB, 0, make([]byte, 100))}, []TxFrame{frame(bToA, 0, make([]byte, 100))}
	var rx [4]RxFrame
	round := func() {
		f.Send(1, tx)
		peer.Receive(1, rx[:])
		peer.Send(1, back)
		f.Receive(1, rx[:])
	}
	round()
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// silentSink is a NoteSink that keeps nothing.
type silentSink struct{ nowhere }

func (silentSink) WriteMarked(int64, int, []byte, uint64) error    { return nil }
func (silentSink) WriteNote(int64, int, uint64, *fault.Note) error { return nil }

func TestEachRuleReportsItsFirstAction(t *testing.T) {
	f, peer := newTestFaultLink(t, "mark nth 2\nset psn 5 every 2\ndrop psn 99")
	var first []string
	f.OnFirst(func(r *fault.Rule) { first = append(first, r.String()) })
	passThrough(t, f, peer, fault.Sent, 8, 0)
	if got := strings.Join(first, "; "); got != "mark nth 2; set psn 5 every 2" {
		t.Errorf("first actions: %s", got)
	}
}
