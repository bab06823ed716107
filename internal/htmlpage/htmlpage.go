// Package htmlpage has what the pages share that softroce writes: uPlot, which draws their
// diagrams, the style, the look of axes, and the content security policy.
package htmlpage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"strings"
)

// Scripts and styles. uplot/README.md says where uPlot is from.
var (
	//go:embed uplot/uPlot.iife.min.js
	UPlotJS string
	//go:embed uplot/uPlot.min.css
	UPlotCSS string
	//go:embed base.css
	BaseCSS string
	// PlotJS defines softrocePlot.
	//go:embed plot.js
	PlotJS string
)

// Policy returns the content security policy of a page in one file: it may run these scripts and
// nothing else, and cannot reach a network.
func Policy(scripts ...string) string {
	b := &strings.Builder{}
	b.WriteString("default-src 'none'; script-src")
	for _, s := range scripts {
		sum := sha256.Sum256([]byte(s))
		b.WriteString(" 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'")
	}
	return b.String() + "; style-src 'unsafe-inline'"
}
