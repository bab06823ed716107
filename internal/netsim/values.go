package netsim

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"softroce/internal/nicspec"
	"softroce/internal/yamlfile"
	"softroce/packet"
	"softroce/transport/congestion"
)

// Values of topology and workload files, whose errors have a line.
type (
	rateValue  int64   // b/s
	timeValue  int64   // ns
	bytesValue int64   // bytes
	countValue int     // at least 1
	shareValue float64 // 0 to 1
	nameValue  string

	mtuValue       int
	timeoutValue   int
	priorityValue  int
	algorithmValue congestion.Algorithm
	weightsValue   [packet.Priorities]int // 0: none
	parameters     [][2]string            // names and values
)

func (v *rateValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*int64)(v), nicspec.ParseRate)
}

func (v *timeValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*int64)(v), parseTime)
}

func (v *bytesValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*int64)(v), parseSize)
}

func (v *countValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*int)(v), parseCount)
}

func parseCount(s string) (int, error) {
	c, err := strconv.Atoi(s)
	if err != nil || c < 1 || c > maxCount {
		return 0, fmt.Errorf("%q: want a number from 1 to %d", s, maxCount)
	}
	return c, nil
}

func (v *shareValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*float64)(v), func(s string) (float64, error) {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || !(f >= 0 && f <= 1) {
			return 0, fmt.Errorf("%q: want a number from 0 to 1", s)
		}
		return f, nil
	})
}

func (v *nameValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*string)(v), parseName)
}

func (v *mtuValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*int)(v), func(s string) (int, error) {
		mtu, err := strconv.Atoi(s)
		if err != nil || !slices.Contains([]int{256, 512, 1024, 2048, 4096}, mtu) {
			return 0, fmt.Errorf("mtu %q: want 256, 512, 1024, 2048 or 4096", s)
		}
		return mtu, nil
	})
}

func (v *timeoutValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*int)(v), func(s string) (int, error) {
		t, err := strconv.Atoi(s)
		if err != nil || t < 1 || t > 31 {
			return 0, fmt.Errorf("timeout %q: want 1 to 31", s)
		}
		return t, nil
	})
}

func (v *priorityValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*int)(v), parsePriority)
}

func parsePriority(s string) (int, error) {
	i, err := strconv.Atoi(s)
	if err != nil || i < 0 || i >= packet.Priorities {
		return 0, fmt.Errorf("priority %q: want 0 to %d", s, packet.Priorities-1)
	}
	return i, nil
}

func (v *algorithmValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*congestion.Algorithm)(v), congestion.ParseAlgorithm)
}

func (v *weightsValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Entries(n, func(key, value string) error {
		i, err := parsePriority(key)
		if err == nil {
			v[i], err = parseCount(value)
		}
		return err
	})
}

func (v *parameters) UnmarshalYAML(n ast.Node) error {
	p := congestion.Defaults()
	return yamlfile.Entries(n, func(name, value string) error {
		*v = append(*v, [2]string{name, value})
		return p.SetText(name, value)
	})
}

// parseName accepts what is unambiguous in the name of a port, and in CSV.
func parseName(s string) (string, error) {
	if s == "" || len(s) > 63 || strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
	}) {
		return "", fmt.Errorf("name %q: want up to 63 letters, digits, '-', '_' and '.'", s)
	}
	return s, nil
}

// maxTime is the longest time in a file.
const maxTime = time.Hour

func parseTime(s string) (int64, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > maxTime {
		return 0, fmt.Errorf("time %q: want a number and a unit, such as 10us, up to %v", s, maxTime)
	}
	return int64(d), nil
}

var sizeUnits = []struct {
	suffix string
	factor float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1}}

const maxSize = 1 << 40 // bytes

func parseSize(s string) (int64, error) {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(digits, 64)
		if err == nil && v >= 0 && v*u.factor <= maxSize {
			return int64(math.Round(v * u.factor)), nil
		}
		break
	}
	return 0, fmt.Errorf("size %q: want a number of bytes, such as 500, 100kB or 1MiB", s)
}
