// Package nic is the device: ports, GIDs, the objects of the verbs (PD, MR, CQ, SRQ,
// QP, AH), asynchronous events and counters, and the engine that drives it all.
//
// # Who may call what
//
// An Engine owns its devices and everything in them and is single-threaded. Its
// methods Do, Run, Wake, Now and Close, and Device.Name and Device.ResolvePath, may be
// called from any goroutine. Everything else runs on the engine: inside a function
// given to Do, or, where the engine is Stepped, on the one goroutine that steps it.
// None of it blocks.
//
// # The way of a packet through Step
//
//  1. What Do was given runs: before anything is received, so that a client that has seen a
//     message come cannot destroy its queue pair before the message is acknowledged.
//  2. Each link is received from until it is empty or the budget is spent. A frame is
//     checked (rx.go), its queue pair found, and Receive changes memory, completions
//     and what is to be answered. Memory is flushed before completions become
//     visible (settle.go). Then memory gets its epoch.
//  3. Doorbells name the queue pairs with new work requests (doorbell.go), timers those
//     with something due (timers.go). Each active queue pair gets its turn to fill
//     transmit slots (tx.go).
//  4. One Send per link. Then whoever sleeps is told of what has come: its acknowledgement has left.
package nic
