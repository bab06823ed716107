// Package transport implements the InfiniBand transport services RC, UC, UD and XRC as state
// machines without I/O. A QP takes work requests, received packets and the time, and yields
// packets, completions and events. It starts no goroutine, takes no lock, reads no clock, and
// allocates nothing per packet.
//
// # The path of a message
//
//  1. PostSend copies a work request into the send queue, or NextSend and PostNextSend fill in an
//     entry of it (queue.go).
//  2. Transmit runs the requester, which turns it into request packets (requester.go). Payload that
//     only the kernel can copy is read between two calls of Transmit (readahead.go).
//  3. Receive on the peer runs the responder, which checks each packet, accesses memory, takes
//     receive work requests and queues the reply (responder.go). Consecutive packets of a
//     message may be one run, which ReceiveRun takes as a whole (responder_run.go).
//  4. Transmit on the peer emits the replies (reply.go).
//  5. Receive runs the completer, which matches replies with requests, frees the send queue in
//     order and reports completions (completer.go).
//  6. After a NAK or a gap in the responses the completer makes the requester go back, and if no
//     reply arrives in time, Expire does (recovery.go).
//
// What differs by service or operation is apart: UC and UD responders (responder_unreliable.go),
// SEND with invalidate, FLUSH and ATOMIC WRITE (responder_extended.go), XRC (xrc.go), memory window
// binds and invalidations (local.go). State changes are in attr.go and qp.go.
package transport
