// Package cm is the InfiniBand connection manager: how two queue pairs find each other by
// messages between the general services interfaces (QP 1) of their NICs, and what the
// rdma_cm interface makes of it for programs.
//
// It has three layers, each without I/O, goroutines, locks and clocks. Time comes in as a parameter,
// in nanoseconds of one clock.
//
//   - Messages: REQ, REP and so on, and the MADs that carry them (IBTA 12.6 to 12.11); the
//     service IDs and private data by which the RDMA IP CM service (annex A11) names IP
//     addresses and ports.
//   - Agent: the protocol. It keeps the connections, sends again what was lost, and tells its
//     Handler what happened.
//   - Manager: what rdma_cm clients see. Identifiers are bound, resolved, listen, connect; ports
//     are given out in port spaces; events are queued on channels.
package cm
