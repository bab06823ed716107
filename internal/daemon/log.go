package daemon

import (
	"bytes"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// A LogWriter passes lines to a writer that may block, such as a pipe without an active reader.
// Write never waits: lines that find the buffer full are lost and counted.
type LogWriter struct {
	queue chan logEntry
	lost  atomic.Uint64
}

// A logEntry is a line, or a request to report that everything before it is written.
type logEntry struct {
	line    []byte
	flushed chan struct{}
}

const (
	// logLines is the number of lines that may wait: enough for what a daemon logs at once.
	logLines = 1024

	// flushTimeout is how long Flush waits for the writer.
	flushTimeout = 200 * time.Millisecond
)

// NewLogWriter returns a LogWriter in front of w.
func NewLogWriter(w io.Writer) *LogWriter {
	l := &LogWriter{queue: make(chan logEntry, logLines)}
	go l.run(w)
	return l
}

func (l *LogWriter) run(w io.Writer) {
	for e := range l.queue {
		if n := l.lost.Swap(0); n > 0 {
			fmt.Fprintf(w, "softroce: %d lines of the log are lost, because the reader was too slow\n", n)
		}
		if e.flushed != nil {
			close(e.flushed)
			continue
		}
		w.Write(e.line)
	}
}

// Write implements io.Writer. It is called with one line at a time.
func (l *LogWriter) Write(line []byte) (int, error) {
	select {
	case l.queue <- logEntry{line: bytes.Clone(line)}:
	default:
		l.lost.Add(1)
	}
	return len(line), nil
}

// Flush waits until the lines are written, but not for a writer that blocks.
func (l *LogWriter) Flush() {
	timeout := time.After(flushTimeout)
	flushed := make(chan struct{})
	select {
	case l.queue <- logEntry{flushed: flushed}:
	case <-timeout:
		return
	}
	select {
	case <-flushed:
	case <-timeout:
	}
}
