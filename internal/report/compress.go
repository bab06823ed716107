package report

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"runtime"
	"sync"
)

// A compressor compresses data while the capture is read on.
type compressor struct {
	slots   chan struct{} // of the blobs that are being compressed
	writers sync.Pool     // of *flate.Writer
}

func newCompressor() *compressor {
	return &compressor{slots: make(chan struct{}, runtime.GOMAXPROCS(0))}
}

// A blob is compressed data in base64, as the page's unpack expects it.
type blob struct {
	data []byte
	done chan struct{} // closed once there is data
}

// compress begins to compress data, which it owns from then on.
func (c *compressor) compress(data []byte) *blob {
	b := &blob{done: make(chan struct{})}
	c.slots <- struct{}{}
	go func() {
		b.data = c.deflate(data)
		<-c.slots
		close(b.done)
	}()
	return b
}

// text returns the data once it is compressed.
func (b *blob) text() []byte {
	<-b.done
	return b.data
}

func (c *compressor) deflate(data []byte) []byte {
	var b bytes.Buffer
	w, ok := c.writers.Get().(*flate.Writer)
	if !ok {
		w, _ = flate.NewWriter(nil, flate.BestSpeed) // fails for other levels only
	}
	w.Reset(&b)
	_, err := w.Write(data)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err) // a buffer takes all
	}
	c.writers.Put(w)
	return base64.StdEncoding.AppendEncode(nil, b.Bytes())
}
