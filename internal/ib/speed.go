package ib

import "fmt"

// Speed is the signaling rate of a lane: active_speed of struct ibv_port_attr.
type Speed uint32

// Speeds.
const (
	SpeedSDR Speed = 1 << iota
	SpeedDDR
	SpeedQDR
	SpeedFDR10
	SpeedFDR
	SpeedEDR
	SpeedHDR
	SpeedNDR
	SpeedXDR
)

// speeds are the names of the speeds and their rates in tenths of Gb/s.
var speeds = []struct {
	speed Speed
	name  string
	rate  int
}{
	{SpeedSDR, "SDR", 25}, {SpeedDDR, "DDR", 50}, {SpeedQDR, "QDR", 100}, {SpeedFDR10, "FDR10", 100}, {SpeedFDR, "FDR", 140},
	{SpeedEDR, "EDR", 250}, {SpeedHDR, "HDR", 500}, {SpeedNDR, "NDR", 1000}, {SpeedXDR, "XDR", 2000},
}

func (s Speed) String() string {
	for _, v := range speeds {
		if v.speed == s {
			return v.name
		}
	}
	return fmt.Sprintf("Speed(%d)", uint32(s))
}

// ParseSpeed returns the speed of a name.
func ParseSpeed(name string) (Speed, bool) {
	for _, v := range speeds {
		if v.name == name {
			return v.speed, true
		}
	}
	return 0, false
}

// Width is the number of lanes of a port: active_width of struct ibv_port_attr.
type Width uint8

// Widths.
const (
	Width1X  Width = 1
	Width4X  Width = 2
	Width8X  Width = 4
	Width12X Width = 8
	Width2X  Width = 16
)

var lanes = map[Width]int{Width1X: 1, Width2X: 2, Width4X: 4, Width8X: 8, Width12X: 12}

// Lanes returns the number of lanes, 0 if w is not valid.
func (w Width) Lanes() int { return lanes[w] }

// WidthOf returns the width with n lanes.
func WidthOf(n int) (Width, bool) {
	for w, l := range lanes {
		if l == n {
			return w, true
		}
	}
	return 0, false
}

// PortRate returns the rate of a port as Linux shows it, such as "100 Gb/sec (4X EDR)".
func PortRate(s Speed, w Width) string {
	rate := BitRate(s, w) / 1e8
	text := fmt.Sprint(rate / 10)
	if rate%10 != 0 {
		text += fmt.Sprintf(".%d", rate%10)
	}
	return fmt.Sprintf("%s Gb/sec (%dX %v)", text, w.Lanes(), s)
}

// BitRate returns the rate of a port in bits per second.
func BitRate(s Speed, w Width) int {
	for _, v := range speeds {
		if v.speed == s {
			return v.rate * w.Lanes() * 1e8
		}
	}
	return 0
}
