// Package daemon runs NICs as a process. It creates the NICs of a configuration, opens their links,
// drives them with engines, and serves clients, metrics and captures.
//
// The layers between a NIC and its link, from the NIC down, are: a wire.FaultLink, if a fault
// program has rules for its packets; a wire.ShapedLink, if it has a rate or a delay; a
// wire.CaptureLink; a wire.LoopbackLink, except on a fabric, which delivers to its own ports; the
// link.
//
// A Daemon shuts down in the reverse order of its start: clients receive IBV_EVENT_DEVICE_FATAL and
// their objects are destroyed, captures are written out, engines stop, links close. It never waits
// longer than CloseTimeout.
//
// Engines write neither files nor pipes: captures and the log have bounded buffers and goroutines
// that write them.
package daemon
