// Package daemon is the RDMA NIC as a process: it makes NICs of a configuration, hangs
// them on their links, has engines drive them, and serves clients, metrics and captures.
//
// What stands between a NIC and its cable, from the NIC down: Fault, if a fault program was
// given; Capture; Loopback, except on a fabric, which needs none; the link.
//
// A Daemon ends in the opposite order of its start: clients hear IBV_EVENT_DEVICE_FATAL and
// lose their objects, captures are written out, engines stop, links close.
package daemon
