package report

import (
	"bufio"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"golang.org/x/sys/unix"

	"softroce/internal/browsertest"
)

// BenchmarkMillion measures the page of a lossy capture of a million packets: its size, the time to
// write it from the file in wall clock and in processor time, and, if Chromium is installed, the
// time until its first diagram is drawn. It compares the page with what check and decode --json
// print. The clock of the capture is virtual.
//
//	go test ./internal/report -run '^$' -bench Million -benchtime 1x
func BenchmarkMillion(b *testing.B) {
	dir := b.TempDir()
	file, page := filepath.Join(dir, "million.pcapng"), filepath.Join(dir, "million.html")
	writeLossy(b, file, 1_000_000)
	var packets int
	var before, after unix.Rusage
	for b.Loop() {
		if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
			b.Fatal(err)
		}
		r, err := Read(opener(file))
		if err != nil {
			b.Fatal(err)
		}
		packets = totalsOf(r).packets
		f, err := os.Create(page)
		if err != nil {
			b.Fatal(err)
		}
		w := bufio.NewWriter(f)
		if err := r.WriteHTML(w); err != nil {
			b.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			b.Fatal(err)
		}
		f.Close()
		if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
			b.Fatal(err)
		}
	}
	st, err := os.Stat(page)
	if err != nil {
		b.Fatal(err)
	}
	compare(b, file, shownByFile(b, page))
	b.ReportMetric(float64(packets), "packets")
	b.ReportMetric(float64(after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano())/1e9, "cpu-s")
	b.ReportMetric(float64(st.Size())/(1<<20), "MiB")
	c := browsertest.Start(b, "")
	start := time.Now()
	if err := chromedp.Run(c, chromedp.Navigate("file://"+page)); err != nil {
		b.Fatal(err)
	}
	var points int
	run(b, c, "await idle(); return softroceReport.view.shown.blocks === null ? 0 : 1;", &points)
	b.ReportMetric(time.Since(start).Seconds(), "s-to-paint")
	if points == 0 {
		b.Error("the page draws no levels of detail")
	}
	var paint float64
	run(b, c, `const p = performance.getEntriesByName("first-contentful-paint"); return p.length ? p[0].startTime : -1;`, &paint)
	b.ReportMetric(paint, "ms-first-paint")
	c.Check(b)
}
