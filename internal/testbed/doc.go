// Package testbed is a NIC under test and the network at its port, for packet-level tests:
// scenarios (internal/scenario) and replayed captures (internal/liveplay).
//
// A Testbed is one of two things:
//
//   - simulated (simulated.go, sim*.go): softroce's NICs on an in-process fabric, under virtual
//     time;
//   - live (live.go): a NIC at the other end of a link (livelink.go, open.go). A verbs program on
//     its host, in program/, creates objects and posts work requests on it, one line of text for
//     each (remote.go, programconn.go).
//
// A test controls both sides: through the NIC interface the verbs program, and through the Network
// interface the peer, which sends and receives single packets.
package testbed
