package netsim

import (
	"bytes"
	"flag"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"softroce/internal/browsertest"
)

// open opens the page of a result.
func open(t *testing.T, b *browsertest.Browser, r *Result, title string) {
	t.Helper()
	var page bytes.Buffer
	if err := r.WriteHTML(&page, title); err != nil {
		t.Fatal(err)
	}
	name := write(t, t.TempDir(), "page.html", page.String())
	if err := chromedp.Run(b, chromedp.Navigate("file://"+name)); err != nil {
		t.Fatal(err)
	}
}

// shown is what a page shows.
type shown struct {
	Title, Verdict, Class string
	Summary               []string
	First                 string              // the first table
	Painted               []string            // diagrams that have something else than the background
	Empty                 []string            // diagrams that have a text instead
	Legends               map[string][]string // names of the lines
	Highest               map[string]float64  // value of a line
	Rows                  map[string]int      // of tables
}

const readShown = `
	for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
	const text = e => e.textContent.trim(), all = q => [...document.querySelectorAll(q)];
	const out = { Title: text(document.querySelector("h1")), Verdict: text(document.querySelector("#verdict")), Class: document.querySelector("#verdict").className,
		Summary: all("#summary tr").map(tr => [...tr.children].map(text).join("|")), First: document.querySelector("table").id,
		Painted: [], Empty: all(".plot.empty").map(e => e.id), Legends: {}, Highest: {}, Rows: {} };
	for (const [id, p] of Object.entries(softroceSim.plots)) {
		out.Legends[id] = p.series.slice(1).map(s => s.label);
		out.Highest[id] = Math.max(...p.data[1]);
		const c = document.querySelector("#" + id + " canvas"), { left, top, width, height } = p.bbox;
		const colors = new Set(), d = c.getContext("2d").getImageData(left, top, width, height).data;
		for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) colors.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
		if (colors.size > 2) out.Painted.push(id);
	}
	for (const t of all("main table[id]")) out.Rows[t.id] = t.tBodies[0].rows.length;
	return out;`

// The page begins with the verdict and the summary, and has all that there is to draw.
func TestPageShowsResult(t *testing.T) {
	b := browsertest.Start(t, "")
	congested, err := simulate(t, sampledTopology, `
time: 5ms
warmup: 1ms
traffic: [{pattern: incast}, {pattern: poisson, load: 0.2, count: 60, sizes: hadoop}]
failures: [{kind: loss, link: n0, probability: 0.01, start: 2ms, end: 4ms}]`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	deadlock, err := simulate(t, ringTopology(), flowsAround(2), Options{})
	if err == nil {
		t.Fatal("no deadlock")
	}
	cut := run(t, "nic: {timeout: 8}\nstar: {nics: 3}", "traffic: [{pattern: permutation, size: 1MB}]\nfailures: [{kind: link_down, link: n1}]")
	starved := run(t, "nic: {congestion: none}\nswitch: {weights: {0: 1, 1: 30}, pfc: {priorities: [0, 1], xoff: 40kB, xon: 20kB, headroom: 60kB}}\nstar: {nics: 4}", `
time: 5ms
traffic: [{pattern: flow, from: n0, to: n3}, {pattern: flow, from: n1, to: n3, priority: 1}, {pattern: flow, from: n2, to: n3, priority: 1}]`)
	quiet := run(t, "star: {nics: 2}", "traffic: [{pattern: flow, from: n0, to: n1, size: 1kB}]")
	for _, c := range []struct {
		name           string
		r              *Result
		class, verdict string
		painted, empty []string
	}{
		{"congested", congested, "good", "of 64 flows ended, and ", []string{"rates", "queues", "paused", "signals", "slowdown"}, nil},
		{"deadlock", deadlock, "bad", "s0:s1, s1:s2, s2:s3, s3:s4, s4:s0 wait for each other", []string{"rates", "queues", "paused"}, []string{"signals"}},
		{"cut", cut, "bad", "2 of 3 flows failed.", []string{"rates", "queues", "signals", "slowdown"}, []string{"paused"}},
		{"starved", starved, "partial", "1 of 3 flows got less than a tenth of the mean rate.", []string{"rates", "queues", "paused"}, []string{"signals"}},
		{"quiet", quiet, "good", "All flows ended.", []string{"rates", "queues", "slowdown"}, []string{"paused", "signals"}},
	} {
		title := c.name + "</h1><img src=http://192.0.2.9/x>.yaml"
		open(t, b, c.r, title)
		var got shown
		b.Run(t, readShown, &got)
		b.Check(t)
		if got.Title != title || got.Class != c.class || !strings.Contains(got.Verdict, c.verdict) || got.First != "summary" {
			t.Errorf("%s: title %q, verdict %s %q, first table %s", c.name, got.Title, got.Class, got.Verdict, got.First)
		}
		for i, f := range c.r.summary() {
			if want := f.Name + "|" + f.Value + "|" + f.More; got.Summary[i] != want {
				t.Errorf("%s: %q, want %q", c.name, got.Summary[i], want)
			}
		}
		if !slices.Equal(got.Painted, c.painted) || !slices.Equal(got.Empty, c.empty) {
			t.Errorf("%s: painted %v, want %v; empty %v, want %v", c.name, got.Painted, c.painted, got.Empty, c.empty)
		}
		for table, want := range map[string]int{"failures": len(c.r.Failures), "sizes": len(c.r.Sizes), "receivers": len(c.r.Receivers), "ports": len(c.r.Ports)} {
			if got.Rows[table] != want {
				t.Errorf("%s: %d rows of %s, want %d", c.name, got.Rows[table], table, want)
			}
		}
		longest := slices.MaxFunc(c.r.Ports, func(a, b PortResult) int { return a.MaxQueue - b.MaxQueue })
		if name := got.Legends["queues"][0]; c.r.Measured == c.r.Time && (name != longest.Port || got.Highest["queues"] != float64(longest.MaxQueue)) {
			t.Errorf("%s: the longest queue is %v of %s, want %d of %s", c.name, got.Highest["queues"], name, longest.MaxQueue, longest.Port)
		}
	}
}

// Of many NICs, the page draws those with the highest values, and others by their names. Zooming
// in shows each sample.
func TestPageFindsNames(t *testing.T) {
	b := browsertest.Start(t, "")
	r := run(t, "star: {nics: 30}", "time: 1ms\nsample_interval: 1us\ntraffic: [{pattern: permutation}]")
	open(t, b, r, "many.yaml")
	var got struct {
		First, Found, None int
		Names              []string
		Hint               string
		Zoomed, Whole      []float64
		Points             [3]int // of a line: in the whole, zoomed, and in the whole again
	}
	b.Run(t, `
		const S = softroceSim, lines = () => S.plots.rates ? S.plots.rates.series.length - 1 : 0, out = { First: lines() };
		out.Hint = document.querySelector("[data-count=rates]").textContent;
		const find = text => { const e = document.querySelector("#find"); e.value = text; e.dispatchEvent(new Event("input")); };
		find("n29");
		out.Found = lines();
		out.Names = S.plots.rates.series.slice(1).map(s => s.label);
		find("none");
		out.None = lines();
		find("");
		await new Promise(requestAnimationFrame);
		const range = () => [S.plots.queues.scales.x.min, S.plots.queues.scales.x.max];
		const points = () => S.plots.queues.data[0].length;
		out.Points = [points()];
		S.plots.queues.setScale("x", { min: 0.0002, max: 0.0004 });
		await new Promise(requestAnimationFrame);
		out.Zoomed = range();
		out.Points.push(points());
		document.querySelector("#whole").click();
		await new Promise(requestAnimationFrame);
		out.Whole = range();
		out.Points.push(points());
		return out;`, &got)
	b.Check(t)
	if got.First != 8 || got.Found != 1 || got.Names[0] != "n29" || got.None != 0 || !strings.Contains(got.Hint, "8 of 30") {
		t.Errorf("%+v", got)
	}
	if fmt.Sprint(got.Zoomed, got.Whole) != "[0.0002 0.0004] [0 0.001]" || got.Points != [3]int{251, 1001, 251} {
		t.Errorf("zoomed to %v, then %v; %v points", got.Zoomed, got.Whole, got.Points)
	}
}

var screenshot = flag.String("screenshot", "", "`file` to write the picture of docs/use/network.md to")

// TestScreenshot takes the picture of the documentation, docs/use/network.png:
//
//	go test ./internal/netsim -run Screenshot -screenshot ../../docs/use/network.png
func TestScreenshot(t *testing.T) {
	b := browsertest.Start(t, "")
	r := run(t, "switch: {"+ecn+", pfc: {xoff: 100kB, xon: 80kB, headroom: 60kB}}\nleaf_spine: {leaves: 2, spines: 2, nics: 4, uplink: 40G}", `
time: 20ms
traffic: [{pattern: incast, to: n7}]
failures:
  - {kind: ecn_off, switch: leaf1, start: 8ms, end: 12ms}`)
	open(t, b, r, "marks.yaml on marks-topology.yaml")
	var painted shown
	b.Run(t, readShown, &painted)
	var picture []byte
	if err := chromedp.Run(b, chromedp.EmulateViewport(1000, 1300), chromedp.CaptureScreenshot(&picture)); err != nil {
		t.Fatal(err)
	}
	b.Check(t)
	seen, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	if size := seen.Bounds().Size(); size.X != 1000 || size.Y != 1300 || len(picture) > 200<<10 || len(painted.Painted) < 4 {
		t.Errorf("a picture of %v, %d bytes, with %v", size, len(picture), painted.Painted)
	}
	if *screenshot != "" {
		to, err := filepath.Abs(*screenshot)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
