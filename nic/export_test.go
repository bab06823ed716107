package nic

// DatagramPort is datagramPort, for tests against captures.
var DatagramPort = datagramPort

// Describe returns the two parts of Engine.Snapshot: visits of the engine, and what comes after the
// last one.
func Describe(d *Device) (visit func(n int) (done bool), finish func() Snapshot) {
	s := &description{device: d}
	return s.visit, s.finish
}

// Bounds of a step.
const (
	StepBytes = stepBytes
	TurnBytes = turnBytes
)
