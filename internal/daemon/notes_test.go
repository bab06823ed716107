package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"softroce/capture"
	"softroce/wire/fault"
)

// readBack returns what a capture has: the number of each frame with its comments, and the notes.
func readBack(t *testing.T, file string) (lines []string) {
	t.Helper()
	r, err := capture.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.OnNote(func(n capture.Note) { lines = append(lines, n.Text) })
	for rec, err := range r.Records() {
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprint(rec.No, rec.Comments))
	}
	return lines
}

// noted makes a recording of two NICs in a file, with frames and notes in various orders.
func noted(t *testing.T, o output, file string) {
	t.Helper()
	r := newRecording(o, []string{"a", "b"})
	frame := make([]byte, 60)
	rule := func(id int, packet string) *fault.Note { return &fault.Note{Rule: id, Text: "drop", Packet: packet} }
	r.note(4e9, 1, 2, rule(1, "p2")) // before its frame
	r.write(5e9, 0, frame, 1)
	r.write(6e9, 1, frame, 2)
	r.note(6e9, 0, 2, rule(2, "p2"))
	r.note(5.5e9, 0, 0, rule(3, "p")) // without a frame, between two
	r.write(7e9, 0, frame, 0)
	go r.drain()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if framesIn(file) == 3 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the frames are not written")
		}
	}
	r.note(8e9, 0, 1, rule(4, "p1")) // its frame is in the file
	r.write(9e9, 0, frame, 0)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
}

func TestRecordingHasCommentsAndNotes(t *testing.T) {
	want := []string{
		"1 []", "fault rule 3: drop (a): p", "2 [fault rule 1: drop (b) fault rule 2: drop (a)]", "3 []",
		"fault rule 4: drop (a): p1", "4 []",
	}
	dir := t.TempDir()
	whole, selected := filepath.Join(dir, "whole"), filepath.Join(dir, "selected")
	f, err := os.Create(whole)
	if err != nil {
		t.Fatal(err)
	}
	noted(t, output{file: f}, whole)
	s := &selection{RecordOptions: RecordOptions{Output: selected, SnapLen: 50}, open: os.Create}
	if err := s.begin(); err != nil {
		t.Fatal(err)
	}
	noted(t, output{selected: s}, selected)
	for _, file := range []string{whole, selected} {
		if got := readBack(t, file); !slices.Equal(got, want) {
			t.Errorf("%s:\n%q\nwant\n%q", filepath.Base(file), got, want)
		}
	}
	// What softroce capture selects from has them too.
	in, err := capture.Open(whole)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	copied := filepath.Join(dir, "copied")
	s = &selection{RecordOptions: RecordOptions{Output: copied, SnapLen: 50}, open: os.Create}
	if err := s.begin(); err != nil {
		t.Fatal(err)
	}
	if err := s.copy(in); err != nil {
		t.Fatal(err)
	}
	if err := s.end(); err != nil {
		t.Fatal(err)
	}
	if got := readBack(t, copied); !slices.Equal(got, want) {
		t.Errorf("copy:\n%q\nwant\n%q", got, want)
	}
}

// framesIn returns how many frames a file has so far.
func framesIn(file string) (n int) {
	r, err := capture.Open(file)
	if err != nil {
		return 0
	}
	defer r.Close()
	for _, err := range r.Records() {
		if err == nil {
			n++
		}
	}
	return n
}

// A note may come some time before its frame. It waits for the next batch, not longer.
func TestNoteWaitsForItsFrame(t *testing.T) {
	r := newRecording(output{}, []string{"a"})
	r.note(1, 0, 9, &fault.Note{Rule: 1, Text: "drop", Packet: "p9"})
	r.note(1, 0, 8, &fault.Note{Rule: 2, Text: "drop", Packet: "p8"})
	var lines []string
	write := func(more bool, headers ...frameHeader) {
		err := r.each(batch{headers: headers}, more, func(rec capture.Record) error {
			lines = append(lines, fmt.Sprint("frame ", rec.Comments))
			return nil
		}, func(n capture.Note) error { lines = append(lines, n.Text); return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	write(true)
	if len(lines) != 0 {
		t.Errorf("%q before the frame", lines)
	}
	write(true, frameHeader{wallNs: 2, mark: 9})
	if want := []string{"fault rule 2: drop (a): p8", "frame [fault rule 1: drop (a)]"}; !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
}

func TestRecordingBoundsNotes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	r := newRecording(output{file: f}, []string{"a"})
	for range maxNotes + 3 {
		r.note(1, 0, 0, &fault.Note{Text: "drop"})
	}
	go r.drain()
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	if got := readBack(t, file); len(got) != maxNotes+1 || got[maxNotes] != "the capture lost 3 notes" {
		t.Errorf("%d notes, the last is %q", len(got), got[len(got)-1])
	}
}
