package daemon

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"softroce/capture"
	"softroce/internal/control"
)

// RecordOptions say what a capture records, and where it writes it.
type RecordOptions struct {
	Device string // the NIC; empty: all
	Output string // the file; "-" is standard output

	Filter  capture.Match // nil: all frames, those of other protocols too
	SnapLen int           // bytes of each frame that are written; 0: all
	Count   uint64        // frames after which the capture ends; 0: no limit

	// A new file is begun when the file has about FileSize bytes, or holds frames of FileTime; 0:
	// never. Files is the number of files to keep, the newest; 0: all.
	FileSize int64
	FileTime time.Duration
	Files    int

	Progress func(control.CaptureState) // is called several times a second; may be nil

	filters []string // conditions of Filter
}

// everything reports whether a capture needs no selection.
func (o *RecordOptions) everything() bool {
	return o.Filter == nil && o.SnapLen == 0 && o.Count == 0 && !o.rotates()
}

func (o *RecordOptions) rotates() bool { return o.FileSize > 0 || o.FileTime > 0 }

// setOption has the options by their names, which are those of the flags of softroce capture.
var setOption = map[string]func(o *RecordOptions, value string) error{
	"device": func(o *RecordOptions, v string) error { o.Device = v; return nil },
	"filter": func(o *RecordOptions, v string) (err error) {
		o.filters = append(o.filters, v)
		o.Filter, err = capture.ParseFilter(o.filters...)
		return err
	},
	"snaplen": func(o *RecordOptions, v string) error { return setCount(&o.SnapLen, v) },
	"count":   func(o *RecordOptions, v string) error { return setCount(&o.Count, v) },
	"file-size": func(o *RecordOptions, v string) error {
		n, err := ParseBytes(v)
		if o.FileSize = int64(n); err == nil && o.FileSize <= 0 {
			err = fmt.Errorf("%q: want 1 byte or more", v)
		}
		return err
	},
	"file-time": func(o *RecordOptions, v string) (err error) {
		if o.FileTime, err = time.ParseDuration(v); err != nil || o.FileTime <= 0 {
			err = fmt.Errorf("%q: want a time such as 10m", v)
		}
		return err
	},
	"files": func(o *RecordOptions, v string) error { return setCount(&o.Files, v) },
}

func setCount[T int | uint64](to *T, text string) error {
	n, err := strconv.ParseUint(text, 10, strconv.IntSize-1)
	if err != nil || n == 0 {
		return fmt.Errorf("%q: want a number from 1 to %d", text, math.MaxInt)
	}
	*to = T(n)
	return nil
}

func optionNames() []string { return slices.Sorted(maps.Keys(setOption)) }

// Set sets an option from its text.
func (o *RecordOptions) Set(name, value string) error {
	set, ok := setOption[name]
	if !ok {
		return fmt.Errorf("option %q of a capture is unknown; the options are %s", name, strings.Join(optionNames(), ", "))
	}
	if value == "" {
		return fmt.Errorf("%s needs a value", name)
	}
	if err := set(o, value); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Check returns an error if the options contradict each other.
func (o *RecordOptions) Check() error {
	switch {
	case o.Output == "":
		return errors.New("a capture needs the name of a file")
	case o.Files > 0 && !o.rotates():
		return errors.New("files needs file-size or file-time")
	case o.rotates() && o.Output == "-":
		return errors.New("standard output is one file; file-size and file-time need the name of a file")
	}
	return nil
}

// optionStart matches what begins an option in the text of a capture: a word and "=", or the name
// of an option without a value, which is an error. A doubled comma is not one. Other commas belong
// to the name of the file or to conditions.
var optionStart = regexp.MustCompile(`,,|,\s*[A-Za-z_-]+\s*=|,\s*(` + strings.Join(optionNames(), "|") + `)\s*(,|$)`)

// nameStart matches the part of a name in which no option begins: directories, and what precedes
// the suffix of a capture file.
var nameStart = regexp.MustCompile(`^(.*/)?(.*\.pcap(ng)?(,|$))?`)

// cutOption splits a text before the first option that begins at from or later.
func cutOption(text string, from int) (before, options string) {
	for _, at := range optionStart.FindAllStringIndex(text[from:], -1) {
		if i := from + at[0]; text[i:from+at[1]] != ",," {
			return text[:i], text[i:]
		}
	}
	return text, ""
}

// SplitCapture splits the text of a capture, FILE[,OPTION=VALUE]…, into the file and the rest. A
// doubled comma in FILE stands for one comma, at which no option begins. A single comma is part of
// the name too if it is in a directory, before .pcapng or .pcap, or not followed by a word and "=".
func SplitCapture(text string) (file, options string) {
	name := text
	if i := strings.Index(text, ",filter="); i >= 0 {
		name = text[:i] // conditions contain slashes: src 192.0.2.0/24
	}
	from := len(strings.TrimSuffix(nameStart.FindString(name), ","))
	file, options = cutOption(text, from)
	return strings.ReplaceAll(file, ",,", ","), options
}

// JoinCapture returns a text that SplitCapture splits into file and options.
func JoinCapture(file, options string) string {
	return strings.ReplaceAll(file, ",", ",,") + options
}

// ParseCapture reads the text of a capture, such as all.pcapng,count=100,filter=kind nak.
func ParseCapture(text string) (o RecordOptions, err error) {
	var rest string
	o.Output, rest = SplitCapture(text)
	given := map[string]bool{}
	for rest != "" {
		var option string
		option, rest = cutOption(rest, 1)
		name, value, _ := strings.Cut(option[1:], "=")
		err := o.Set(name, value)
		if err == nil && given[name] && name != "filter" {
			err = fmt.Errorf("%s is given twice", name)
		}
		if err != nil {
			return o, fmt.Errorf("capture %s: %w (a comma in the name of the file is written ,,)", text, err)
		}
		given[name] = true
	}
	if err := o.Check(); err != nil {
		return o, fmt.Errorf("capture %s: %w", text, err)
	}
	return o, nil
}
