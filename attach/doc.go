// Package attach is the server side of the attach ABI (package internal/abi,
// docs/reference/attach-abi.md), through which programs use the NICs of a daemon.
//
// A Server listens on a UNIX socket. Each connection is a client with its own limits. A client
// opens one device and then creates objects on it. A request takes these steps:
//
//  1. The connection's goroutine reads a message and its descriptors (conn.go).
//  2. The operation is looked up and the sizes of body and descriptors are checked
//     (operations.go). A request that does not fit gets an error reply.
//  3. A request that may wait is prepared on a goroutine of its own (conn.prepare).
//  4. With the connection's lock, handles are looked up among the connection's own objects
//     (handles.go), rings get memory (arena.go), and the engine runs the verb through nic's
//     Engine.Do.
//  5. The descriptors that nothing keeps are closed, and the reply is sent.
//
// Requests of a client are handled in order, except those that are prepared, which later requests
// may overtake.
//
// # Budgets
//
// A client's own limits (Limits) bound its objects. What all clients share, such as the mappings
// and descriptors of the process, is in a budget that users share (budget.go): an account for each
// connection takes from it before anything is allocated. What a registration maps is released when
// it is unmapped, which may be later than the end of its connection.
//
// # Calls that a client can delay
//
// A call on a client's memory or descriptors takes as long as the client wants: a page may belong
// to a file system that the client serves, a socket may linger when it is closed. That goes for
// probing, mapping and populating memory, for fstat, statfs and sealing, for writing a capture, and
// for closing a descriptor. So no such call is made with a lock that another connection can wait
// for, nor on an engine. An operation makes them in its prepare function, without a lock; requests
// of the other kind have no descriptors. What is shown of a connection can be read without its
// lock.
//
// When a connection ends, the engine destroys its objects in dependency order. Their memory is
// unmapped after that (conn.cleanup). A request that is still waiting then is abandoned, and
// releases what it holds when its call returns.
//
// No client is trusted. A request can name only the connection's own objects. What a client writes
// to a ring or to the socket can make its own context fail, and nothing else.
package attach
