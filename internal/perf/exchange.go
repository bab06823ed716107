package perf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"softroce/verbs"
)

// Over the stream connection go JSON values: hello, answer, then, when the client has
// finished, finish and verdict.

// version counts incompatible changes of the messages below.
const version = 2

// maxMessage bounds a message: maxQPs endpoints of some hundred bytes.
const maxMessage = 1 << 20

// hello is what the client wants and where it is.
type request struct {
	Version  int          `json:"softroce_perf"`
	Options  Options      `json:"options"`
	Endpoint endpointInfo `json:"place"`
}

// answer is where the server is, or why it will not.
type response struct {
	Version  int          `json:"softroce_perf"`
	Error    string       `json:"error,omitempty"`
	MTU      int          `json:"mtu"`
	Endpoint endpointInfo `json:"place"`
}

// place is where one side's queue pairs and memory are.
type endpointInfo struct {
	Device string       `json:"device"`
	QPs    []verbs.Info `json:"qps"`
	Addr   uint64       `json:"addr"`
	RKey   uint32       `json:"rkey"`
	MTU    int          `json:"mtu"` // active MTU of the port
}

// finish tells what the client did.
type summary struct {
	Operations uint64 `json:"operations"`
	Failed     bool   `json:"failed"`
	Checksum   uint32 `json:"checksum"` // of what the server should hold
}

// verdict is the server's view of it.
type verdict struct {
	Error    string `json:"error,omitempty"`
	Received uint64 `json:"received,omitempty"` // Send: messages
}

// ErrPeer: what the other end said is not this package's protocol.
var ErrPeer = errors.New("the peer does not speak softroce perf's protocol")

// talk is a stream connection that carries messages.
type messageConn struct {
	conn  net.Conn
	dec   *json.Decoder
	limit *limitedReader
}

func newMessageConn(c net.Conn) *messageConn {
	l := &limitedReader{r: c}
	return &messageConn{c, json.NewDecoder(l), l}
}

func (t *messageConn) send(v any) error { return json.NewEncoder(t.conn).Encode(v) }

func (t *messageConn) receive(v any) error {
	t.limit.n = maxMessage
	err := t.dec.Decode(v)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &kind) || errors.Is(err, errLong) {
		return fmt.Errorf("%w: %w", ErrPeer, err)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errClosed
	}
	return err
}

var errClosed = errors.New("the peer closed the connection")

var errLong = errors.New("message is too long")

// limit reads no more than n bytes.
type limitedReader struct {
	r net.Conn
	n int
}

func (l *limitedReader) Read(p []byte) (int, error) {
	if l.n <= 0 {
		return 0, errLong
	}
	n, err := l.r.Read(p[:min(len(p), l.n)])
	l.n -= n
	return n, err
}
