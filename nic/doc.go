// Package nic is the NIC itself: devices with their ports, GID and P_Key tables, the objects of the
// verbs (PD, MR, MW, CQ, SRQ, QP, AH, XRC domains, device memory), asynchronous events and
// counters, and the engine that drives them.
//
// # Concurrency
//
// An Engine owns its devices and everything in them, and is single-threaded. A device that several
// engines drive has a slice on each: see slices.go. Engine.Do, Run, Wake,
// Now, Snapshot, Counters and Close, and Device.Name, RoundCaps, RoundSRQ, CQSlots, ResolvePath,
// ResolveReplyPath and SendMAD may be called from any goroutine. Everything else runs on the
// engine: in a function given to Do or, if the engine is Stepped, on the goroutine that calls Step.
// None of it blocks, except copies to and from the memory of clients: if one takes too long,
// another thread becomes the engine's (watchdog.go, hold.go).
//
// # Trust
//
// The rings and the doorbell page are memory that clients can write at any time. The engine reads
// each word and each slot once, and checks and uses its own copy (ring.go, sendring.go,
// recvring.go). A client that breaks the rules of a ring loses its context, and no other context
// notices.
//
// # A step
//
// Engine.Step has these phases, in this order:
//
//  1. Frames are received from each link, until it is empty or its budget is spent (rx.go). Each
//     frame is checked and given to its queue pair, which queues writes to memory, completions and
//     responses. After each batch, the writes are carried out and the completions published
//     (completion.go). No received frame refers to a program's memory then, and the epoch of
//     mrtable.IO ends. A program that has got a message may run now, on the engine's processor
//     (lend.go).
//  2. Functions that were given to Do before the step began are run (engine.go): a client that has
//     seen a message cannot destroy its queue pair before the message is acknowledged. Those that
//     end work requests transmit what was posted before (QP.takePosted). If the memory of a client
//     has returned, the frames that were kept for it are received (kept.go).
//  3. Timers that expired before the links were emptied are handled (timers.go), and doorbells are
//     read (doorbell.go).
//  4. Short replies are emitted. Then clients take turns, and in them their queue pairs: each
//     fetches work requests from its send ring (sendring.go) and fills transmit slots (schedule.go,
//     tx.go). An ACK may go behind a request then. Writes and completions follow as in phase 1.
//     Turns that wait for reads of memory continue when all reads are carried out.
//  5. Each link sends one batch (tx.go).
//  6. The remaining completions are published, completion channels are signaled (completion.go),
//     and the events of objects are delivered (events.go).
//  7. Contexts whose clients broke the rules of their rings, or whose memory takes too long, are
//     closed, over several steps if they have many objects (engine.go, context.go).
package nic
