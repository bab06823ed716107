// Package attach is the server side of the attach ABI (package internal/abi,
// docs/reference/attach-abi.md), through which programs use the NICs of a daemon.
//
// A Server listens on a UNIX socket. Each connection is a client with its own limits. A client
// opens one device and then creates objects on it. A request takes these steps:
//
//  1. The connection's goroutine reads a message and its descriptors (conn.go).
//  2. The operation is looked up and the sizes of body and descriptors are checked
//     (operations.go). A request that does not fit gets an error reply.
//  3. Handles are looked up among the connection's own objects (handles.go), rings are
//     allocated (sharedmem.go), and the engine runs the verb through nic's Engine.Do.
//  4. The reply is sent, and the descriptors that nothing keeps are closed.
//
// Requests of a client are handled in order, except those that wait for a neighbour, which later
// requests may overtake.
//
// When a connection ends, the engine destroys its objects in dependency order. Their memory is
// unmapped after that (conn.cleanup).
//
// No client is trusted. A request can name only the connection's own objects. What a client writes
// to a ring or to the socket can make its own context fail, and nothing else.
package attach
