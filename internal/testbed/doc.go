// Package testbed is a NIC under test and the network at its port, for tests that work at the level
// of packets: scenarios (internal/scenario) and played captures (internal/liveplay).
//
// A Testbed is one of two things:
//
//   - simulated (simulated.go, sim*.go): softroce's NICs on an in-process fabric, under virtual time;
//   - live (live.go): a NIC at the other end of a link (livelink.go, open.go). A verbs program on its
//     host, in program/, creates objects and posts work requests on it, one line of text for each
//     (remote.go, programconn.go).
//
// Both sides are under control: the NIC interface is what the verbs program does with the NIC, the
// Network interface is the peer, which sends and sees single packets.
package testbed
