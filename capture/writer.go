package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// ErrClosed is returned by a Writer that was closed.
var ErrClosed = errors.New("capture is closed")

// flushEvery bounds how long a frame stays in the buffer while others follow: nanoseconds of the
// frames' times.
const flushEvery = 200e6

// A Writer writes Ethernet frames to a pcapng file, with times in nanoseconds. Its methods may be
// called by several goroutines.
type Writer struct {
	mu      sync.Mutex
	ng      *pcapgo.NgWriter
	buf     *bufio.Writer // that of ng, which cannot write every block
	file    io.Closer     // what Close closes, or nil
	flushed int64         // time of the frame at the last flush
	ifaces  int
	packets uint64
	err     error // the first error; every later call returns it
}

// NewWriter starts a capture on w with at least one interface. Frames are buffered: see Flush.
// Close does not close w.
func NewWriter(w io.Writer, interfaces ...string) (*Writer, error) {
	if len(interfaces) == 0 {
		return nil, errors.New("a capture needs at least one interface")
	}
	section := pcapgo.NgSectionInfo{Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "softroce"}
	buf := bufio.NewWriterSize(w, 1<<16)
	ng, err := pcapgo.NewNgWriterInterface(buf, description(interfaces[0]), pcapgo.NgWriterOptions{SectionInfo: section})
	if err != nil {
		return nil, err
	}
	c := &Writer{ng: ng, buf: buf, ifaces: 1}
	for _, name := range interfaces[1:] {
		if _, err := c.AddInterface(name); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Create is NewWriter on a new file, which Close closes.
func Create(file string, interfaces ...string) (*Writer, error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	c, err := NewWriter(f, interfaces...)
	if err != nil {
		f.Close()
		return nil, err
	}
	c.file = f
	return c, nil
}

func description(name string) pcapgo.NgInterface {
	return pcapgo.NgInterface{Name: name, LinkType: layers.LinkTypeEthernet}
}

// AddInterface adds an interface and returns its number for WriteFrame. Those of NewWriter are
// numbered from 0.
func (c *Writer) AddInterface(name string) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.ng.AddInterface(description(name))
	c.err = err
	c.ifaces = n + 1
	return n, err
}

// WriteFrame adds a whole Ethernet frame that was captured on an interface at wallNs nanoseconds of
// the Unix epoch. It copies the frame.
func (c *Writer) WriteFrame(wallNs int64, iface int, frame []byte) error {
	return c.write(time.Unix(0, wallNs), iface, frame, len(frame), nil)
}

// WriteRecord adds an Ethernet frame of another capture, which may be truncated, with its time and
// its comments. It copies the frame. What is not printable in a comment becomes U+FFFD, and a
// comment of more than 1000 bytes is truncated.
func (c *Writer) WriteRecord(iface int, r Record) error {
	return c.write(r.Time, iface, r.Data, max(r.Length, len(r.Data)), r.Comments)
}

// write adds a frame that had length bytes on the wire.
func (c *Writer) write(at time.Time, iface int, data []byte, length int, comments []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if iface < 0 || iface >= c.ifaces {
		return fmt.Errorf("capture: interface %d of %d", iface, c.ifaces)
	}
	var err error
	if len(comments) == 0 {
		info := gopacket.CaptureInfo{Timestamp: at, InterfaceIndex: iface, CaptureLength: len(data), Length: length}
		err = c.ng.WritePacket(info, data)
	} else {
		err = c.writeCommented(at, iface, data, length, comments)
	}
	if err != nil {
		c.err = fmt.Errorf("capture: %w", err)
		return c.err
	}
	c.packets++
	return c.written(at)
}

// writeCommented is NgWriter.WritePacket with comments.
func (c *Writer) writeCommented(at time.Time, iface int, data []byte, length int, comments []string) error {
	le, ticks := binary.LittleEndian, uint64(at.UnixNano())
	b := le.AppendUint32(nil, uint32(iface))
	b = le.AppendUint32(le.AppendUint32(b, uint32(ticks>>32)), uint32(ticks))
	b = le.AppendUint32(le.AppendUint32(b, uint32(len(data))), uint32(length))
	b = pad(append(b, data...))
	for _, text := range comments {
		text = printable(text)
		b = le.AppendUint16(le.AppendUint16(b, optionComment), uint16(len(text)))
		b = pad(append(b, text...))
	}
	return c.writeBlock(blockEnhanced, le.AppendUint32(b, optionEnd))
}

// pad appends zeros up to a multiple of four bytes.
func pad(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }

// writeBlock writes a block with a body whose length is a multiple of four.
func (c *Writer) writeBlock(kind uint32, body []byte) error {
	le, size := binary.LittleEndian, uint32(len(body)+blockLen)
	b := append(le.AppendUint32(le.AppendUint32(nil, kind), size), body...)
	_, err := c.buf.Write(le.AppendUint32(b, size))
	return err
}

// written flushes the buffer from time to time, after a block of the time at was written.
func (c *Writer) written(at time.Time) error {
	if wallNs := at.UnixNano(); wallNs-c.flushed >= flushEvery || wallNs < c.flushed {
		c.flushed = wallNs
		return c.flush()
	}
	return nil
}

// WriteNote adds a note. Its text is treated as that of a comment: see WriteRecord.
func (c *Writer) WriteNote(n Note) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if err := c.writeBlock(blockJournal, pad(n.journal())); err != nil {
		c.err = fmt.Errorf("capture: %w", err)
		return c.err
	}
	return c.written(n.Time)
}

// WriteStatistics adds how many frames an interface has seen since the capture began, and how many
// of them the capture lost: an interface statistics block of the time wallNs.
func (c *Writer) WriteStatistics(wallNs int64, iface int, seen, lost uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	stats := pcapgo.NgInterfaceStatistics{LastUpdate: time.Unix(0, wallNs), PacketsReceived: seen, PacketsDropped: lost}
	if err := c.ng.WriteInterfaceStats(iface, stats); err != nil {
		c.err = fmt.Errorf("capture: %w", err)
	}
	return c.err
}

func (c *Writer) flush() error {
	if err := c.ng.Flush(); err != nil {
		c.err = fmt.Errorf("capture: %w", err)
	}
	return c.err
}

// Flush writes the buffered frames to the file. Otherwise they are written when later frames
// follow, at the latest flushEvery after them.
func (c *Writer) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	return c.flush()
}

// Packets returns the number of frames written.
func (c *Writer) Packets() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.packets
}

// Close flushes and ends the capture. It returns the error that ended the capture earlier, if any.
// Further calls do nothing.
func (c *Writer) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(c.err, ErrClosed) {
		return nil
	}
	err := c.err
	if err == nil {
		err = c.flush()
	}
	c.err = ErrClosed
	if c.file != nil {
		err = errors.Join(err, c.file.Close())
	}
	return err
}
