package daemon

import (
	"bufio"
	"fmt"
	"io"
	"testing"
)

func TestLogWriterDoesNotWaitForItsReader(t *testing.T) {
	r, w := io.Pipe() // a Write waits until the reader takes it
	defer r.Close()
	l := NewLogWriter(w)
	const n = 2 * logLines
	for i := range n { // must return although nothing reads
		fmt.Fprintf(l, "line %d\n", i)
	}
	l.Flush() // gives up
	lines := bufio.NewScanner(r)
	read, lost := 0, 0
	for read+lost < n && lines.Scan() {
		more := 0 // there may be several reports
		if _, err := fmt.Sscanf(lines.Text(), "softroce: %d lines of the log are lost", &more); err != nil {
			read++
		}
		lost += more
	}
	if read < logLines || lost < logLines/2 || read+lost != n {
		t.Errorf("%d lines read, %d reported as lost, of %d", read, lost, n)
	}
}
