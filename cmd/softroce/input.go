package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"sync/atomic"

	"softroce/capture"
)

// An input is a capture file that a command reads, in some passes. A signal ends the pass at the
// context's error, and the passes after it at the same place, so that the command can report on
// what it has read. A second Ctrl-C ends the process.
type input struct {
	ctx    context.Context
	name   string
	file   *os.File
	passes int
	start  int64        // of the capture in the file; -1: the file is a pipe
	size   atomic.Int64 // bytes of all passes; 0: not known
	read   atomic.Int64 // bytes so far, of all passes
	limit  int64        // where a signal ended a pass
}

// openCapture opens a capture file, or standard input if the name is "-". A pipe can be read only
// once: for several passes it is copied to a temporary file first.
func (e *env) openCapture(name string, passes int) (*input, error) {
	in := &input{ctx: e, name: name, limit: math.MaxInt64, passes: passes}
	var err error
	if in.file, err = openInput(e, name); err != nil {
		return nil, err
	}
	if name == "-" {
		in.name = "standard input"
	}
	if in.start, err = in.file.Seek(0, io.SeekCurrent); err != nil {
		in.start = -1
	}
	in.setSize()
	return in, nil
}

func (in *input) setSize() {
	if st, err := in.file.Stat(); err == nil && st.Mode().IsRegular() {
		in.size.Store((st.Size() - in.start) * int64(in.passes))
	}
}

// openInput opens a file. Opening a FIFO waits for a writer, at most as long as ctx lasts.
func openInput(ctx context.Context, name string) (*os.File, error) {
	if name == "-" {
		return os.Stdin, nil
	}
	var file *os.File
	var err error
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		file, err = os.Open(name)
	}()
	select {
	case <-opened:
		return file, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// spool replaces a pipe by a temporary file, which has no name, with its content.
func (in *input) spool() error {
	to, err := os.CreateTemp("", "softroce-")
	if err != nil {
		return err
	}
	os.Remove(to.Name())
	n, err := io.Copy(to, in.pass())
	in.Close()
	in.file, in.start = to, 0
	in.read.Store(0)
	in.setSize()
	if in.ctx.Err() != nil {
		in.limit, err = n, nil
	}
	return err
}

// Reader returns a reader for the next pass.
func (in *input) Reader() (*capture.Reader, error) {
	if in.start < 0 && in.passes > 1 {
		if err := in.spool(); err != nil {
			return nil, err
		}
	}
	return capture.NewReader(in.pass(), in.name)
}

// pass returns the bytes of the file.
func (in *input) pass() io.Reader {
	if in.start >= 0 {
		return &pass{in: in, from: io.NewSectionReader(in.file, in.start, math.MaxInt64-in.start)}
	}
	// Reading a pipe may block, which a signal does not end.
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, in.file)
		w.CloseWithError(err)
	}()
	context.AfterFunc(in.ctx, func() { w.CloseWithError(in.ctx.Err()) })
	return &pass{in: in, from: r}
}

// Close closes the file. Standard input stays open.
func (in *input) Close() error {
	if in.file == os.Stdin {
		return nil
	}
	return in.file.Close()
}

// String says how much was read, for showProgress.
func (in *input) String() string {
	n := in.read.Load()
	if size := in.size.Load(); size > 0 {
		return fmt.Sprintf("%s: %d %%", in.name, min(100, 100*n/size))
	}
	return fmt.Sprintf("%s: %.1f MiB", in.name, float64(n)/(1<<20))
}

// A pass reads an input once.
type pass struct {
	in   *input
	from io.Reader
	at   int64
}

func (p *pass) Read(b []byte) (int, error) {
	in := p.in
	if in.ctx.Err() != nil && in.limit == math.MaxInt64 {
		in.limit = p.at
		signal.Reset(os.Interrupt)
	}
	if p.at >= in.limit {
		return 0, in.ctx.Err()
	}
	n, err := p.from.Read(b[:min(int64(len(b)), in.limit-p.at)])
	p.at += int64(n)
	in.read.Add(int64(n))
	return n, err
}
