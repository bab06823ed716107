package daemon

import (
	"errors"
	"fmt"
	"maps"
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
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n == 0 {
		return fmt.Errorf("%q: want a number of at least 1", text)
	}
	*to = T(n)
	return nil
}

// Set sets an option from its text.
func (o *RecordOptions) Set(name, value string) error {
	set, ok := setOption[name]
	if !ok {
		return fmt.Errorf("option %q of a capture is unknown; the options are %s", name, strings.Join(slices.Sorted(maps.Keys(setOption)), ", "))
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

// optionStart is where an option begins in the text of a capture. Other commas belong to the name
// of the file or to conditions.
var optionStart = regexp.MustCompile(`,[a-z-]+=`)

// SplitCapture splits the text of a capture, FILE[,OPTION=VALUE]…, into the file and the rest.
func SplitCapture(text string) (file, options string) {
	if at := optionStart.FindStringIndex(text); at != nil {
		return text[:at[0]], text[at[0]:]
	}
	return text, ""
}

// ParseCapture reads the text of a capture, such as all.pcapng,count=100,filter=kind nak.
func ParseCapture(text string) (o RecordOptions, err error) {
	var rest string
	o.Output, rest = SplitCapture(text)
	for rest != "" {
		name, value, _ := strings.Cut(rest[1:], "=")
		value, rest = SplitCapture(value)
		if err := o.Set(name, value); err != nil {
			return o, fmt.Errorf("capture %s: %w", text, err)
		}
	}
	if err := o.Check(); err != nil {
		return o, fmt.Errorf("capture %s: %w", text, err)
	}
	return o, nil
}
