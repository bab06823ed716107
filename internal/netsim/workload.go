package netsim

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"softroce/internal/suggest"
	"softroce/internal/yamlfile"
)

// A Workload says what the NICs of a topology send.
type Workload struct {
	Time           int64 // ns until the run ends; 0: when all flows have ended
	Warmup         int64 // ns that statistics leave out
	SampleInterval int64 // ns; 0: the default
	Traffic        []Traffic
	Flows          []Flow // of a CSV file
	Failures       []Failure

	path, flowsPath string
}

// A Traffic is a pattern of flows.
type Traffic struct {
	Pattern  string
	Size     int64 // bytes of a flow; 0: it goes on until the end
	Start    int64 // ns
	Priority uint8
	Senders  int      // incast
	From, To string   // flow; incast has To
	NICs     []string // that take part; all if there are none
	Load     float64  // poisson: of the rate of the NICs
	Count    int      // poisson: flows
	Sizes    []Point  // poisson

	line int // in the workload file
}

// A Point of a distribution says which share of flows is at most so large.
type Point struct {
	Size  int64
	Share float64
}

// A Flow is data that a NIC sends to another.
type Flow struct {
	Start    int64  `json:"start_ns"`
	From     string `json:"from"`
	To       string `json:"to"`
	Size     int64  `json:"bytes"` // 0: until the end
	Priority uint8  `json:"priority"`

	line int // in the CSV file; 0: the flow is that of a pattern
}

type workloadFile struct {
	Time           timeValue     `yaml:"time"`
	Warmup         timeValue     `yaml:"warmup"`
	SampleInterval timeValue     `yaml:"sample_interval"`
	Flows          string        `yaml:"flows"`
	Traffic        []trafficFile `yaml:"traffic"`
	Failures       []failureFile `yaml:"failures"`
}

type trafficFile struct {
	Pattern  string             `yaml:"pattern"`
	Size     bytesValue         `yaml:"size"`
	Start    timeValue          `yaml:"start"`
	Priority priorityValue      `yaml:"priority"`
	Senders  countValue         `yaml:"senders"`
	From     string             `yaml:"from"`
	To       string             `yaml:"to"`
	NICs     []string           `yaml:"nics"`
	Load     shareValue         `yaml:"load"`
	Count    countValue         `yaml:"count"`
	Sizes    string             `yaml:"sizes"`
	CDF      map[string]float64 `yaml:"cdf"`

	checked Traffic
}

// UnmarshalYAML checks the pattern, so that what is wrong with it has its line.
func (f *trafficFile) UnmarshalYAML(n ast.Node) error {
	type plain trafficFile // without this method
	line, err := yamlfile.Map(n, (*plain)(f))
	if err != nil {
		return err
	}
	t, err := f.traffic()
	if err != nil {
		return atLine(line, err)
	}
	f.checked = *t
	f.checked.line = line
	return nil
}

// Patterns of traffic.
const (
	incast        = "incast"
	permuted      = "permutation"
	allToAll      = "all_to_all"
	ringAllReduce = "ring_all_reduce"
	treeAllReduce = "tree_all_reduce"
	singleFlow    = "flow"
	poisson       = "poisson"
)

var patterns = []string{incast, permuted, allToAll, ringAllReduce, treeAllReduce, singleFlow, poisson}

// distributions are published sizes of flows, as the evaluations of HPCC and later work use them:
// web search from DCTCP (Alizadeh et al., SIGCOMM 2010), and Hadoop from Facebook (Roy et al.,
// SIGCOMM 2015).
var distributions = map[string][]Point{
	"web_search": {{10e3, .15}, {20e3, .2}, {30e3, .3}, {50e3, .4}, {80e3, .53}, {200e3, .6}, {1e6, .7}, {2e6, .8}, {5e6, .9}, {10e6, .97}, {30e6, 1}},
	"hadoop": {{100, .01}, {200, .02}, {300, .05}, {350, .15}, {400, .2}, {500, .3}, {600, .4}, {700, .5}, {1000, .6}, {2000, .67}, {7000, .7},
		{30e3, .72}, {50e3, .82}, {80e3, .87}, {120e3, .9}, {300e3, .95}, {1e6, .975}, {2e6, .99}, {10e6, 1}},
}

// LoadWorkload reads a workload file, and the CSV file that it names, relative to it.
func LoadWorkload(path string) (*Workload, error) {
	var f workloadFile
	if err := yamlfile.Load(path, maxFile, &f); err != nil {
		return nil, err
	}
	w, err := f.workload(path)
	if err != nil {
		return nil, yamlfile.Locate(path, err)
	}
	if f.Flows != "" {
		name := f.Flows
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		if w.Flows, err = loadFlows(name); err != nil {
			return nil, err
		}
		w.flowsPath = name
	}
	if len(w.Traffic)+len(w.Flows) == 0 {
		return nil, fmt.Errorf("%s: want traffic or flows", path)
	}
	return w, nil
}

func (f *workloadFile) workload(path string) (*Workload, error) {
	w := &Workload{path: path, Time: int64(f.Time), Warmup: int64(f.Warmup), SampleInterval: int64(f.SampleInterval)}
	if w.Time > 0 && w.Warmup >= w.Time {
		return nil, errors.New("warmup: must be less than time")
	}
	for i := range f.Traffic {
		t := f.Traffic[i].checked
		if w.Time == 0 && t.Size == 0 && t.Pattern != poisson {
			return nil, atLine(t.line, errors.New("without a size it does not end: set size, or the time of the run"))
		}
		w.Traffic = append(w.Traffic, t)
	}
	for i := range f.Failures {
		w.Failures = append(w.Failures, f.Failures[i].failure())
	}
	return w, nil
}

func (f *trafficFile) traffic() (*Traffic, error) {
	t := &Traffic{Pattern: f.Pattern, Priority: uint8(f.Priority), Size: int64(f.Size), Start: int64(f.Start), Senders: int(f.Senders), From: f.From, To: f.To,
		NICs: f.NICs, Load: float64(f.Load), Count: int(f.Count)}
	if !slices.Contains(patterns, f.Pattern) {
		return nil, fmt.Errorf("pattern %q%s", f.Pattern, suggest.Word(f.Pattern, slices.Clone(patterns)))
	}
	if err := f.checkKeys(); err != nil {
		return nil, err
	}
	switch f.Pattern {
	case ringAllReduce, treeAllReduce:
		if t.Size == 0 {
			return nil, fmt.Errorf("%s: want the size of what is reduced", f.Pattern)
		}
	case poisson:
		if t.Load == 0 || t.Count == 0 {
			return nil, errors.New("poisson: want load, and count of flows")
		}
		return t, f.setSizes(t)
	}
	return t, nil
}

// checkKeys refuses keys that have no meaning for the pattern.
func (f *trafficFile) checkKeys() error {
	for _, k := range []struct {
		name     string
		set      bool
		patterns []string // nil: all but that of a single flow
	}{
		{"senders", f.Senders != 0, []string{incast}},
		{"from", f.From != "", []string{singleFlow}},
		{"to", f.To != "", []string{incast, singleFlow}},
		{"nics", f.NICs != nil, nil},
		{"load", f.Load != 0, []string{poisson}},
		{"count", f.Count != 0, []string{poisson}},
		{"sizes", f.Sizes != "", []string{poisson}},
		{"cdf", f.CDF != nil, []string{poisson}},
	} {
		has := slices.Contains(k.patterns, f.Pattern) || k.patterns == nil && f.Pattern != singleFlow
		if k.set && !has {
			return fmt.Errorf("the pattern %s has no %s", f.Pattern, k.name)
		}
	}
	if f.Pattern == singleFlow && (f.From == "" || f.To == "") {
		return errors.New("flow: want from and to")
	}
	return nil
}

// setSizes sets the distribution of sizes: a named one, the points of cdf, or one size.
func (f *trafficFile) setSizes(t *Traffic) error {
	switch {
	case f.Sizes != "":
		if t.Sizes = distributions[f.Sizes]; t.Sizes == nil {
			return fmt.Errorf("sizes %q%s", f.Sizes, suggest.Word(f.Sizes, slices.Collect(maps.Keys(distributions))))
		}
	case f.CDF != nil:
		for text, share := range f.CDF {
			size, err := parseSize(text)
			if err != nil {
				return fmt.Errorf("cdf: %w", err)
			}
			t.Sizes = append(t.Sizes, Point{size, share})
		}
		slices.SortFunc(t.Sizes, func(a, b Point) int { return int(a.Size - b.Size) })
		last := 0.0
		for _, p := range t.Sizes {
			if p.Size == 0 || !(p.Share > last && p.Share <= 1) {
				return errors.New("cdf: sizes must be above 0, and their shares must increase up to 1")
			}
			last = p.Share
		}
		if last != 1 {
			return errors.New("cdf: the share of the largest size must be 1")
		}
	case t.Size > 0:
		t.Sizes = []Point{{t.Size, 1}}
	default:
		return errors.New("poisson: want sizes, cdf or size")
	}
	return nil
}

const flowsHeader = "start,from,to,size"

// loadFlows reads a CSV file of flows: start, from, to, size and, if there is a fifth column,
// priority.
func loadFlows(path string) (list []Flow, err error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	lines := csv.NewReader(r)
	lines.FieldsPerRecord, lines.TrimLeadingSpace, lines.ReuseRecord = -1, true, true
	for first := true; ; first = false {
		l, err := lines.Read()
		if err == io.EOF && first {
			err = fmt.Errorf("want the header %s[,priority]", flowsHeader)
		} else if err == io.EOF {
			return list, nil
		}
		var syntax *csv.ParseError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("%s:%d: %w", path, syntax.Line, syntax.Err)
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		n, _ := lines.FieldPos(0)
		for i := range l {
			l[i] = strings.TrimSpace(l[i])
		}
		if first {
			if header := strings.Join(l, ","); header != flowsHeader && header != flowsHeader+",priority" {
				return nil, fmt.Errorf("%s:%d: want the header %s[,priority]", path, n, flowsHeader)
			}
			continue
		}
		if len(list) == maxCount {
			return nil, fmt.Errorf("%s:%d: more than %d flows", path, n, maxCount)
		}
		f, err := parseFlow(l)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		f.line = n
		list = append(list, f)
	}
}

func parseFlow(l []string) (f Flow, err error) {
	if len(l) != 4 && len(l) != 5 {
		return f, fmt.Errorf("%d fields, want start,from,to,size[,priority]", len(l))
	}
	if f.Start, err = parseTime(l[0]); err != nil {
		return f, err
	}
	f.From, f.To = l[1], l[2]
	if f.Size, err = parseSize(l[3]); err != nil {
		return f, err
	}
	if f.Size == 0 {
		return f, errors.New("size 0: want at least a byte")
	}
	if len(l) == 5 {
		p, err := parsePriority(l[4])
		if err != nil {
			return f, err
		}
		f.Priority = uint8(p)
	}
	return f, nil
}
