// Package transport is the InfiniBand transport as pure state machines: a queue
// pair is a value that is fed work requests, packets and the time, and that yields
// packets and completions. It starts no goroutine, takes no lock, reads no clock,
// does no I/O, and allocates nothing per packet.
//
// # The way of a message
//
//  1. PostSend copies a work request into the send queue (queue.go).
//  2. Transmit lets the requester turn it into request packets (requester.go).
//  3. The peer's Receive hands them to its responder, which checks them, reaches
//     memory, takes receive work requests and notes what to answer (responder.go).
//  4. The peer's Transmit emits those answers (reply.go).
//  5. Receive hands the answers to the completer, which frees the send queue
//     in order and yields completions (completer.go).
//  6. Where an answer does not come, Expire sends the requester back (recovery.go).
package transport
