package capture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// A Note is an entry of a log in a capture: something that happened at a time without a packet,
// such as a verb that failed because of a fault rule. What is not known is zero.
type Note struct {
	Time    time.Time // the file has microseconds
	Text    string    // the whole note, to be read by people; the fields below are to be searched
	NIC     string
	Rule    int    // ID of the fault rule that acted
	PID     int    // of the program to which it happened
	Program string // its name
	QP      uint32 // its queue pair
}

// A note is in a systemd Journal Export Block: an entry in the Journal Export Format
// (https://systemd.io/JOURNAL_EXPORT_FORMATS), whose names of fields are those of
// systemd.journal-fields(7). Those that begin with SOFTROCE are this project's.
const (
	journalTime    = "__REALTIME_TIMESTAMP" // microseconds of the Unix epoch; must be present
	journalText    = "MESSAGE"
	journalPID     = "OBJECT_PID"
	journalProgram = "OBJECT_COMM"
	journalNIC     = "SOFTROCE_NIC"
	journalRule    = "SOFTROCE_RULE"
	journalQP      = "SOFTROCE_QP"
	journalSource  = "SYSLOG_IDENTIFIER=softroce\nPRIORITY=6\n" // 6 is "info"
)

// maxText bounds the text of a comment or a field that is written, in bytes.
const maxText = 1000

// printable returns s without what a terminal or a line of text would not show: such characters,
// and bytes that are not UTF-8, become U+FFFD. It bounds the length.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s)
	if len(s) <= maxText {
		return s
	}
	n := maxText - len("…")
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// journal returns the journal entry of a note.
func (n *Note) journal() []byte {
	b := fmt.Appendf(nil, "%s=%d\n%s", journalTime, n.Time.UnixMicro(), journalSource)
	field := func(isSet bool, name, value string) {
		if isSet {
			b = fmt.Appendf(b, "%s=%s\n", name, printable(value))
		}
	}
	field(true, journalText, n.Text)
	field(n.NIC != "", journalNIC, n.NIC)
	field(n.Rule != 0, journalRule, strconv.Itoa(n.Rule))
	field(n.PID != 0, journalPID, strconv.Itoa(n.PID))
	field(n.Program != "", journalProgram, n.Program)
	field(n.QP != 0, journalQP, strconv.FormatUint(uint64(n.QP), 10))
	return b
}

// parseNote reads a journal entry, which may be any program's. ok is false if it has no time or no
// text. The first of several values of a field counts.
func parseNote(entry []byte) (n Note, ok bool) {
	seen := map[string]bool{}
	for len(entry) > 0 {
		var name, value []byte
		if name, value, entry = journalField(entry); name == nil {
			break
		}
		if !seen[string(name)] {
			seen[string(name)] = true
			n.set(string(name), string(value))
		}
	}
	return n, seen[journalTime] && seen[journalText] && !n.Time.IsZero()
}

// set sets a field, unless its value is invalid or it is not one of a note.
func (n *Note) set(name, value string) {
	number, err := strconv.ParseInt(value, 10, 64)
	switch {
	case name == journalText:
		n.Text = value
	case name == journalNIC:
		n.NIC = value
	case name == journalProgram:
		n.Program = value
	case err != nil || number < 0:
	case name == journalTime:
		n.Time = time.UnixMicro(number).UTC()
	case name == journalRule:
		n.Rule = int(number)
	case name == journalPID:
		n.PID = int(number)
	case name == journalQP:
		n.QP = uint32(number)
	}
}

// journalField splits the first field off a journal entry: a line NAME=value, or, for any bytes, a
// line NAME, the length of the value as 64 bits, the value and a newline. name is nil if there is
// no valid one: at the zeros that pad the block, for example.
func journalField(entry []byte) (name, value, rest []byte) {
	line, rest, found := bytes.Cut(entry, []byte{'\n'})
	if !found {
		return nil, nil, nil
	}
	if name, value, text := bytes.Cut(line, []byte{'='}); text {
		return name, value, rest
	}
	if len(line) == 0 || len(rest) < 8 {
		return nil, nil, nil
	}
	size := binary.LittleEndian.Uint64(rest)
	if rest = rest[8:]; size >= uint64(len(rest)) || rest[size] != '\n' {
		return nil, nil, nil
	}
	return line, rest[:size], rest[size+1:]
}
