package capture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"softroce/packet"
)

var aNote = Note{
	Time: time.UnixMicro(1_700_000_000_000_100).UTC(), Text: "fault rule 1: fail create_qp ENOMEM (nic0, pid 12, a)",
	NIC: "nic0", Rule: 1, PID: 12, Program: "a", QP: 17,
}

// noted returns a capture with two packets, the first of which has comments, and notes between.
func noted(t *testing.T, comments []string, notes ...Note) []byte {
	t.Helper()
	var file bytes.Buffer
	w, err := NewWriter(&file, "a")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 0)
	r := Record{Time: at, Data: frame(packet.SendOnly, 1, 2, "abc"), Comments: comments}
	if err := w.WriteRecord(0, r); err != nil {
		t.Fatal(err)
	}
	for _, n := range notes {
		if err := w.WriteNote(n); err != nil {
			t.Fatal(err)
		}
	}
	r.Time, r.Comments = at.Add(time.Millisecond), nil
	if err := w.WriteRecord(0, r); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// readNotes returns the frames and notes of a capture.
func readNotes(t *testing.T, file []byte) (recs []Record, notes []Note) {
	t.Helper()
	r, err := NewReader(bytes.NewReader(file), "f")
	if err != nil {
		t.Fatal(err)
	}
	r.OnNote(func(n Note) { notes = append(notes, n) })
	for rec, err := range r.Records() {
		if err != nil {
			t.Fatal(err)
		}
		recs = append(recs, rec)
	}
	return recs, notes
}

func TestWriterKeepsCommentsAndNotes(t *testing.T) {
	comments := []string{"fault rule 3: drop", "", "fault rule 4: mark é"}
	second := Note{Time: aNote.Time, Text: "link set down"}
	recs, notes := readNotes(t, noted(t, comments, aNote, second))
	if len(recs) != 2 || !slices.Equal(recs[0].Comments, comments) || recs[1].Comments != nil {
		t.Errorf("frames %+v", recs)
	}
	if want := []Note{aNote, second}; !reflect.DeepEqual(notes, want) {
		t.Errorf("notes %+v, want %+v", notes, want)
	}
	if _, err := Parse(recs[0]); err != nil {
		t.Error(err)
	}
}

func TestWriterMakesTextPrintableAndShort(t *testing.T) {
	recs, notes := readNotes(t, noted(t, []string{"a\x1b[31m\nb\xff", strings.Repeat("é", 4000)},
		Note{Time: aNote.Time, Text: "x\nMESSAGE=y\x00", Program: "a\nSOFTROCE_RULE=5"}))
	if c := recs[0].Comments; c[0] != "a\ufffd[31m\ufffdb\ufffd" || len(c[1]) > maxText || !strings.HasSuffix(c[1], "é…") {
		t.Errorf("comments %q", c)
	}
	if n := notes[0]; n.Text != "x\ufffdMESSAGE=y\ufffd" || n.Rule != 0 || n.Program != "a\ufffdSOFTROCE_RULE=5" {
		t.Errorf("note %+v", n)
	}
}

func TestDecodeShowsCommentsAndNotesInOrder(t *testing.T) {
	for _, c := range []struct {
		o    DecodeOptions
		want []string // in each line
	}{
		{DecodeOptions{}, []string{` comment="c"`, `- 0.000100000 note="fault rule 1: fail create_qp`, "2 0.001000000 "}},
		{DecodeOptions{Short: true}, []string{` comment "c"`, `- 0.000100000 note "fault rule 1: fail create_qp`, "2 0.001000000 "}},
		{DecodeOptions{JSON: true}, []string{`"comments":["c"]`, `","time":1700000000.000100000,"nic":"nic0","rule":1,"pid":12,"program":"a","qp":17}`, `"no":2`}},
		{DecodeOptions{Filter: PSN(2)}, []string{` comment="c"`, "2 0.001000000 "}},
	} {
		r, err := NewReader(bytes.NewReader(noted(t, []string{"c"}, aNote)), "f")
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		sum, err := Decode(&out, r, c.o)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if err != nil || sum.Notes != 1 || !strings.Contains(sum.String(), "1 notes") || len(lines) != len(c.want) {
			t.Errorf("%v, %v:\n%s", err, sum, out.String())
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(lines[i], want) {
				t.Errorf("line %q, want %s", lines[i], want)
			}
		}
	}
}

// hostileNotes are captures with comments and notes that are not valid, or not harmless.
var hostileNotes = func() (l [][]byte) {
	data := frame(packet.SendOnly, 1, 2, "abc")
	escape := "\x1b]0;title\a\u009b31m\x7f\xff\u202e\r\n"
	for _, o := range bothOrders {
		file := func(blocks ...[]byte) {
			b := words(o, sectionOf(o), blockOf(o, blockInterface, uint16(1), uint16(0), 0))
			l = append(l, append(b, bytes.Join(blocks, nil)...))
		}
		frame := func(options ...any) []byte {
			return blockOf(o, blockEnhanced, 0, 1, 2, len(data), len(data), string(data)+strings.Repeat("\x00", -len(data)&3), words(o, options...))
		}
		journal := func(text string) []byte { return blockOf(o, blockJournal, text) }
		file(frame(uint16(optionComment), uint16(len(escape)), escape+strings.Repeat("\x00", -len(escape)&3), 0))
		file(frame(uint16(optionComment), uint16(65535), "short"))
		file(frame(uint16(optionComment), uint16(0), uint16(optionComment), uint16(4), "abcd", uint16(optionComment)))
		file(journal("__REALTIME_TIMESTAMP=5\nMESSAGE="+escape+"\n"), frame())
		huge := binary.LittleEndian.AppendUint64([]byte("__REALTIME_TIMESTAMP=5\nMESSAGE\n"), 1<<63)
		for _, text := range []string{
			"", "\x00\x00\x00\x00", "=\n", "MESSAGE=a\n", "__REALTIME_TIMESTAMP=-1\nMESSAGE=a\n", string(huge) + "abc\n",
			"__REALTIME_TIMESTAMP=9223372036854775807\nMESSAGE=a\n", "__REALTIME_TIMESTAMP=5\nMESSAGE\n\x01", "MESSAGE=a",
			"__REALTIME_TIMESTAMP=5\nMESSAGE\n\x03\x00\x00\x00\x00\x00\x00\x00" + "a\nb\n",
		} {
			file(journal(text), frame())
		}
	}
	return l
}()

// obeyedByTerminal returns the index of the first character of decoded text that a terminal obeys,
// or -1.
func obeyedByTerminal(text string) int {
	return strings.IndexFunc(text, func(r rune) bool { return r != '\n' && unicode.IsControl(r) })
}

// What fault rules did is in the comments of packets, and in notes where there is no packet.
func ExampleReader_OnNote() {
	var file bytes.Buffer
	w, _ := NewWriter(&file, "softroce0")
	w.WriteRecord(0, Record{Time: time.Unix(1, 0), Data: frame(packet.SendOnly, 0x11, 7, "hello"),
		Comments: []string{"fault rule 2: drop receive nth 1 (softroce0, receive)"}})
	w.WriteNote(Note{Time: time.Unix(2, 0), Text: "fault rule 1: fail create_qp ENOMEM (softroce0, pid 4711)", Rule: 1, PID: 4711})
	w.Close()

	r, _ := NewReader(&file, "a.pcapng")
	r.OnNote(func(n Note) { fmt.Println(n.Time.Unix(), n.Text) })
	packets, _ := r.Packets()
	for _, p := range packets {
		fmt.Println(p.Time.Unix(), p.Opcode, p.Comments)
	}
	// Output:
	// 2 fault rule 1: fail create_qp ENOMEM (softroce0, pid 4711)
	// 1 RC_SEND_ONLY [fault rule 2: drop receive nth 1 (softroce0, receive)]
}

// What is wrong with a comment or a note does not keep the packets from being read, and what they
// contain does not reach the terminal.
func TestDecodeSurvivesHostileNotes(t *testing.T) {
	for i, b := range hostileNotes {
		for _, o := range []DecodeOptions{{}, {Short: true}, {JSON: true}} {
			r, err := NewReader(bytes.NewReader(b), "f")
			if err != nil {
				t.Fatal(i, err)
			}
			var out bytes.Buffer
			sum, err := Decode(&out, r, o)
			if err != nil || sum.RoCE != 1 {
				t.Errorf("file %d: %v, %v", i, sum, err)
			}
			if at := obeyedByTerminal(out.String()); at >= 0 {
				t.Errorf("file %d: control character at %d of %q", i, at, out.String())
			}
		}
	}
}

func TestNoteMayHaveBinaryFields(t *testing.T) {
	entry := "__REALTIME_TIMESTAMP=5\nMESSAGE\n\x03\x00\x00\x00\x00\x00\x00\x00a\nb\nMESSAGE=second\nSOFTROCE_RULE=7\n\x00\x00"
	if n, ok := parseNote([]byte(entry)); !ok || n.Text != "a\nb" || n.Rule != 7 || !n.Time.Equal(time.UnixMicro(5)) {
		t.Errorf("%+v, %v", n, ok)
	}
}

// tshark shows comments of packets and notes, also after editcap has copied the file.
func TestTsharkShowsCommentsAndNotes(t *testing.T) {
	needTshark(t)
	dir := t.TempDir()
	first, second := filepath.Join(dir, "a.pcapng"), filepath.Join(dir, "b.pcapng")
	rec := NewRecorder()
	rec.WriteMarked(1_700_000_000e9, 0, frame(packet.SendOnly, 1, 2, "abc"), 7)
	rec.AddNote(7, "fault rule 3: drop receive", Note{})
	rec.AddNote(7, "fault rule 4: mark", Note{})
	rec.AddNote(0, "", aNote)
	rec.WriteFrame(1_700_000_001e9, 0, frame(packet.SendOnly, 1, 3, "abc"))
	if err := rec.Save(first); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("editcap", first, second).CombinedOutput(); err != nil {
		t.Fatalf("editcap: %v\n%s", err, out)
	}
	for _, file := range []string{first, second} {
		out, err := exec.Command("tshark", "-r", file, "-T", "fields", "-e", "frame.comment", "-e", "infiniband.bth.psn",
			"-e", "systemd_journal.message", "-e", "systemd_journal.object_pid").Output()
		want := "fault rule 3: drop receive,fault rule 4: mark\t2\t\t\n\t\t" + aNote.Text + "\t12\n\t3\t\t\n"
		if err != nil || string(out) != want {
			t.Errorf("%v: %q, want %q", err, out, want)
		}
	}
	if ps, err := Load(second); err != nil || len(ps) != 2 || len(ps[0].Comments) != 2 {
		t.Errorf("%v, %v", ps, err)
	}
}
