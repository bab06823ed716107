package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/png"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/internal/htmlpage"
)

// A panel is one of the dashboard.
type panel struct {
	Title   string
	GridPos struct{ X, Y, W, H int } // of 24 columns

	FieldConfig struct {
		Defaults struct{ Unit string }
	}
	Targets []struct{ Expr, LegendFormat string }
}

func dashboardPanels(t *testing.T) []panel {
	text, err := os.ReadFile("../packaging/monitoring/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct{ Panels []panel }
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	if len(dashboard.Panels) < 10 {
		t.Fatalf("the dashboard has %d panels", len(dashboard.Panels))
	}
	return dashboard.Panels
}

// dashboardExpressions returns those of the panels.
func dashboardExpressions(t *testing.T) (list []string) {
	for _, p := range dashboardPanels(t) {
		for _, target := range p.Targets {
			list = append(list, target.Expr)
		}
	}
	if len(list) < 15 {
		t.Fatalf("the dashboard has %d expressions", len(list))
	}
	return list
}

// A series is a line of a panel.
type series struct {
	Name   string
	Values [][2]any // seconds since 1970, and a number as text
}

// label is a reference to a label in the format of a legend.
var label = regexp.MustCompile(`\{\{(\w+)\}\}`)

// panelSeries asks Prometheus for the lines of a panel, in the last minute.
func panelSeries(t *testing.T, server string, variables *strings.Replacer, p *panel) (list []series) {
	end := time.Now().Unix()
	for _, target := range p.Targets {
		api := fmt.Sprintf("/api/v1/query_range?start=%d&end=%d&step=1&query=%s", end-60, end, url.QueryEscape(variables.Replace(target.Expr)))
		for _, raw := range query(t, server, api) {
			var answer struct {
				Metric map[string]string
				Values [][2]any
			}
			if err := json.Unmarshal(raw, &answer); err != nil {
				t.Fatal(err)
			}
			name := label.ReplaceAllStringFunc(target.LegendFormat, func(ref string) string { return answer.Metric[label.FindStringSubmatch(ref)[1]] })
			list = append(list, series{name, answer.Values})
		}
	}
	return list
}

// dashboardScript draws the panels, with the same library as the pages of softroce.
const dashboardScript = `
const colors = ["#0072b2", "#d55e00", "#009e73", "#b3478b", "#b87a00", "#3f9fd8", "#000", "#8a8f98"];
const si = v => softrocePlot.units(v, 1000, ["", "k", "M", "G"]);
const units = { bps: softrocePlot.bits, bytes: softrocePlot.octets, percentunit: v => +(100 * v).toPrecision(3) + " %" };
for (const p of panels) {
	const box = document.createElement("section"), title = document.createElement("h3"), legend = document.createElement("p");
	box.style.gridColumn = p.x + 1 + " / span " + p.w;
	box.style.gridRow = p.y + 1 + " / span " + p.h;
	title.textContent = p.title;
	const times = [...new Set(p.series.flatMap(s => s.Values.map(v => v[0])))].sort((a, b) => a - b);
	const data = p.series.map(s => { const at = new Map(s.Values); return times.map(t => at.has(t) ? Number(at.get(t)) : null); });
	p.series.forEach((s, i) => {
		const name = document.createElement("span");
		name.textContent = "━ " + s.Name + " ";
		name.style.color = colors[i % colors.length];
		legend.append(name);
	});
	box.append(title);
	document.querySelector("main").append(box);
	new uPlot({ width: box.clientWidth, height: 190, legend: { show: false }, scales: { x: { time: false } },
		axes: softrocePlot.axes((u, splits) => splits.map(units[p.unit] || si), 84),
		series: [{}, ...p.series.map((s, i) => ({ stroke: colors[i % colors.length], width: 1.5, dash: i < colors.length ? [] : [5, 3], points: { show: false } }))],
	}, [times.map(t => t - times[0]), ...data], box);
	box.append(legend);
}`

// drawDashboard takes a picture of the panels, arranged as in the dashboard. It waits until
// each has a line of ten points.
func drawDashboard(ctx context.Context, t *testing.T, server string, variables *strings.Replacer, file string) {
	type drawn struct {
		Title  string   `json:"title"`
		X      int      `json:"x"`
		Y      int      `json:"y"`
		W      int      `json:"w"`
		H      int      `json:"h"`
		Unit   string   `json:"unit"`
		Series []series `json:"series"`
	}
	var panels []drawn
	for _, p := range dashboardPanels(t) {
		at := p.GridPos
		lines := panelSeries(t, server, variables, &p)
		for !slices.ContainsFunc(lines, func(s series) bool { return len(s.Values) >= 10 }) {
			if ctx.Err() != nil {
				t.Fatalf("%s: nothing to draw: %v", p.Title, lines)
			}
			time.Sleep(100 * time.Millisecond)
			lines = panelSeries(t, server, variables, &p)
		}
		panels = append(panels, drawn{p.Title, at.X, at.Y, at.W, at.H, p.FieldConfig.Defaults.Unit, lines})
	}
	text, err := json.Marshal(panels) // escapes what could end the element
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(t.TempDir(), "dashboard.html")
	html := "<!DOCTYPE html><meta charset=utf-8><style>" + htmlpage.UPlotCSS + htmlpage.BaseCSS + `
main { display: grid; grid-template-columns: repeat(24, 1fr); gap: 0 .8rem; }
section { overflow: hidden; } section p { font-size: .75rem; margin: 0; } h3 { margin: .3rem 0; }
</style><main></main>` + "<script>" + htmlpage.UPlotJS + htmlpage.PlotJS + "const panels = " + string(text) + ";" + dashboardScript + "</script>"
	if err := os.WriteFile(page, []byte(html), 0o600); err != nil {
		t.Fatal(err)
	}
	harness.RunCommand(t, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1300,1580",
		"--user-data-dir="+t.TempDir(), "--screenshot="+file, "file://"+page)
	picture, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	image, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	colored := 0 // pixels of lines, which are neither grey nor black
	for y := range image.Bounds().Dy() {
		for x := range image.Bounds().Dx() {
			if r, g, b, _ := image.At(x, y).RGBA(); max(r, g, b)-min(r, g, b) > 0x4000 {
				colored++
			}
		}
	}
	if colored < 5000 {
		t.Errorf("the picture has %d pixels of lines", colored)
	}
}
