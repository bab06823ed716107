package netsim

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"softroce/internal/nicspec"
	"softroce/internal/yamlfile"
)

// Values of topology and workload files, whose errors have a line.
type (
	rateValue  int64   // b/s
	timeValue  int64   // ns
	bytesValue int64   // bytes
	countValue int     // at least 1
	shareValue float64 // 0 to 1
	nameValue  string
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
	return yamlfile.Scalar(n, (*int)(v), func(s string) (int, error) {
		c, err := strconv.Atoi(s)
		if err != nil || c < 1 || c > maxCount {
			return 0, fmt.Errorf("%q: want a number from 1 to %d", s, maxCount)
		}
		return c, nil
	})
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
