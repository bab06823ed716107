package report

import (
	"bytes"
	"flag"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"softroce/internal/browsertest"
)

var screenshot = flag.String("screenshot", "", "`file` to write the picture of docs/use/captures.md to")

// TestScreenshot takes the picture of the documentation, docs/use/report.png:
//
//	go test ./internal/report -run Screenshot -screenshot ../../docs/use/report.png
func TestScreenshot(t *testing.T) {
	b := browsertest.Start(t, "")
	to, err := filepath.Abs(*screenshot)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir()) // the page has the name of the file
	const file = "lossy.pcapng"
	writeLossy(t, file, 20000)
	r, err := Read(opener(file))
	if err != nil {
		t.Fatal(err)
	}
	open(t, b, r)
	var painted bool
	run(t, b, `await idle();
		const c = document.querySelector("#psn canvas"), data = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
		return data.some(v => v !== 0);`, &painted)
	if !painted {
		t.Error("the diagram is empty")
	}
	var picture []byte
	if err := chromedp.Run(b, chromedp.EmulateViewport(1000, 1500)); err != nil {
		t.Fatal(err)
	}
	run(t, b, `
		document.querySelector("#next").click();
		while (softroceReport.view.selected < 0 || !document.querySelector(".rung[aria-selected=true] .remark")) await idle();
		return true;`, &painted)
	if err := chromedp.Run(b, chromedp.CaptureScreenshot(&picture)); err != nil {
		t.Fatal(err)
	}
	b.Check(t)
	seen, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	if size := seen.Bounds().Size(); size.X != 1000 || size.Y != 1500 || len(picture) > 200<<10 {
		t.Errorf("a picture of %v, %d bytes", size, len(picture))
	}
	if *screenshot != "" {
		if err := os.WriteFile(to, picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
