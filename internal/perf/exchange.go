package perf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"softroce/verbs"
)

// The messages on the stream connection are JSON values: request, response, then, when the client
// has finished, summary and verdict.

// version is the protocol version. Incompatible changes of the messages below increment it.
const version = 2

// maxMessage bounds a message: maxQPs queue pairs of some hundred bytes each.
const maxMessage = 1 << 20

// request is sent by the client: its options and its endpoint.
type request struct {
	Version  int          `json:"softroce_perf"`
	Options  Options      `json:"options"`
	Endpoint endpointInfo `json:"place"`
}

// response is sent by the server: its endpoint, or the reason why it rejects the request.
type response struct {
	Version  int          `json:"softroce_perf"`
	Error    string       `json:"error,omitempty"`
	MTU      int          `json:"mtu"`
	Endpoint endpointInfo `json:"place"`
}

// endpointInfo is what a peer needs to know of an endpoint: its queue pairs and memory.
type endpointInfo struct {
	Device string       `json:"device"`
	QPs    []verbs.Info `json:"qps"`
	Addr   uint64       `json:"addr"`
	RKey   uint32       `json:"rkey"`
	MTU    int          `json:"mtu"` // active MTU of the port
}

// summary is sent by the client when it has finished.
type summary struct {
	Operations uint64 `json:"operations"`
	Failed     bool   `json:"failed"`
	Checksum   uint32 `json:"checksum"` // of the data that the server should hold
}

// verdict is sent by the server after it has verified the data.
type verdict struct {
	Error    string `json:"error,omitempty"`
	Received uint64 `json:"received,omitempty"` // messages received, for Send
}

// ErrPeer is returned if the peer does not follow the protocol of this package.
var ErrPeer = errors.New("the peer does not speak softroce perf's protocol")

// messageConn sends and receives JSON messages on a stream connection.
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

// limitedReader fails after n bytes.
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
