// Package attach lets programs use the NICs of a daemon: the server side of the attach
// ABI (package internal/abi, docs/reference/attach-abi.md).
//
// A Server listens on a UNIX socket. Each connection is a client with limits of its own;
// it opens one device and then creates objects on it. The way of a request:
//
//  1. The connection's goroutine reads a message and its descriptors (conn.go).
//  2. The operation is looked up, its body and descriptors are counted (ops.go); what
//     does not fit is answered with an error.
//  3. Handles are looked up among the connection's own objects (handles.go), rings are
//     made (shared.go), and the engine is asked through nic's Engine.Do.
//  4. The answer goes out; descriptors that nothing holds on to are closed.
//
// Requests of one client are handled one after the other, except those that wait for a
// neighbour, which others overtake.
//
// When a connection ends, for whatever reason, its objects end in dependency order, and
// only after the engine has let go of them their memory is unmapped (conn.go, cleanup).
package attach
