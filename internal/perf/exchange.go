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
type hello struct {
	Version int     `json:"softroce_perf"`
	Options Options `json:"options"`
	Place   place   `json:"place"`
}

// answer is where the server is, or why it will not.
type answer struct {
	Version int    `json:"softroce_perf"`
	Error   string `json:"error,omitempty"`
	MTU     int    `json:"mtu"`
	Place   place  `json:"place"`
}

// place is where one side's queue pairs and memory are.
type place struct {
	Device string       `json:"device"`
	QPs    []verbs.Info `json:"qps"`
	Addr   uint64       `json:"addr"`
	RKey   uint32       `json:"rkey"`
	MTU    int          `json:"mtu"` // active MTU of the port
}

// finish tells what the client did.
type finish struct {
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
type talk struct {
	conn net.Conn
	dec  *json.Decoder
	left *limit
}

func newTalk(c net.Conn) *talk {
	l := &limit{r: c}
	return &talk{c, json.NewDecoder(l), l}
}

func (t *talk) tell(v any) error { return json.NewEncoder(t.conn).Encode(v) }

func (t *talk) hear(v any) error {
	t.left.n = maxMessage
	err := t.dec.Decode(v)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &kind) || errors.Is(err, errLong) {
		return fmt.Errorf("%w: %w", ErrPeer, err)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errHungUp
	}
	return err
}

var errHungUp = errors.New("the other end hung up")

var errLong = errors.New("message is too long")

// limit reads no more than n bytes.
type limit struct {
	r net.Conn
	n int
}

func (l *limit) Read(p []byte) (int, error) {
	if l.n <= 0 {
		return 0, errLong
	}
	n, err := l.r.Read(p[:min(len(p), l.n)])
	l.n -= n
	return n, err
}
