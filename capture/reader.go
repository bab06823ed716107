package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
)

// Reasons why a file cannot be read completely; match with errors.Is. The Reader returns them as a
// *FormatError.
var (
	ErrNotCapture = errors.New("not a pcap, pcapng or ERF capture")
	ErrTruncated  = errors.New("file is truncated")
	ErrCorrupt    = errors.New("capture is corrupt")
)

// A FormatError says where and why reading a file ended.
type FormatError struct {
	File   string
	Offset int64 // in bytes, of the invalid or missing part
	Reason error
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s: offset %d: %v", e.File, e.Offset, e.Reason)
}

// Unwrap returns the reason.
func (e *FormatError) Unwrap() error { return e.Reason }

// maxRecord bounds the bytes of a frame and of a block with frames, so that a damaged length does
// not exhaust memory. A super-packet has 64 KiB.
const maxRecord = 1 << 20

// A Reader reads a pcap, pcapng or ERF file frame by frame.
type Reader struct {
	src    *source
	format format
	number int
	err    error     // every error is final
	file   io.Closer // what Close closes, or nil
}

// A format is one of the file formats.
type format interface {
	next() (Record, error) // the next frame, without its number
	lost() uint64
	readAhead() error // reads the interfaces that were received
	interfaces() []Interface
	onNote(func(Note))
}

// An Interface is an interface of a capture.
type Interface struct {
	Name     string // empty if the file does not say
	LinkType LinkType
	Seen     uint64 // frames that the interface has seen, including those that the capture has lost
	Lost     uint64 // frames that the capture has lost
}

// Open opens a capture file. If it is not a capture, the error is ErrNotCapture.
func Open(file string) (*Reader, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	r, err := NewReader(f, file)
	if err != nil {
		f.Close()
		return nil, err
	}
	r.file = f
	return r, nil
}

// NewReader reads the header of a capture from r. Errors contain name.
func NewReader(r io.Reader, name string) (*Reader, error) {
	src := &source{name: name, r: bufio.NewReaderSize(r, 1<<16)}
	magic, err := src.r.Peek(4)
	switch {
	case err != nil && err != io.EOF:
		return nil, src.fail(0, err)
	case len(magic) == 0:
		return nil, src.fail(0, fmt.Errorf("%w: file is empty", ErrNotCapture))
	case len(magic) < 4:
		return nil, src.fail(0, fmt.Errorf("%w: file has %d bytes", ErrNotCapture, len(magic)))
	case magic[0] == 0x1f && magic[1] == 0x8b:
		return nil, src.fail(0, fmt.Errorf("%w: compressed by gzip, uncompress it first", ErrNotCapture))
	}
	c := &Reader{src: src}
	switch {
	case binary.LittleEndian.Uint32(magic) == blockSection:
		c.format, err = newPcapng(src)
	case isERF(src):
		c.format = &erf{source: src}
	default:
		c.format, err = newPcap(src)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Next returns the next frame; the caller owns its bytes. At the end of the file the error is
// io.EOF. Any other error is a *FormatError and final.
func (c *Reader) Next() (Record, error) {
	if c.err != nil {
		return Record{}, c.err
	}
	rec, err := c.format.next()
	if err != nil {
		c.err = err
		return Record{}, err
	}
	if rec.LinkType == ERF {
		rec = erfFrame(rec)
	}
	c.number++
	rec.No = c.number
	return rec, nil
}

// Records returns an iterator over the frames. If reading ends in an error, the last pair has it.
func (c *Reader) Records() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for {
			rec, err := c.Next()
			if err == io.EOF || !yield(rec, err) || err != nil {
				return
			}
		}
	}
}

// OnNote sets a function that Next calls for each note between the frames, in the order of the
// file. Captures of softroce have notes in the order of time.
func (c *Reader) OnNote(f func(Note)) { c.format.onNote(f) }

// Lost returns how many frames the capture has lost, as far as the file has said so. A pcapng file
// says it at its end.
func (c *Reader) Lost() uint64 { return c.format.lost() }

// Interfaces returns the interfaces of the capture, by their numbers: those that the file has
// described before the next frame, as far as that was received. It does not wait for more. What
// they have seen and lost is what the file has said so far, at least the frames that were read.
func (c *Reader) Interfaces() []Interface {
	if c.err == nil {
		c.err = c.format.readAhead()
	}
	return c.format.interfaces()
}

// Name returns the name of the capture in errors.
func (c *Reader) Name() string { return c.src.name }

// Close closes the file, if Open opened it.
func (c *Reader) Close() error {
	if c.file == nil {
		return nil
	}
	return c.file.Close()
}

// A source is a file being read, and the offset in it.
type source struct {
	name string
	r    *bufio.Reader
	at   int64 // bytes consumed
}

func (s *source) fail(offset int64, reason error) error {
	return &FormatError{s.name, offset, reason}
}

func (s *source) corrupt(offset int64, format string, args ...any) error {
	return s.fail(offset, fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...)))
}

// start reads the first bytes of a structure into b. io.EOF means that the file ended before.
func (s *source) start(b []byte, what string) error {
	if _, err := s.r.Peek(1); err == io.EOF {
		return io.EOF
	}
	return s.more(b, s.at, len(b), what)
}

// more reads the next bytes of a structure into b. The structure has size bytes and began at offset
// start.
func (s *source) more(b []byte, start int64, size int, what string) error {
	n, err := io.ReadFull(s.r, b)
	s.at += int64(n)
	return s.ended(err, start, size, what)
}

// skip is more for bytes that are not needed.
func (s *source) skip(n int64, start int64, size int, what string) error {
	done, err := io.CopyN(io.Discard, s.r, n)
	s.at += done
	return s.ended(err, start, size, what)
}

func (s *source) ended(err error, start int64, size int, what string) error {
	switch err {
	case nil:
		return nil
	case io.EOF, io.ErrUnexpectedEOF:
		return s.fail(start, fmt.Errorf("%w: %s of %d bytes ends after %d", ErrTruncated, what, size, s.at-start))
	}
	return s.fail(s.at, err)
}
