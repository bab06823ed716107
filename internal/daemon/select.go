package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"softroce/capture"
	"softroce/internal/control"
)

// A selection writes the frames that the options select from a capture to files.
type selection struct {
	RecordOptions
	open   func(path string) (*os.File, error)
	source func() []capture.Interface // the interfaces of the capture, as far as they are known; nil: none

	counts sync.Mutex // of what follows; never held while a file is written
	state  control.CaptureState
	file   *os.File // nil before a FIFO has a reader

	mu     sync.Mutex      // of what follows
	files  []string        // that are kept
	number int             // of the last file, from 1
	out    *capture.Writer // nil before the file's header
	ifaces int             // interfaces of the file: the first ones of the source
	size   int64           // bytes of the file, about; 0 before its first frame
	start  time.Time       // of the file's first frame
}

// begin opens the first file.
func (s *selection) begin() error {
	s.number = 1
	path := s.Output
	if s.rotates() {
		path = s.numbered()
	}
	if path == "-" {
		s.setFile(os.Stdout)
		return nil
	}
	return s.openFile(path)
}

func (s *selection) openFile(path string) error {
	f, err := s.open(path)
	if err != nil {
		return err
	}
	s.setFile(f)
	s.files = append(s.files, path)
	return nil
}

func (s *selection) setFile(f *os.File) {
	s.counts.Lock()
	defer s.counts.Unlock()
	s.file = f
}

// abort closes the file, which ends a write that its reader keeps waiting.
func (s *selection) abort() {
	s.counts.Lock()
	defer s.counts.Unlock()
	if s.file != nil {
		s.file.Close()
	}
}

// numbered returns the name of the current file: all.pcapng becomes all_00001.pcapng.
func (s *selection) numbered() string {
	ext := filepath.Ext(s.Output)
	return fmt.Sprintf("%s_%05d%s", strings.TrimSuffix(s.Output, ext), s.number, ext)
}

// copy reads a capture to its end, or until Count frames are written.
func (s *selection) copy(r *capture.Reader) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go s.flushOften(ctx)
	s.source = r.Interfaces
	if err := s.writeHeader(); err != nil {
		return err
	}
	var failed error
	r.OnNote(func(n capture.Note) { failed = cmp.Or(failed, s.note(n)) })
	defer r.OnNote(nil)
	for rec, err := range r.Records() {
		if err = cmp.Or(failed, err); err != nil {
			return err
		}
		if full, err := s.add(rec); err != nil || full {
			return err
		}
	}
	return failed
}

// add writes a frame if it is selected. full means that Count frames are written.
func (s *selection) add(rec capture.Record) (full bool, err error) {
	if s.Filter != nil {
		p, err := capture.ParseCut(rec)
		if err != nil || !s.Filter(p) {
			return false, nil
		}
	}
	if s.SnapLen > 0 && len(rec.Data) > s.SnapLen {
		rec.Data = rec.Data[:s.SnapLen]
	}
	if err := s.write(rec); err != nil {
		return false, err
	}
	return s.full(), nil
}

// full reports whether Count frames are written.
func (s *selection) full() bool { return s.Count > 0 && s.written().Packets == s.Count }

// writeHeader begins the capture in the first file, so that a reader sees a valid one before there
// is a frame.
func (s *selection) writeHeader() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.describe(0); err != nil || s.out == nil {
		return err
	}
	return s.out.Flush()
}

func (s *selection) interfaces() []capture.Interface {
	if s.source == nil {
		return nil
	}
	return s.source()
}

// describe writes the header of the file, and its interfaces: those of the source that are known,
// and at least a number of them. Without any it writes nothing.
func (s *selection) describe(least int) (err error) {
	known := s.interfaces()
	for i := s.ifaces; i < max(least, len(known)); i++ {
		name := s.Device
		if name == "" {
			name = "softroce"
		}
		if i < len(known) {
			name = known[i].Name
		}
		if s.out == nil {
			s.out, err = capture.NewWriter(s.file, name)
		} else {
			_, err = s.out.AddInterface(name)
		}
		if err != nil {
			return err
		}
		s.ifaces++
	}
	return nil
}

// blockOverhead is the bytes that a frame takes in a pcapng file in addition to its own, and
// headerSize those of the blocks before the first frame, about.
const (
	blockOverhead = 32
	headerSize    = 256
	noteOverhead  = 160 // of a note, in addition to its text
)

// write writes a frame, to a new file if the old one is full.
func (s *selection) write(rec capture.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int64(len(rec.Data) + blockOverhead)
	if s.size > 0 && (s.FileSize > 0 && s.size+n > s.FileSize || s.FileTime > 0 && rec.Time.Sub(s.start) >= s.FileTime) {
		if err := s.next(); err != nil {
			return err
		}
	}
	if s.size == 0 {
		s.size, s.start = headerSize, rec.Time
	}
	if rec.Interface >= s.ifaces {
		if err := s.describe(rec.Interface + 1); err != nil {
			return err
		}
	}
	if err := s.out.WriteRecord(rec.Interface, rec); err != nil {
		return err
	}
	s.size += n
	s.counts.Lock()
	defer s.counts.Unlock()
	s.state.Packets++
	s.state.Bytes += uint64(len(rec.Data))
	return nil
}

// note writes a note. Filters do not apply to it, and it begins no file.
func (s *selection) note(n capture.Note) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.describe(1); err != nil {
		return err
	}
	if s.size > 0 {
		s.size += int64(len(n.Text) + noteOverhead)
	}
	return s.out.WriteNote(n)
}

// next begins another file, and removes the oldest if there are too many.
func (s *selection) next() error {
	if err := s.endFile(); err != nil {
		return err
	}
	s.number++
	err := s.openFile(s.numbered())
	if err != nil {
		return err
	}
	s.size = 0
	if s.Files > 0 && len(s.files) > s.Files {
		if err = os.Remove(s.files[0]); errors.Is(err, fs.ErrNotExist) {
			err = nil // another process has moved or removed it
		}
		s.files = s.files[1:]
	}
	return err
}

// end completes the last file.
func (s *selection) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endFile()
}

// endFile completes the file with the statistics of its interfaces. One without frames becomes a
// valid capture too.
func (s *selection) endFile() error {
	err := s.describe(1)
	if err == nil {
		err = errors.Join(writeStatistics(s.out, s.interfaces()), s.out.Close())
	}
	s.out, s.ifaces = nil, 0
	if s.file != os.Stdout {
		err = errors.Join(err, s.file.Close())
	}
	return err
}

// writeStatistics writes what the interfaces of a capture have seen and lost so far.
func writeStatistics(w *capture.Writer, ifaces []capture.Interface) error {
	for i, n := range ifaces {
		if err := w.WriteStatistics(time.Now().UnixNano(), i, n.Seen, n.Lost); err != nil {
			return err
		}
	}
	return nil
}

// flushOften lets readers of the file see frames soon.
func (s *selection) flushOften(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(progressInterval):
		}
		s.flush() // an error is that of the next write
	}
}

func (s *selection) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out == nil {
		return nil
	}
	return s.out.Flush()
}

// written returns what was written so far. It does not wait for the file, whose reader may have
// stopped reading.
func (s *selection) written() control.CaptureState {
	s.counts.Lock()
	defer s.counts.Unlock()
	return s.state
}
