package perf

import (
	"net"
	"strings"
	"testing"
	"time"
)

// A net.Pipe has no buffer: a write returns when everything is read. The receiver of a message must
// therefore read its newline too before it replies, wherever its own buffer ends. The lengths are
// around those at which the buffers of json.Decoder and bufio.Reader are full.
func TestMessagesOfEveryLengthAreExchangedWithoutBuffer(t *testing.T) {
	for _, full := range []int{512, 1536, 3584, 4096, 7680, 8192, 15872} {
		for n := full - 2; n <= full+2; n++ {
			ours, theirs := net.Pipe()
			for _, c := range []net.Conn{ours, theirs} {
				c.SetDeadline(time.Now().Add(time.Minute)) // in place of a test that hangs
			}
			message := verdict{Error: strings.Repeat("x", n-len(`{"error":""}`))}
			served := make(chan error, 1)
			go func() {
				s := newMessageConn(theirs)
				for range 2 { // the second message begins behind what the first left in a buffer
					var got verdict
					err := s.receive(&got)
					if err == nil {
						err = s.send(got)
					}
					if err != nil {
						served <- err
						return
					}
				}
				served <- nil
			}()
			c := newMessageConn(ours)
			for range 2 {
				var echo verdict
				if err := c.send(message); err != nil {
					t.Fatalf("%d bytes: send: %v", n, err)
				}
				if err := c.receive(&echo); err != nil || echo != message {
					t.Fatalf("%d bytes: got %d, %v", n, len(echo.Error), err)
				}
			}
			if err := <-served; err != nil {
				t.Fatalf("%d bytes: server: %v", n, err)
			}
			ours.Close()
			theirs.Close()
		}
	}
}
