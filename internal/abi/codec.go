package abi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

//go:generate go run ./gen -package . -o ../../libverbs/core/softroce_abi.h

// HeaderSize is the size of Header in bytes.
const HeaderSize = 32

// Errors of Decode and ParseHeader; match with errors.Is.
var (
	ErrShort  = errors.New("message is shorter than its operation needs")
	ErrLength = errors.New("message length differs from its header's")
)

// Size returns the size of a message struct in bytes.
func Size(v any) int { return binary.Size(v) }

// Append appends the bytes of message structs to b.
func Append(b []byte, parts ...any) []byte {
	for _, p := range parts {
		var err error
		if b, err = binary.Append(b, binary.LittleEndian, p); err != nil {
			panic(fmt.Sprintf("abi: %T is not of fixed size", p)) // a bug in the layout
		}
	}
	return b
}

// Message appends a message to b: h, with its Length set, and the parts of the body.
func Message(b []byte, h Header, parts ...any) []byte {
	start := len(b)
	b = Append(b, h)
	b = Append(b, parts...)
	binary.LittleEndian.PutUint32(b[start+4:], uint32(len(b)-start))
	return b
}

// Decode reads a message struct from the start of b and returns what follows it.
func Decode(b []byte, v any) (rest []byte, err error) {
	n, err := binary.Decode(b, binary.LittleEndian, v)
	if err != nil {
		return nil, fmt.Errorf("%w: %d bytes for %T", ErrShort, len(b), v)
	}
	return b[n:], nil
}

// ParseHeader splits a received message into header and body.
func ParseHeader(b []byte) (h Header, body []byte, err error) {
	body, err = Decode(b, &h)
	if err != nil {
		return h, nil, err
	}
	if int64(h.Length) != int64(len(b)) {
		return h, nil, fmt.Errorf("%w: %d bytes, not %d", ErrLength, len(b), h.Length)
	}
	return h, body, nil
}

// Text returns the string in a field of fixed size, up to its first zero byte.
func Text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// PutText fills a field of fixed size with s, truncated so that a zero byte ends it.
func PutText(field []byte, s string) {
	n := copy(field[:len(field)-1], s)
	clear(field[n:])
}

// RingSize returns the size of a ring in bytes.
func RingSize(slots, slotSize int) int { return RingSlots + slots*slotSize }
