package daemon

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/capture"
)

func TestParseCapture(t *testing.T) {
	for text, want := range map[string]string{
		"all.pcapng":                      "all.pcapng",
		"-":                               "-",
		"a,b.pcapng":                      "a,b.pcapng",
		"a,count=5":                       "a count 5",
		"a,device=x,snaplen=100,count=7":  "a device x snaplen 100 count 7",
		"a,file-size=1MiB,files=3":        "a file-size 1048576 files 3",
		"a,file-time=90s":                 "a file-time 1m30s",
		"a,filter=qp 17,18 kind nak":      "a filter [qp 17,18 kind nak]",
		"a,filter=kind nak,filter=qp 0x3": "a filter [kind nak qp 0x3]",
		"a,count=3000000000":              "a count 3000000000",

		"a,b":                                 "a,b",
		"x,seed=2.pcapng":                     "x,seed=2.pcapng",
		"x,count=2.pcap,count=5":              "x,count=2.pcap count 5",
		"/runs/lr=0.1,seed=2/all.pcapng":      "/runs/lr=0.1,seed=2/all.pcapng",
		"runs,count=2/all,count=5":            "runs,count=2/all count 5",
		"all,,count=5":                        "all,count=5",
		"all,,,count=5":                       "all, count 5",
		"a,,filter=b/all,count=5":             "a,filter=b/all count 5",
		"d/all,count=5,filter=src 10.0.0.0/8": "d/all count 5 filter [src 10.0.0.0/8]",
	} {
		o, err := ParseCapture(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got := o.Output
		for _, f := range []struct {
			name string
			set  bool
			v    any
		}{
			{"device", o.Device != "", o.Device}, {"snaplen", o.SnapLen != 0, o.SnapLen}, {"count", o.Count != 0, o.Count},
			{"file-size", o.FileSize != 0, o.FileSize}, {"file-time", o.FileTime != 0, o.FileTime}, {"files", o.Files != 0, o.Files},
			{"filter", o.Filter != nil, o.filters},
		} {
			if f.set {
				got += fmt.Sprintf(" %s %v", f.name, f.v)
			}
		}
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"":                        "needs the name of a file",
		",count=5":                "needs the name of a file",
		"a,cuont=5":               `option "cuont" of a capture is unknown; the options are count, device, file-size, file-time, files, filter, snaplen`,
		"a,count=0":               `count: "0": want a number from 1 to 9223372036854775807`,
		"a,count=":                "count needs a value",
		"a,device=":               "device needs a value",
		"a,filter=":               "filter needs a value",
		"a,count":                 "count needs a value",
		"a,count,files=3":         "count needs a value",
		"a,count=1,count=2":       "count is given twice (a comma in the name of the file is written ,,)",
		"a,Count=3":               `option "Count" of a capture is unknown`,
		"a, count=3":              `option " count" of a capture is unknown`,
		"a.pcapng,file_size=1GiB": `option "file_size" of a capture is unknown`,
		"a,snaplen=-1":            `snaplen: "-1": want`,
		"a,file-size=0":           `file-size: "0": want 1 byte or more`,
		"a,file-time=10":          `file-time: "10": want a time such as 10m`,
		"a,files=3":               "files needs file-size or file-time",
		"-,file-size=1MiB":        "standard output is one file",
		"a,filter=qq 17":          `filter: "qq": is not a condition`,
	} {
		if _, err := ParseCapture(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want …%s", text, err, want)
		}
	}
}

func TestAnyFileOfACaptureHasAText(t *testing.T) {
	for _, file := range []string{"/a", "/a,b", "/a,count=1", "/a,,b", "/a,", "/,", "/a,filter=b/c", "/a,count", "/a.pcapng,count=1/b.pcap,files=3"} {
		for _, options := range []string{"", ",count=5", ",filter=src 10.0.0.0/8,count=5"} {
			if gotFile, gotOptions := SplitCapture(JoinCapture(file, options)); gotFile != file || gotOptions != options {
				t.Errorf("%s and %s: got %s and %s", file, options, gotFile, gotOptions)
			}
		}
	}
}

// exchange sends a message of n packets from the first NIC of a daemon to the second.
func exchange(t *testing.T, d *Daemon, packets int) {
	t.Helper()
	a, b := newEndpoint(t, open(t, d, "softroce0")), newEndpoint(t, open(t, d, "softroce1"))
	connect(t, a, b)
	write(t, a, b, packets*4096)
}

func TestRunCaptureSelects(t *testing.T) {
	for _, c := range []struct {
		options string
		want    string // for each file: name, and the opcodes
		end     string
	}{
		{"filter=kind ack", "all.pcapng: ACKNOWLEDGE", "capture %s: 1 packet, "},
		{"device=softroce1,count=2", "all.pcapng: WRITE_FIRST WRITE_MIDDLE", "capture %s: 2 packets, "},
		{"filter=kind write,file-size=9000,files=2", "all_00002.pcapng: WRITE_LAST", "; 2 files, "},
		{"snaplen=60", "all.pcapng: WRITE_FIRST WRITE_MIDDLE WRITE_LAST ACKNOWLEDGE", "capture %s: 4 packets, 240 bytes"},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "all.pcapng")
		d := start(t, Config{Capture: file + "," + c.options})
		exchange(t, d, 3)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		last := files[len(files)-1]
		got := filepath.Base(last) + ":"
		for _, p := range recorded(t, last) {
			got += " " + strings.TrimPrefix(p.Opcode.String(), "RC_")
		}
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.options, got, c.want)
		}
		var end bytes.Buffer
		if err := d.WriteEnd(&end); err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(c.end, "%s", file); !strings.Contains(end.String(), want) {
			t.Errorf("%s: %q, want …%s", c.options, &end, want)
		}
	}
}

// A capture that has all the packets it wants ends, and its file is complete while the NICs go on.
func TestRunCaptureEndsAtItsCount(t *testing.T) {
	path := newFIFO(t)
	r := openReader(t, path)
	d := start(t, Config{Capture: path + ",count=2", CaptureBlocking: true})
	exchange(t, d, 3)
	<-d.capture.done
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	c, err := capture.NewReader(bytes.NewReader(text), "fifo")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, err := range c.Records() {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 2 {
		t.Errorf("%d packets, want 2", n)
	}
	exchange(t, d, 3)
}

// lines receives the lines of a log, and never blocks the logger.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default:
	}
	return len(b), nil
}

func TestEndOfARunCaptureIsLogged(t *testing.T) {
	log := make(lines, 100)
	path := filepath.Join(t.TempDir(), "all.pcapng")
	only := slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	d, err := Start(withSocket(t, Config{Capture: path + ",count=2"}), "test", slog.New(only))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	exchange(t, d, 3)
	want := fmt.Sprintf("level=INFO msg=%q file=%s packets=2\n", "the capture has the packets that it was to record", path)
	for ctx := testContext(t); ; {
		select {
		case got := <-log:
			if got == want {
				return
			}
		case <-ctx.Done():
			t.Fatalf("not logged: %s", want)
		}
	}
}

func TestRunCaptureOfSelectionWaitsForReader(t *testing.T) {
	path := newFIFO(t)
	d := start(t, Config{Capture: path + ",filter=kind ack"})
	exchange(t, d, 3)
	r := openReader(t, path)
	block := make([]byte, 4)
	n := 0
	for n == 0 { // the end of the file, before the daemon has opened it
		n, _ = r.Read(block)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if string(block) != "\n\r\r\n" {
		t.Errorf("read %x", block[:n])
	}
}

// The reader of a selection learns the interfaces before there is a packet.
func TestHeaderPrecedesTheFirstSelectedPacket(t *testing.T) {
	const conditions = "kind nak"
	only, err := capture.ParseFilter(conditions)
	if err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]func(path string) (end func() error){
		"run --capture": func(path string) func() error {
			return start(t, Config{Capture: path + ",filter=" + conditions}).Close
		},
		"capture": func(path string) func() error {
			ctx, stop := context.WithCancel(testContext(t))
			d := start(t, Config{})
			ended := make(chan error, 1)
			go func() {
				_, err := Record(ctx, d.Socket(), RecordOptions{Output: path, Filter: only})
				ended <- err
			}()
			return func() error { stop(); return <-ended }
		},
	} {
		path := newFIFO(t)
		fifo, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0) // does not end before it has a writer
		if err != nil {
			t.Fatal(err)
		}
		defer fifo.Close()
		if at, ok := testContext(t).Deadline(); ok {
			fifo.SetReadDeadline(at)
		}
		end := from(path)
		c, err := capture.NewReader(fifo, name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var names []string
		for _, i := range c.Interfaces() {
			names = append(names, i.Name)
		}
		if want := []string{"softroce0", "softroce1"}; !slices.Equal(names, want) {
			t.Errorf("%s: interfaces %v, want %v", name, names, want)
		}
		if err := end(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStandardInputIsRead(t *testing.T) {
	stdin := os.Stdin
	t.Cleanup(func() { os.Stdin = stdin })
	use := func(text string) {
		t.Helper()
		f, err := os.Open(writeConfig(t, text))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		os.Stdin = f
	}
	use("nics: [one=fabric]\n")
	if c, err := ReadConfig("-"); err != nil || len(c.NICs) != 1 {
		t.Errorf("configuration: %+v, %v", c, err)
	}
	use("colour: red\n")
	if _, err := ReadConfig("-"); err == nil || !strings.HasPrefix(err.Error(), "standard input:1: ") {
		t.Errorf("invalid configuration: %v", err)
	}
	use("drop chance 1%\n")
	if p, err := readFaults("-"); err != nil || len(p.Rules) != 1 {
		t.Errorf("fault program: %+v, %v", p, err)
	}
	use("drop it\n")
	if _, err := readFaults("-"); err == nil || !strings.HasPrefix(err.Error(), "standard input: line 1: ") {
		t.Errorf("invalid fault program: %v", err)
	}
}
