// Package cm is the InfiniBand connection manager: the protocol by which two queue pairs connect
// through messages between the general services interfaces (QP 1) of their NICs, and the rdma_cm
// interface on top of it.
//
// It has three layers, each without I/O, goroutines, locks and clocks. The time is a parameter, in
// nanoseconds of one clock.
//
//   - Messages: REQ, REP and so on, and the MADs that carry them (IBTA 12.6 to 12.11); the
//     service IDs and private data by which the RDMA IP CM service (annex A11) names IP
//     addresses and ports.
//   - Agent: the protocol. It keeps the connections, retransmits messages, and reports events to
//     its Handler.
//   - Manager: the interface of rdma_cm clients. Identifiers bind, resolve, listen and connect;
//     ports are allocated in port spaces; events are queued on channels.
package cm
