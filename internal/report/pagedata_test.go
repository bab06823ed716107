package report

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"softroce/internal/conversation"
)

// seriesKeys are the names of the classes and flags in page.js.
var seriesKeys = [numSeries]string{"request", "again", "response", "ack", "nak", "rnr", "cnp", "copy", "damaged", "ce", "violation", "comment"}

// pageData is what a page holds for its script.
type pageData struct {
	t     testing.TB
	meta  metaPage
	blobs map[int]string
	text  string // of the whole page
}

func readPage(t testing.TB, page string) *pageData {
	t.Helper()
	d := &pageData{t: t, blobs: map[int]string{}, text: page}
	const blob = `<script type="text/plain" id="b`
	for at := page; ; {
		_, rest, ok := strings.Cut(at, blob)
		if !ok {
			break
		}
		id, rest, _ := strings.Cut(rest, `">`)
		text, rest, _ := strings.Cut(rest, "</script>")
		n, err := strconv.Atoi(id)
		if err != nil || text == "" {
			t.Fatalf("blob %q of %d bytes", id, len(text))
		}
		d.blobs[n], at = text, rest
	}
	if err := json.Unmarshal([]byte(between(t, page, `id="meta">`, "</script>")), &d.meta); err != nil {
		t.Fatal(err)
	}
	return d
}

func between(t testing.TB, s, from, to string) string {
	t.Helper()
	_, s, ok := strings.Cut(s, from)
	s, _, end := strings.Cut(s, to)
	if !ok || !end {
		t.Fatalf("the page has no %q", from)
	}
	return s
}

func (d *pageData) unpack(id int) *bytes.Reader {
	d.t.Helper()
	raw, err := base64.StdEncoding.DecodeString(d.blobs[id])
	if err != nil {
		d.t.Fatal(err)
	}
	data, err := io.ReadAll(flate.NewReader(bytes.NewReader(raw)))
	if err != nil || len(data) == 0 {
		d.t.Fatalf("blob %d: %d bytes, %v", id, len(data), err)
	}
	return bytes.NewReader(data)
}

// must reads a number of a blob.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // the blob is too short
	}
	return v
}

// shown returns what the diagrams, ladders and levels of detail show of all connections.
func (d *pageData) shown() *shown {
	out := &shown{Counts: map[string]int{}, Verdict: html.UnescapeString(between(d.t, d.text, `<p id="verdict"`, "</p>"))}
	for i := range d.meta.Connections {
		c := &d.meta.Connections[i]
		counts := map[string]int{}
		for k, chunk := range c.Chunks {
			out.Packets = append(out.Packets, d.points(c, &chunk, counts)...)
			if k != len(c.Chunks)-1 && chunk[1] != int64(d.meta.ChunkPoints) {
				d.t.Errorf("chunk %d has %d packets", k, chunk[1])
			}
		}
		for _, id := range c.Texts {
			out.Rungs += strings.Count(string(must(io.ReadAll(d.unpack(id)))), "\n")
		}
		for _, l := range c.Levels {
			if got := d.level(l); fmt.Sprint(got) != fmt.Sprint(counts) {
				d.t.Errorf("a level of %d blocks shows %v, the points are %v", l.N, got, counts)
			}
		}
		for key, n := range counts {
			out.Counts[key] += n
		}
	}
	for _, s := range d.meta.Spots {
		if out.Packets[s[2]+d.before(s[1])].No != s[0] {
			d.t.Errorf("packet %d is not packet %d of connection %d", s[0], s[2], s[1])
		}
	}
	return out
}

// before returns how many packets the connections before one have.
func (d *pageData) before(connection int) (n int) {
	for _, c := range d.meta.Connections[:connection] {
		n += c.Packets
	}
	return n
}

// points decodes a chunk as decodePoints of page.js does, and counts what its points are.
func (d *pageData) points(c *metaConnection, chunk *[4]int64, counts map[string]int) []shownPacket {
	r, ps := d.unpack(int(chunk[0])), make([]shownPacket, chunk[1])
	no, at := 0, int64(0)
	for i := range ps {
		no += int(must(binary.ReadUvarint(r)))
		ps[i].No = no
	}
	for range ps {
		if at += must(binary.ReadVarint(r)); at < chunk[2] || at > chunk[3] {
			d.t.Errorf("a packet at %d is not between %d and %d", at, chunk[2], chunk[3])
		}
	}
	stream := make([]int, len(ps))
	for i := range ps {
		b := must(r.ReadByte())
		stream[i] = int(b >> 1 & 1)
		counts[seriesKeys[b>>2]]++
	}
	for range ps {
		b := must(r.ReadByte())
		for f, flag := range flags {
			if b&flag != 0 {
				counts[seriesKeys[seriesCE+class(f)]]++
			}
		}
	}
	for i := range ps {
		ps[i].Opcode = d.meta.Opcodes[fmt.Sprint(must(r.ReadByte()))]
	}
	var seq [2]int64
	for i := range ps {
		seq[stream[i]] += must(binary.ReadVarint(r))
		ps[i].PSN = conversation.Wrap(int64(c.Streams[stream[i]].PSN) + seq[stream[i]])
	}
	for i := range ps {
		ps[i].Bytes = int(must(binary.ReadUvarint(r)))
	}
	return ps
}

// level decodes a level of detail as decodeBlocks of page.js does, and returns how many packets of
// each series its blocks have.
func (d *pageData) level(l metaLevel) map[string]int {
	r, counts := d.unpack(l.ID), map[string]int{}
	span := func() int {
		n := must(binary.ReadUvarint(r))
		must(binary.ReadVarint(r))
		must(binary.ReadUvarint(r))
		return int(n)
	}
	for range l.N {
		must(binary.ReadUvarint(r))
		must(binary.ReadVarint(r))
		must(binary.ReadUvarint(r))
		for range 2 {
			must(binary.ReadUvarint(r))
			span()
			for k := must(r.ReadByte()); k > 0; k-- {
				counts[seriesKeys[must(r.ReadByte())]] += span()
			}
		}
	}
	if r.Len() != 0 {
		d.t.Errorf("a level of %d blocks has %d bytes more", l.N, r.Len())
	}
	return counts
}

// shownBy returns what the page of a report shows.
func shownBy(t testing.TB, r *Report) *shown {
	t.Helper()
	var page strings.Builder
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	return readPage(t, page.String()).shown()
}

// shownByFile is shownBy of a page that was written.
func shownByFile(t testing.TB, file string) *shown {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return readPage(t, string(page)).shown()
}
