package web

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image/png"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"softroce/internal/browsertest"
	"softroce/verbs/verbstest"
)

var screenshot = flag.String("screenshot", "", "`file` to write the picture of docs/use/live.md to")

// keepWriting writes until the test ends.
func keepWriting(t *testing.T, x, y *verbstest.Endpoint) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			write(x, y)
		}
	}()
	t.Cleanup(func() { stop(); <-done })
}

// TestPageInBrowser uses the page as an operator does: it gives a wrong token and the right one,
// follows the PSNs of a queue pair, records packets, and opens their report. It takes the picture
// of the documentation, docs/use/live.png:
//
//	go test ./internal/web -run Browser -screenshot ../../docs/use/live.png
func TestPageInBrowser(t *testing.T) {
	s := start(t, "drop nic softroce0 send kind write every 9000")
	x, y := s.connect()
	b := browsertest.Start(t, s.URL())
	keepWriting(t, x, y)
	if err := chromedp.Run(b, chromedp.EmulateViewport(1100, 1350), chromedp.Navigate(s.URL())); err != nil {
		t.Fatal(err)
	}
	const help = `
		const $ = id => document.getElementById(id), P = softrocePage;
		const until = async f => { for (;;) { const v = f(); if (v) return v; await new Promise(r => setTimeout(r, 20)); } };
		const button = text => [...document.querySelectorAll("button")].find(b => b.textContent === text);
		const token = async t => { const n = P.updates(); $("token").value = t; $("token").dispatchEvent(new Event("change")); await until(() => P.updates() > n || !$("error").hidden); };
		const qp = ` + "`softroce0/${QPN}`" + `;`
	script := func(body string) string {
		return strings.ReplaceAll(strings.ReplaceAll(help+body, "${QPN}", fmt.Sprint(x.QPNum())), "${TOKEN}", s.token)
	}
	var looked struct {
		Summary, Refused, Hidden string
		Disabled                 bool
	}
	b.Run(t, script(`
		await until(() => P.updates() > 0);
		const out = { Summary: $("summary").textContent, Disabled: $("start").disabled };
		button(qp).click();
		out.Hidden = await until(() => $("error").textContent);
		return out;`), &looked)
	if !strings.Contains(looked.Summary, "2 NICs") || !looked.Disabled || !strings.Contains(looked.Hidden, "shown to the operator") {
		t.Errorf("%+v", looked)
	}
	b.Forgive() // Chromium logs the status 403
	b.Run(t, script(`await token("wrong"); return { Refused: $("error").textContent };`), &looked)
	if !strings.Contains(looked.Refused, "token is missing or wrong; it is in "+s.TokenFile()) {
		t.Errorf("a wrong token: %q", looked.Refused)
	}
	b.Forgive()
	var operated struct {
		Disabled     bool
		Points       int
		Grows, Drawn bool
		Report       string
	}
	b.Run(t, script(`
		await token("${TOKEN}");
		await until(() => !$("start").disabled);
		const out = { Disabled: $("start").disabled };
		button(qp).click();
		await until(() => P.data() && P.data()[1].length >= 8);
		const [at, next] = P.data();
		out.Points = at.length;
		out.Grows = next.every((v, i) => i === 0 || v >= next[i - 1]) && next.at(-1) > 0;
		const c = document.querySelector("#plot canvas");
		out.Drawn = c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some(v => v !== 0);
		$("filter").value = "kind write";
		button("Start a capture").click();
		await until(() => /[1-9]\d* packets/.test($("captures").textContent));
		button("Stop").click();
		const link = await until(() => [...document.links].find(l => l.textContent === "Report"));
		scrollTo(0, 0);
		out.Report = link.href;
		return out;`), &operated)
	if operated.Disabled || operated.Points < 8 || !operated.Grows || !operated.Drawn {
		t.Errorf("%+v", operated)
	}
	var picture []byte
	if err := chromedp.Run(b, chromedp.CaptureScreenshot(&picture)); err != nil {
		t.Fatal(err)
	}
	if seen, err := png.Decode(bytes.NewReader(picture)); err != nil || seen.Bounds().Dx() != 1100 || len(picture) > 250<<10 {
		t.Errorf("a picture of %d bytes, %v", len(picture), err)
	}
	if *screenshot != "" {
		if err := os.WriteFile(*screenshot, picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := chromedp.Run(b, chromedp.Navigate(operated.Report)); err != nil {
		t.Fatal(err)
	}
	var report struct {
		Verdict, Origin string
		Packets         int
	}
	b.Run(t, `
		while (softroceReport.isBusy() || !document.querySelector("#shown").textContent) await new Promise(requestAnimationFrame);
		return { Verdict: document.querySelector("#verdict").textContent, Origin: self.origin, Packets: parseInt(document.querySelector("#shown").textContent.replace(/\D/g, "")) };`, &report)
	if report.Verdict == "" || report.Packets == 0 || report.Origin != "null" {
		t.Errorf("%+v", report)
	}
	b.Check(t)
}
