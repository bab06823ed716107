package perf

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"softroce/verbs"
)

// The messages on the stream connection are lines of JSON: request, response, then, when the client
// has finished, summary and verdict.

// version is the protocol version. Incompatible changes of the messages below increment it.
const version = 2

// maxMessage bounds a message: maxQPs queue pairs of some hundred bytes each.
const maxMessage = 4 << 20

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

// messageConn sends and receives messages on a stream connection: each is a line of JSON. The
// receiver reads the line to its end, because on a connection without a buffer, such as a net.Pipe,
// the sender waits until it has: a receiver that stops at the end of the JSON and replies may wait
// for the sender, while that waits for the newline to be read.
type messageConn struct {
	conn net.Conn
	in   *bufio.Reader
}

func newMessageConn(c net.Conn) *messageConn { return &messageConn{c, bufio.NewReader(c)} }

func (t *messageConn) send(v any) error { return json.NewEncoder(t.conn).Encode(v) }

func (t *messageConn) receive(v any) error {
	line, err := t.line()
	if errors.Is(err, io.EOF) {
		return errClosed
	}
	if err == nil {
		if err = json.Unmarshal(line, v); err != nil {
			err = fmt.Errorf("%w: %w", ErrPeer, err)
		}
	}
	return err
}

// line reads a line of at most maxMessage bytes.
func (t *messageConn) line() (line []byte, err error) {
	for {
		part, err := t.in.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxMessage {
			return nil, fmt.Errorf("%w: message is too long", ErrPeer)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

var errClosed = errors.New("the peer closed the connection")
