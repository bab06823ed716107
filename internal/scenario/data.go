package scenario

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// maxData bounds the length of a data expression, in bytes.
const maxData = 1 << 24

// parseData parses a data expression, which consists of pieces joined by plus signs: 100*x is the
// character x repeated 100 times, hex:00ff two bytes, 9*hex:00ff those bytes repeated 9 times,
// u64:5 a number as an atomic stores it in memory. Any other piece is literal.
func parseData(w string) ([]byte, error) {
	var b []byte
	for piece := range strings.SplitSeq(w, "+") {
		p, err := parsePiece(piece)
		if err != nil {
			return nil, fmt.Errorf("data %q: %w", piece, err)
		}
		b = append(b, p...)
	}
	return b, nil
}

func parsePiece(w string) ([]byte, error) {
	if h, ok := strings.CutPrefix(w, "hex:"); ok {
		return hex.DecodeString(h)
	}
	if u, ok := strings.CutPrefix(w, "u64:"); ok {
		n, err := parseNumber(u, 64)
		return binary.NativeEndian.AppendUint64(nil, n), err
	}
	count, what, ok := strings.Cut(w, "*")
	if !ok {
		return []byte(w), nil
	}
	if h, ok := strings.CutPrefix(what, "hex:"); ok {
		b, err := hex.DecodeString(h)
		if err != nil {
			return nil, err
		}
		what = string(b)
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n*len(what) > maxData {
		return nil, fmt.Errorf("%q: want a repeat count, at most %d bytes", count, maxData)
	}
	return []byte(strings.Repeat(what, n)), nil
}

// formatData is the inverse of parseData.
func formatData(b []byte) string {
	var pieces []string
	for i := 0; i < len(b); {
		j := i
		for j < len(b) && b[j] == b[i] {
			j++
		}
		const long = 4 // the length from which a run is written as a count
		if j-i >= long && printable(b[i]) {
			pieces = append(pieces, fmt.Sprintf("%d*%c", j-i, b[i]))
			i = j
			continue
		}
		j = i + 1
		for j < len(b) && printable(b[j]) == printable(b[i]) && !(j+long <= len(b) && same(b[j:j+long]) && printable(b[j])) {
			j++
		}
		if printable(b[i]) {
			pieces = append(pieces, string(b[i:j]))
		} else {
			pieces = append(pieces, "hex:"+hex.EncodeToString(b[i:j]))
		}
		i = j
	}
	if len(pieces) == 0 {
		return "nothing"
	}
	return strings.Join(pieces, "+")
}

func printable(c byte) bool { return c > ' ' && c < 0x7f && c != '+' && c != '*' }

func same(b []byte) bool {
	for _, c := range b {
		if c != b[0] {
			return false
		}
	}
	return true
}
