package check

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"softroce/verbs/verbstest"
)

// BenchmarkControlCalls reports how many microseconds a program waits for control calls of
// libibverbs.
func BenchmarkControlCalls(b *testing.B) {
	dir := b.TempDir()
	file := filepath.Join(dir, "control_calls")
	for _, args := range [][]string{
		{"make", "-s", "-j2", "-C", "..", "OUT=" + dir, "all"},
		{"gcc", "-O2", "-D_GNU_SOURCE", "-pthread", "-o", file, "testdata/control_calls.c", "-L" + dir, "-libverbs"},
	} {
		if text, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			b.Fatalf("%v: %v\n%s", args, err, text)
		}
	}
	cmd := exec.Command(file, strconv.Itoa(b.N))
	cmd.Env = append(os.Environ(), "SOFTROCE_SOCKET="+verbstest.New(b).Socket(), "LD_LIBRARY_PATH="+dir)
	b.ResetTimer()
	out, err := cmd.Output()
	if err != nil {
		b.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var name string
		var ns float64
		if _, err := fmt.Sscan(lines.Text(), &name, &ns); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(ns/1000, name+"-µs")
	}
	b.ReportMetric(0, "ns/op") // of no meaning: b.N is the number of calls of each kind
}
