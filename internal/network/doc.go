// Package network is a model of an Ethernet of switches: it moves frames between NICs, with the
// rates, delays, queues, marks, losses and pauses that such a network has. It does no I/O and reads
// no clock: time is an argument, in nanoseconds, and with the same seed and the same calls the same
// things happen. It does not look into frames.
//
// A frame takes these steps, each but the first at every switch:
//
//  1. The NIC gives it to its port (Send) when the queue of the frame's priority has room (Room). A
//     NIC that has found none is Ready when there is room for several frames (endRefusal).
//  2. It arrives at a switch, which chooses one of the ports on the shortest paths to the
//     destination by the frame's hash (route).
//  3. The switch has room for it in its shared buffer or, for a priority with PFC, in the headroom
//     of the port at which it arrived, or drops it (admit). A port whose frames occupy too much
//     sends a pause frame.
//  4. The port sends the frames of its queues in the order that the schedule says (pick), except
//     those of priorities that its peer has paused.
//  5. It is marked according to the length of the queue that it leaves (mark).
//
// Failures (Fail) take cables down, make them lose frames, or keep switches from marking.
//
// Nothing is allocated for a frame: Frames are reused (Release).
package network
