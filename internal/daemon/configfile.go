package daemon

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"softroce/attach"
	"softroce/internal/nicspec"
	"softroce/internal/yamlfile"
)

// file is the layout of the configuration file: YAML whose keys are the names of the flags. Unknown
// keys are errors.
type file struct {
	NICs        []nicsValue  `yaml:"nics"`
	Fabric      string       `yaml:"fabric"`
	Socket      string       `yaml:"socket"`
	SocketMode  modeValue    `yaml:"socket-mode"`
	SocketGroup string       `yaml:"socket-group"`
	Metrics     string       `yaml:"metrics"`
	Web         string       `yaml:"web"`
	Capture     captureValue `yaml:"capture"`
	Blocking    bool         `yaml:"capture-blocking"`
	Fault       string       `yaml:"fault"`
	Engines     countValue   `yaml:"engines"`
	Spin        spinValue    `yaml:"spin"`
	Limits      struct {
		Connections countValue `yaml:"connections"`
		PDs         countValue `yaml:"pds"`
		CQs         countValue `yaml:"cqs"`
		QPs         countValue `yaml:"qps"`
		MRs         countValue `yaml:"mrs"`
		AHs         countValue `yaml:"ahs"`
		SRQs        countValue `yaml:"srqs"`
		Groups      countValue `yaml:"groups"`
		Registered  bytesValue `yaml:"registered"`
		Rings       bytesValue `yaml:"rings"`
	} `yaml:"limits"`
}

// ReadConfig reads the configuration file at path, or standard input for "-". An error names the
// file, the line and the expected form.
func ReadConfig(path string) (Config, error) {
	r, name, err := openInput(path)
	if err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	defer r.Close()
	var f file
	if err := yamlfile.Decode(r, &f); err != nil {
		return Config{}, yamlfile.Locate(name, err)
	}
	c := Config{
		Fabric: f.Fabric, Socket: f.Socket, SocketMode: os.FileMode(f.SocketMode), SocketGroup: f.SocketGroup,
		Metrics: f.Metrics, Web: f.Web, Capture: string(f.Capture), CaptureBlocking: f.Blocking, Fault: f.Fault, Engines: int(f.Engines), Spin: time.Duration(f.Spin),
		Limits: attach.Limits{
			Connections: int(f.Limits.Connections), PDs: int(f.Limits.PDs), CQs: int(f.Limits.CQs), QPs: int(f.Limits.QPs), MRs: int(f.Limits.MRs),
			AHs: int(f.Limits.AHs), SRQs: int(f.Limits.SRQs), Groups: int(f.Limits.Groups), Registered: uint64(f.Limits.Registered), Rings: uint64(f.Limits.Rings),
		},
	}
	for _, n := range f.NICs {
		c.NICs = append(c.NICs, n...)
	}
	return c, nil
}

type (
	nicsValue    []nicspec.NIC
	captureValue string
	modeValue    os.FileMode
	spinValue    time.Duration
	countValue   int
	bytesValue   uint64
)

func (v *nicsValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*[]nicspec.NIC)(v), nicspec.ParseAll)
}

// UnmarshalYAML accepts the empty text too: no capture.
func (v *captureValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*string)(v), func(s string) (string, error) {
		if s == "" {
			return "", nil
		}
		_, err := ParseCapture(s)
		return s, err
	})
}

func (v *modeValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*os.FileMode)(v), ParseMode)
}

func (v *spinValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*time.Duration)(v), func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil {
			return 0, fmt.Errorf("duration %q: want a number and a unit, such as 50us", s)
		}
		return SpinOf(d)
	})
}

func (v *countValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*int)(v), func(s string) (int, error) {
		c, err := strconv.ParseUint(s, 10, 31)
		if err != nil || c == 0 {
			return 0, fmt.Errorf("%q: want a number of at least 1", s)
		}
		return int(c), nil
	})
}

func (v *bytesValue) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, (*uint64)(v), ParseBytes)
}

// ParseMode reads permission bits in octal.
func ParseMode(s string) (os.FileMode, error) {
	m, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	if err != nil || m == 0 || m > 0o777 {
		return 0, fmt.Errorf("socket mode %q: want permission bits in octal, such as 0660", s)
	}
	return os.FileMode(m), nil
}

var byteUnits = []struct {
	suffix string
	factor uint64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40}, {"B", 1}, {"", 1},
}

// ParseBytes reads a number of bytes: 65536, 64K or 64KiB. Units are powers of 1024.
func ParseBytes(s string) (uint64, error) {
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		v, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 64)
		if err == nil && v <= math.MaxUint64/u.factor {
			return v * u.factor, nil
		}
		break
	}
	return 0, fmt.Errorf("size %q: want a number of bytes, such as 65536, 64K or 1MiB", s)
}
