// Package congestion implements the congestion control of a RoCEv2 NIC, apart from reliability:
// what a queue pair may send, and when, and which packets with congestion marks are reported to
// their sender. It starts no goroutine, takes no lock, reads no clock and allocates nothing; the
// time, in nanoseconds, is an argument, and does not go backwards.
//
// The NIC asks a Controller of each queue pair, and knows no algorithm (controller.go):
//
// DCQCN (Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015) has the
// parameters that mlx5 has, under their names:
//
//  1. A switch whose queue is long sets CE in the IP header of a packet that is ECN-capable.
//  2. The notification point, the NIC that receives it, sends a congestion notification packet
//     (CNP) to the sender, at most one for each queue pair and interval (notification.go).
//  3. The reaction point, the queue pair that sent, reduces its rate, and then increases it again,
//     at first to what it was, as long as no CNP arrives (reaction.go).
//
// A queue pair that has not received a CNP has no reaction point and sends as it likes, unless its
// program has set a rate (pacer.go).
//
// Swift (Kumar et al., Swift: Delay is Simple and Effective for Congestion Control in the
// Datacenter, SIGCOMM 2020) needs no switch: a reply that takes longer than a target delay reduces
// the rate of its queue pair, and another one increases it (swift.go).
//
// Whatever the algorithm, losses reduce how many packets may be unacknowledged (window.go), and the
// time that replies take (roundtrip.go) bounds how soon a request is sent again without a NAK.
package congestion
